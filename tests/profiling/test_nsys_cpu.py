"""Two real exports of Nsight Systems, of 2 ranks on CPU: what they hold, and what a report makes of it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from profiling.test_nsys import write_export

from overlap.errors import ConfigError
from overlap.profiling.breakdown import break_down
from overlap.profiling.classify import classifier
from overlap.profiling.nesting import HostEvent
from overlap.profiling.nsys import read_nsys
from overlap.profiling.nsys_lanes import NOTE, read_lanes
from overlap.profiling.nsys_tables import opened
from overlap.profiling.recording import COMMUNICATION, COMPUTE, OTHER

FOLDER = Path(__file__).parent / "fixtures" / "nsys_cpu"
RECIPE = Path(__file__).parents[2] / "profiles" / "nsys" / "exposed_cpu.sql"
BLOCKS = {f"blocks.{number}" for number in range(4)}


@pytest.fixture(params=sorted(FOLDER.glob("*.sqlite")), ids=lambda path: path.stem)
def export(request):
    return request.param


def test_ranges_carry_domain_name_and_bytes(export):
    with opened(export) as database:
        ranges = database.ranges()
    ours = [one for one in ranges if one.name.startswith("overlap:")]
    assert {one.name for one in ranges} - {one.name for one in ours} == {
        "ProfilerStep#0",
        "ProfilerStep#1",
        "overlap.record:recording",
    }
    gathers = [one for one in ours if one.name == "overlap:gather blocks.1"]
    assert [one.args for one in gathers] == [{"payload": 393216}] * 4  # 2 steps of 2 ranks
    assert len({one.thread for one in gathers}) == 2
    assert {one.args["payload"] for one in ours if one.name == "overlap:pack blocks.1"} == {2 * 393216}


def test_every_rank_has_its_steps_units_and_phases(export):
    ranks = read_nsys(export, classifier())
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert [step.name for step in rank.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
        comm = [one for one in rank.activities if one.category == COMMUNICATION]
        assert {one.unit for one in comm} >= BLOCKS
        assert {(one.phase, one.stream, one.message.collective) for one in comm} == {
            ("gather", "gather", "all_gather"),
            ("reduce", "reduce", "reduce_scatter"),
        }
        compute = [one for one in rank.activities if one.category == COMPUTE]
        assert {one.unit for one in compute if one.phase == "backward"} >= BLOCKS
        assert {one.phase for one in compute} == {"forward", "backward", "pack", "norm", "update"}
        assert {one.phase for one in rank.activities if one.category == OTHER} == {"stall", "settle"}
        assert all(wait.name.startswith("overlap:stall") for wait in rank.waits)
        assert rank.waits
        assert rank.notes == (NOTE,)


def test_the_sql_recipe_says_the_same(export):
    with closing(sqlite3.connect(export)) as database:
        rows = database.execute(RECIPE.read_text(encoding="utf-8")).fetchall()
    for rank, (_, *figures, ratio) in zip(read_nsys(export, classifier()), rows, strict=True):
        totals = break_down(rank.activities)
        assert figures == [totals.span_ns, totals.compute_ns, totals.comm_ns, totals.exposed_comm_ns]
        assert ratio == pytest.approx(totals.ratio, abs=5.1e-4)


def test_a_gather_on_one_rank_moves_nothing_and_other_domains_are_not_ours():
    def event(process: int, name: str, start: int, end: int, size: int) -> HostEvent:
        return HostEvent(name, str((process << 24) + 1), start, end, {"payload": size})

    ranges = [event(7, "overlap:gather", 0, 5, 0), event(8, "overlap:gather", 0, 5, 64), event(9, "other", 0, 5, 0)]
    first, second = read_lanes(ranges, [], {7 << 24: 4, 8 << 24: 3}, classifier(), "")
    assert (first.rank, [one.category for one in first.activities]) == (4, [OTHER])
    assert (second.rank, [one.category for one in second.activities]) == (3, [COMMUNICATION])


def test_where_cuda_was_called_ranges_are_not_taken_for_work(tmp_path):
    tables = {
        "StringIds": [(1, "cudaFree")],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(1, 2, (7 << 24) + 1, 1, 1)],
        "NVTX_EVENTS": [
            (0, 9, 59, "forward", None, (7 << 24) + 1, 1),
            (0, None, 75, "overlap", None, (7 << 24) + 1, 1),
        ],
    }
    write_export(tmp_path / "e.sqlite", tables)
    with pytest.raises(ConfigError, match="must hold kernels or copies of a device"):
        read_nsys(tmp_path / "e.sqlite", classifier())
