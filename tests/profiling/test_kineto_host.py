"""Traces without a device: what counts as compute, what as communication, and whose it is."""

import pytest

from overlap.profiling.classify import classifier
from overlap.profiling.kineto import read_kineto
from overlap.profiling.rank_report import measure_rank
from overlap.profiling.recording import COMMUNICATION, COMPUTE
from overlap.profiling.selection import ReportOptions
from overlap.profiling.skew import match
from overlap.profiling.sources import read_recordings

from .references import FIXTURES
from .traces import event, write


def read(path):
    return read_kineto(path, classifier())


def op(name, start, dur, tid=1, **args):
    return event("cpu_op", name, start, dur, tid=tid, **args)


def range_(name, start, dur, tid=1, **args):
    return event("user_annotation", name, start, dur, tid=tid, **args)


def seen(recording):
    return [(one.name, one.category, one.start_ns, one.end_ns) for one in recording.activities]


def test_outermost_operators_compute_and_wrappers_do_not(tmp_path):
    path = write(
        tmp_path / "t.json",
        op("autograd::engine::evaluate_function: AddmmBackward0", 0, 50),
        op("AddmmBackward0", 1, 40),
        op("aten::mm", 2, 10),
        op("aten::resolve_conj", 3, 1),
        op("c10d::allreduce_", 60, 5),
        op("overlap::adamw", 70, 5),
        range_("gloo:all_reduce", 62, 20, tid=2),
        op("aten::copy_", 63, 2, tid=2),
    )
    assert seen(read(path)) == [
        ("aten::mm", COMPUTE, 2_000, 12_000),
        ("gloo:all_reduce", COMMUNICATION, 62_000, 82_000),
        ("overlap::adamw", COMPUTE, 70_000, 75_000),
    ]


def test_a_lane_of_ours_is_one_communication_with_its_unit(tmp_path):
    path = write(
        tmp_path / "t.json",
        range_("overlap:gather blocks.1", 0, 30, tid=2),
        range_("gloo:send", 5, 20, tid=2),
        range_("overlap:forward blocks.0", 0, 40),
        op("aten::linear", 10, 5),
        range_("overlap:pack blocks.0", 50, 10),
        op("aten::copy_", 51, 2),
    )
    gather, linear, pack = read(path).activities
    assert (gather.unit, gather.phase, gather.library) == ("blocks.1", "gather", "overlap")
    assert (gather.message.collective, gather.message.group) == ("all_gather", "overlap:gather")
    assert (linear.unit, linear.phase, linear.category) == ("blocks.0", "forward", COMPUTE)
    assert (pack.name, pack.unit, pack.phase, pack.category) == ("overlap:pack blocks.0", "blocks.0", "pack", COMPUTE)


def test_work_of_gloos_threads_belongs_to_the_call(tmp_path):
    path = write(
        tmp_path / "t.json",
        range_("FSDP::all_gather (layers.0)", 0, 20),
        op("c10d::_allgather_base_", 5, 3),
        range_("gloo:all_gather", 9, 30, tid=7, **{"Input Dims": [[100]], "Input type": ["float"]}),
        range_("FSDP::all_gather (layers.1)", 20, 20),
        op("c10d::_allgather_base_", 25, 3),
        range_("gloo:all_gather", 29, 30, tid=8, **{"Input Dims": [[50]], "Input type": ["float"]}),
        distributedInfo={"rank": 0, "world_size": 2},
    )
    first, second = read(path).activities
    assert [(one.unit, one.phase, one.launched_ns) for one in (first, second)] == [
        ("layers.0", "all_gather", 5_000),
        ("layers.1", "all_gather", 25_000),
    ]
    assert (first.message.bytes, first.message.world) == (800, 2)


def test_calls_that_cannot_be_told_apart_are_not_guessed(tmp_path):
    path = write(
        tmp_path / "t.json",
        range_("FSDP::all_gather (layers.0)", 0, 20),
        op("c10d::_allgather_base_", 5, 3),
        range_("gloo:all_gather", 9, 3, tid=7),
        range_("gloo:all_gather", 19, 3, tid=7),
    )
    assert [(one.unit, one.launched_ns) for one in read(path).activities] == [("", None)] * 2


def test_a_program_that_does_not_communicate_is_nothing_to_report_on(tmp_path):
    assert read(write(tmp_path / "t.json", op("aten::mm", 0, 5))).activities == ()


@pytest.fixture(params=["gloo_fsdp2", "gloo_overlap"])
def recorded(request):
    return request.param, read_recordings(FIXTURES / request.param, classifier())


def test_recordings_of_two_ranks_here(recorded):
    which, ranks = recorded
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        totals = measure_rank(rank, ReportOptions(window="steps")).totals
        assert totals.compute_ns > 0
        assert totals.exposed_comm_ns > 0
        units = {one.unit for one in rank.activities if one.category == COMMUNICATION}
        assert {"blocks.0", "blocks.1", "blocks.2"} <= units
    skew = match({rank.rank: rank.activities for rank in ranks})
    assert skew.note == ""
    assert len(skew.collectives) == (16 if which == "gloo_overlap" else 22)


def test_every_planned_op_of_ours_carries_unit_and_phase():
    for rank in read_recordings(FIXTURES / "gloo_overlap", classifier()):
        phases = {}
        for one in rank.activities:
            phases.setdefault(one.unit, set()).add(one.phase)
        for unit in ("blocks.0", "blocks.1", "blocks.2"):
            assert phases[unit] >= {"gather", "forward", "backward", "pack", "reduce", "update"}
        assert {"pack", "reduce"} <= phases["replicated"]
        assert all(one.unit or one.phase for one in rank.activities if one.category == COMMUNICATION)
