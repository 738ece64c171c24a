import math

import pytest

from overlap.bench.bucket.advice import WIDTH, Advice
from overlap.bench.bucket.tables import Table

MIB = 1 << 20


def table(latency_s=1e-4, bandwidth=200e9, last=30, world=8, op="all_gather"):
    points = tuple((1 << power, latency_s + (1 << power) / bandwidth) for power in range(12, last + 1))
    return Table(label="made up", op=op, world=world, points=points)


def test_the_bucket_by_arithmetic():
    """80 % of the bandwidth: the latency is a fifth of the time, so bytes / bandwidth are four latencies."""
    advice = Advice.of(table(), 0.8)
    assert advice.bucket_bytes == pytest.approx(4 * 1e-4 * 200e9, rel=1e-3)
    assert advice.busbw == pytest.approx(200e9 * 7 / 8, rel=1e-3)


def test_the_share_rises_with_what_is_asked_for():
    sizes = [Advice.of(table(), share).bucket_bytes for share in (0.5, 0.8, 0.9)]
    assert sizes == sorted(sizes)


def test_a_factor_of_the_collective_changes_the_speed_and_not_the_size():
    gather, reduce = (Advice.of(table(op=op), 0.8) for op in ("all_gather", "all_reduce"))
    assert gather.bucket_bytes == reduce.bucket_bytes
    assert reduce.busbw == pytest.approx(2 * gather.busbw)


def test_the_text_has_fit_picture_and_bucket():
    lines = list(Advice.of(table(), 0.8).lines())
    assert lines[0] == "made up, 8 ranks"
    assert any("100.0 us + bytes / 175.00 GB/s" in line for line in lines)
    bars = [line for line in lines if line.endswith(("+", "#"))]
    assert len(bars) == 19
    assert bars[-1].count("#") == pytest.approx(WIDTH, abs=2)
    assert lines[-1].startswith("  recommended bucket: 76.3 MiB, the smallest that reaches 80 % of 175 GB/s")
    assert any(line.startswith("  25 MiB (DDP's default) reach 57 %") for line in lines)


def test_sizes_that_end_too_early_get_none():
    advice = Advice.of(table(last=20), 0.8)
    assert advice.bucket_bytes is None
    assert list(advice.lines())[-1].startswith("  no measured size reaches 80 % of 175 GB/s: 1 MiB come to 5 %")
    assert not any("DDP" in line for line in advice.lines())


def test_latency_alone_has_no_bandwidth():
    flat = Table(label="flat", op="all_gather", world=2, points=tuple((1 << power, 1e-3) for power in range(10, 16)))
    advice = Advice.of(flat, 0.8)
    assert advice.busbw is None
    assert list(advice.lines())[-1].startswith("  no bandwidth")
    assert advice.to_dict()["points"][0]["share"] is None


def test_json_has_the_model_and_its_error():
    told = Advice.of(table(), 0.8).to_dict()
    assert told["regimes"] == [
        {"up_to_bytes": None, "latency_us": pytest.approx(100), "bandwidth_gbps": pytest.approx(200)}
    ]
    assert told["max_error"] < 1e-6
    assert math.isclose(told["points"][-1]["fitted_us"], told["points"][-1]["time_us"], rel_tol=1e-6)
