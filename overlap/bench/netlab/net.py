"""A network as the command line names it: ``none``, or the rate of every host's link."""

import re
from dataclasses import dataclass

from overlap.errors import ConfigError, message

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

PAYLOAD, FRAME = 1448, 1514
"""Bytes of a full TCP segment on Ethernet, and of the frame that carries it: what ``tbf`` lets pass is frames."""


@dataclass(frozen=True, slots=True)
class Net:
    """Links between hosts."""

    name: str
    """As ``tc`` reads a rate, such as ``200mbit``; or ``none``."""
    bits_per_s: float | None
    """Of each host's egress; None is loopback without a limit."""

    @property
    def payload_bytes_per_s(self) -> float | None:
        """What TCP can carry out of one host, headers taken off."""
        return None if self.bits_per_s is None else self.bits_per_s / 8 * PAYLOAD / FRAME


def parse_net(text: str) -> Net:
    """Read ``none`` or a rate such as ``1gbit``, ``200mbit``, ``2.5gbit``.

    Raises:
        ConfigError: it is neither.
    """
    word = text.strip().lower()
    if word == "none":
        return Net(word, None)
    matched = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(kbit|mbit|gbit)", word)
    if matched is None or float(matched[1]) == 0:
        rule, cure = "be none or a rate such as 1gbit or 200mbit", "give bits per second so"
        raise ConfigError(message("net", rule, text, cure))
    return Net(word, float(matched[1]) * BITS[matched[2]])
