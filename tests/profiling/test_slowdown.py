from overlap.profiling.breakdown import cover
from overlap.profiling.lateness import lateness
from overlap.profiling.slowdown import slowdown

from .activities import collective, compute


def runs(starts, took, shape="[1, 1, 1]", **more):
    return [compute(start, start + took, shape=shape, **more) for start in starts]


def test_the_same_kernel_alone_and_beside():
    activities = [*runs([0, 20, 40], 10), *runs([100, 120, 140], 13), *runs([60], 10, name="once")]
    found = slowdown(activities, [(95, 200)])
    assert (found.beside_ns, found.alone_ns, found.kernels) == (39, 30, 3)
    assert found.fraction == 39 / 30 - 1


def test_kernels_of_another_shape_or_unit_are_others():
    activities = [*runs([0, 20, 40], 10, shape="[1]"), *runs([100, 120, 140], 13, shape="[2]")]
    assert slowdown(activities, [(95, 200)]).fraction is None
    activities = [*runs([0, 20, 40], 10, unit="a"), *runs([100, 120, 140], 13, unit="b")]
    assert slowdown(activities, [(95, 200)]).fraction is None


def test_without_shapes_nothing_is_said():
    activities = [*runs([0, 20, 40], 10, shape=""), *runs([100, 120, 140], 13, shape="")]
    assert slowdown(activities, [(95, 200)]).fraction is None


def test_few_samples_say_nothing():
    assert slowdown([*runs([0, 20], 10), *runs([100, 120, 140], 13)], [(95, 200)]).fraction is None
    assert slowdown([], []).fraction is None


def test_a_kernel_only_touched_by_communication_is_neither():
    activities = [*runs([0, 20, 40], 10), *runs([100, 120, 140], 13)]
    found = slowdown(activities, [(103, 104), (121, 140), (140, 150)])
    assert found.kernels == 0


def test_idle_before_the_launch_is_the_hosts():
    activities = [
        compute(0, 10, launched_ns=0),
        compute(30, 40, launched_ns=25),  # idle 10 to 30: late until 25
        compute(50, 60, launched_ns=5),  # idle 40 to 50, launched long before
        compute(70, 80),  # nobody recorded its launch
    ]
    late = lateness(activities, cover(activities))
    assert (late.late_ns, late.idle_ns, late.queued_ns) == (15, 40, 5)


def test_without_launches_nothing_is_said():
    activities = [compute(0, 10), collective(20, 30)]
    assert lateness(activities, cover(activities)) is None
