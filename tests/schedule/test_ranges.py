"""Ranges of module code nest, close in order, and never outlive their pass."""

from hypothesis import given
from hypothesis import strategies as st

from overlap.schedule.op import EXIT_OF_ENTRY, Kind
from overlap.schedule.ranges import ComputeRanges


class Log:
    def __init__(self):
        self.said, self.open, self.made = [], [], 0

    def scope(self, kind, unit):
        self.made += 1
        return _Scope(self, f"{kind} {unit}")


class _Scope:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        self.log.said.append(f"push {self.name}")
        self.log.open.append(self.name)

    def __exit__(self, *_):
        self.log.said.append(f"pop {self.name}")
        assert self.log.open.pop() == self.name  # NVTX ends the innermost range, whichever is meant


def test_units_nest_in_the_model():
    log = Log()
    ranges = ComputeRanges(log.scope)
    for _ in range(2):
        ranges.enter(Kind.FORWARD, "")
        ranges.enter(Kind.FORWARD, "blocks.0")
        ranges.leave(Kind.FORWARD_END, "blocks.0")
        ranges.leave(Kind.FORWARD_END, "")
    assert log.said == ["push forward ", "push forward blocks.0", "pop forward blocks.0", "pop forward "] * 2
    assert log.made == 2


def test_a_unit_that_ended_without_telling_ends_with_the_one_around_it():
    log = Log()
    ranges = ComputeRanges(log.scope)
    ranges.enter(Kind.BACKWARD, "")
    ranges.enter(Kind.BACKWARD, "a")
    ranges.leave(Kind.BACKWARD_END, "")
    assert log.open == []
    ranges.leave(Kind.BACKWARD_END, "a")  # late: nothing to do
    assert len(log.said) == 4


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "close"]), st.sampled_from(list(EXIT_OF_ENTRY)), st.sampled_from("abc")
    )
)


@given(STEPS)
def test_any_order_of_calls_keeps_ranges_balanced(steps):
    log = Log()
    ranges = ComputeRanges(log.scope)
    for what, kind, unit in steps:
        if what == "enter":
            ranges.enter(kind, unit)
        elif what == "leave":
            ranges.leave(EXIT_OF_ENTRY[kind], unit)
        else:
            ranges.close()
            assert log.open == []
    ranges.close()
    assert log.open == []
    assert len(log.said) % 2 == 0
