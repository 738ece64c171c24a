"""What runs between the hooks of FSDP2 belongs to the unit: by hand, in CUDA traces, in the recording made here."""

from collections import Counter

import pytest

from overlap.profiling.classify import classifier
from overlap.profiling.fsdp_ranges import module_code
from overlap.profiling.kineto import read_kineto
from overlap.profiling.nesting import HostEvent
from overlap.profiling.rank_report import report
from overlap.profiling.recording import COMPUTE
from overlap.profiling.sources import read_recordings

from .references import FIXTURES
from .traces import event, kernel, launch, write


def mark(name, start, end, thread="1"):
    return HostEvent(f"FSDP::{name}", thread, start, end, {})


def code(*marks):
    return [(one.name, one.thread, one.start_ns, one.end_ns) for one in module_code(marks)]


def test_a_unit_is_its_code_between_its_hooks_and_the_root_holds_the_units():
    assert code(
        mark("root_pre_forward", 0, 1),
        mark("pre_forward", 1, 3),
        mark("pre_forward (a)", 4, 6),
        mark("all_gather (a)", 4, 5),
        mark("post_forward (a)", 9, 10),
        mark("post_forward", 12, 13),
    ) == [("FSDP::forward (a)", "1", 6, 9), ("FSDP::forward", "1", 3, 12)]


def test_backward_ends_with_the_first_hook_after_it_or_with_all_of_backward():
    assert code(
        mark("pre_backward (b)", 0, 2),
        mark("post_backward_accumulate (b)", 5, 6),
        mark("post_backward_reduce (b)", 7, 9),
        mark("pre_backward (a)", 10, 11),
        mark("root_post_backward_callback", 15, 20),
        mark("post_backward_accumulate (a)", 16, 17),
    ) == [("FSDP::backward (b)", "1", 2, 5), ("FSDP::backward (a)", "1", 11, 15)]


def test_branches_of_backward_may_cross():
    assert code(
        mark("pre_backward (a)", 0, 1),
        mark("pre_backward (b)", 2, 3),
        mark("post_backward_accumulate (a)", 5, 6),
        mark("post_backward_accumulate (b)", 8, 9),
    ) == [("FSDP::backward (a)", "1", 1, 5), ("FSDP::backward (b)", "1", 3, 8)]


def test_modules_sharded_as_one_enter_one_by_one_and_leave_together():
    hooks = mark("pre_forward (a, b)", 0, 1), mark("pre_forward (a, b)", 4, 5), mark("post_forward (a, b)", 8, 9)
    assert code(*hooks) == [("FSDP::forward (a, b)", "1", 1, 8)]


@pytest.mark.parametrize(
    "marks",
    [
        [mark("post_forward (a)", 0, 1)],
        [mark("pre_forward (a)", 0, 1)],
        [mark("pre_forward (a)", 0, 1, thread="1"), mark("post_forward (a)", 4, 5, thread="2")],
        [mark("pre_forward (a)", 0, 1), mark("root_pre_forward", 2, 3), mark("post_forward (a)", 4, 5)],
    ],
    ids=["begins within", "ends within", "another thread", "forward raised"],
)
def test_hooks_that_nothing_answers_claim_nothing(marks):
    assert code(*marks) == []


def range_(name, start, dur, tid):
    return event("user_annotation", f"FSDP::{name}", start, dur, tid=tid)


def test_kernels_go_by_their_launch_forward_and_on_the_thread_of_backward(tmp_path):
    path = write(
        tmp_path / "t.json",
        range_("pre_forward", 0, 2, tid=1),
        launch(1, 3),
        range_("pre_forward (a)", 5, 5, tid=1),
        launch(2, 11),
        range_("post_forward (a)", 15, 2, tid=1),
        launch(3, 18),
        range_("post_forward", 20, 1, tid=1),
        launch(4, 22),
        range_("pre_backward (a)", 30, 5, tid=9),
        launch(5, 36, tid=9),
        launch(6, 37, tid=1),
        range_("post_backward_reduce (a)", 40, 5, tid=9),
        launch(7, 41, tid=9),
        # On the device everything runs long after the hooks: what counts is the launch.
        *(kernel(f"k{number}", 100 + 10 * number, 8, correlation=number) for number in range(1, 8)),
    )
    seen = [(one.unit, one.phase) for one in read_kineto(path, classifier()).activities]
    assert seen == [
        ("", "forward"),
        ("a", "forward"),
        ("", "forward"),
        ("", ""),
        ("a", "backward"),
        ("", ""),
        ("a", "post_backward_reduce"),
    ]


def module_operators(which):
    rank = read_recordings(FIXTURES / which, classifier())[0]
    compute = [one for one in rank.activities if one.category == COMPUTE and one.phase in ("forward", "backward")]
    return Counter((one.unit, one.phase, one.name) for one in compute)


def test_the_same_program_under_fsdp2_and_under_ours_has_the_same_operators_in_each_unit():
    fsdp2 = module_operators("gloo_fsdp2")
    assert {unit for unit, _, _ in fsdp2} == {"", "blocks.0", "blocks.1", "blocks.2"}
    assert fsdp2 == module_operators("gloo_overlap")  # whose own ranges are around each module's code


def test_the_units_of_one_thread_add_up_to_all_compute():
    for rank in report(str(FIXTURES / "gloo_fsdp2")).ranks:
        assert sum(row.compute_ns for row in rank.units) == rank.totals.compute_ns
        assert sum(row.comm_ops for row in rank.units) == rank.totals.comm_ops
