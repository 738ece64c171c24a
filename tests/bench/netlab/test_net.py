import random

import pytest

from overlap.bench.netlab.net import parse_net
from overlap.errors import ConfigError


def test_a_rate_is_bits_and_what_tcp_carries_is_a_little_less():
    mbits = random.randint(1, 5000)
    net = parse_net(f" {mbits}Mbit ")
    assert (net.name, net.bits_per_s) == (f"{mbits}mbit", mbits * 1e6)
    assert 0.94 < net.payload_bytes_per_s / (net.bits_per_s / 8) < 0.97


def test_none_has_no_limit():
    net = parse_net("none")
    assert net.bits_per_s is None
    assert net.payload_bytes_per_s is None


@pytest.mark.parametrize("text", ["", "fast", "1", "1gb", "0mbit", "-1gbit", "1 gbit", "1gbit; true"])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match="net must be none or a rate"):
        parse_net(text)
