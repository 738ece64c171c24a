"""The sweep agrees with looking at every range for every moment."""

from hypothesis import given
from hypothesis import strategies as st

from overlap.profiling.nesting import HostEvent, enclosing, innermost

EVENTS = st.builds(
    lambda thread, start, size: HostEvent(f"{thread} {start} {size}", thread, start, start + size, {}),
    st.sampled_from("ab"),
    st.integers(0, 30),
    st.integers(0, 15),
)
MOMENTS = st.tuples(st.sampled_from("abc"), st.integers(0, 50))


@given(st.lists(EVENTS, max_size=15), st.lists(MOMENTS, max_size=10))
def test_open_ranges_outermost_first(events: list[HostEvent], moments: list[tuple[str, int]]):
    for (thread, at), found in zip(moments, enclosing(events, moments), strict=True):
        open_then = [one for one in events if one.thread == thread and one.start_ns <= at < one.end_ns]
        open_then.sort(key=lambda one: (one.start_ns, -one.end_ns))
        assert list(found) == open_then


@given(st.lists(EVENTS, max_size=15))
def test_a_moment_belongs_to_the_innermost_range_alone(events: list[HostEvent]):
    moments = [(thread, at) for thread in "ab" for at in range(50)]
    pieces = innermost(events)
    for open_then, (thread, at) in zip(enclosing(events, moments), moments, strict=True):
        here = [one.name for one in pieces if one.thread == thread and one.start_ns <= at < one.end_ns]
        assert here == [one.name for one in open_then[-1:]]
