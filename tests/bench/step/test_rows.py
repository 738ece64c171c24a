import random
from statistics import median

import pytest

from overlap.bench.netlab.net import parse_net
from overlap.bench.step.contenders import FLOOR
from overlap.bench.step.ideal import ideal_bytes, ideal_ms
from overlap.bench.step.reference import loss_error
from overlap.bench.step.results import Outcome, StepReport
from overlap.bench.step.rows import rows_of
from overlap.bench.step.settings import StepSettings
from overlap.comm.volume import wire_bytes

KEYS = {
    "contender",
    "stage",
    "dtype",
    "step_ms",
    "exposed_ms",
    "wire_bytes",
    "peak_bytes",
    "ours_speedup",
    "over_ideal",
    "loss_last",
    "skipped",
}


def outcome(name: str, **given) -> Outcome:
    seconds = [random.uniform(0.1, 1.0) for _ in range(5)]
    return Outcome(**{"contender": name, "seconds": seconds, "losses": [3.0, 2.0], "loss_error": 0.0, **given})


def test_ratios_are_of_medians():
    floor, ours, peer = outcome(FLOOR, losses=[]), outcome("ours-3", ideal_bytes=40e6), outcome("fsdp2")
    peaks = {"ours-3": {"peak_bytes": 7, "start_bytes": 3}}
    settings = StepSettings(net="1gbit", contenders=(FLOOR, "ours-3", "fsdp2"))
    alone, mine, theirs = rows_of(settings, [floor, ours, peer], peaks)
    ms = {seen.contender: 1e3 * median(seen.seconds) for seen in (floor, ours, peer)}
    assert mine.step_ms == pytest.approx(ms["ours-3"])
    assert mine.exposed_ms == pytest.approx(ms["ours-3"] - ms[FLOOR])
    assert theirs.ours_speedup == pytest.approx(ms["fsdp2"] / ms["ours-3"])
    wire_ms = 40e6 / parse_net("1gbit").payload_bytes_per_s * 1e3
    assert mine.over_ideal == pytest.approx(ms["ours-3"] / max(wire_ms, ms[FLOOR]))
    assert (mine.peak_bytes, theirs.peak_bytes) == (7, None)
    assert (alone.exposed_ms, alone.ours_speedup, mine.ours_speedup) == (0.0, None, None)
    assert (alone.loss_last, mine.loss_last) == (None, 2.0)


def test_a_peer_without_ours_beside_it_has_no_ratio():
    settings = StepSettings(contenders=(FLOOR, "fsdp2", "ours-1"))
    rows = rows_of(settings, [outcome(FLOOR), outcome("fsdp2"), outcome("ours-1")], {})
    assert [row.ours_speedup for row in rows] == [None, None, None]


@pytest.mark.parametrize(
    ("counted", "kernel", "by"), [(5, 6, "engine"), (None, 6, "/proc/net/dev"), (None, None, "formula")]
)
def test_bytes_say_who_counted_them(counted, kernel, by):
    seen = outcome("fsdp2", counted_bytes=counted, kernel_bytes=kernel, formula_bytes=7)
    row = rows_of(StepSettings(), [outcome(FLOOR), seen], {})[1]
    assert row.wire_counted_by == by
    assert row.wire_bytes == (counted or kernel or 7)


def test_the_record_has_the_promised_keys_and_a_skipped_row_its_reason(capsys):
    skipped = Outcome(contender="deepspeed-3", skipped="not installed")
    wrong = outcome("ddp", wrong="losses differ")
    rows = rows_of(StepSettings(), [outcome(FLOOR), skipped, wrong], {})
    report = StepReport("none", 2, {"cpu": "some"}, rows)
    record = report.to_dict()
    assert {"net", "ranks", "rows"} <= record.keys()
    assert all(row.keys() >= KEYS for row in record["rows"])
    assert record["rows"][1]["skipped"] == "not installed"
    assert record["rows"][1]["step_ms"] is None
    assert report.wrong == ["ddp"]


def test_ideal_bytes_are_those_of_the_collectives_a_stage_needs():
    world, gather, reduce = random.randint(1, 9), random.choice([2, 4]), random.choice([2, 4])
    params = world * random.randint(1, 10**6)
    gathered = wire_bytes("all_gather", gather * params, world)
    scattered = wire_bytes("reduce_scatter", reduce * params, world)
    for stage, expected in enumerate(
        [2 * scattered, gathered + scattered, gathered + scattered, 2 * gathered + scattered]
    ):
        found = ideal_bytes(stage, params, world, gather_itemsize=gather, reduce_itemsize=reduce)
        assert found == pytest.approx(expected, abs=4)


def test_the_ideal_is_compute_where_nothing_limits_the_wire():
    assert ideal_ms(7.0, 1e12, parse_net("none")) == 7.0


def test_an_error_of_losses_is_relative_and_never_hidden():
    assert loss_error([2.0, 4.0], [2.0, 5.0]) == pytest.approx(0.2)
    assert loss_error([float("nan"), 5.0], [2.0, 5.0]) == float("inf")
    assert loss_error([2.0, float("inf")], [2.0, 5.0]) == float("inf")
