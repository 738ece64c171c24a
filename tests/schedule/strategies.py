"""Random models and passes for property tests."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from schedule.models import Call, Model, Recompute, backward, build, forward
from schedule.virtual_gpu import newest, oldest

from overlap.schedule.op import Position
from overlap.schedule.plan import Plan
from overlap.schedule.planner import make_plan

orders = st.one_of(st.sampled_from([oldest, newest]), st.randoms(use_true_random=False).map(lambda r: r.choice))
"""In which order virtual streams run."""


@st.composite
def trees(draw: st.DrawFn, max_leaves: int = 8) -> list[list[int]]:
    """Children per unit: a root around leaves, some of them grouped inside a unit of their own."""
    children: list[list[int]] = [[]]
    left = draw(st.integers(1, max_leaves))
    while left:
        group = draw(st.integers(1, min(left, 3)))
        left -= group
        parent = 0
        if draw(st.booleans()):
            parent = len(children)
            children[0].append(parent)
            children.append([])
        for _ in range(group):
            children[parent].append(len(children))
            children.append([])
    return children


@st.composite
def models(draw: st.DrawFn, max_leaves: int = 8, *, exact_ring: bool = False) -> Model:
    """Any model; with ``exact_ring`` at stage 3 with prefetch + 1 slots, as the engine lays it out."""
    children = draw(trees(max_leaves))
    prefetch = draw(st.integers(1, 4))
    resident = not exact_ring and draw(st.integers(0, 3)) == 0
    ring = None if exact_ring or resident else draw(st.integers(2, 6))
    return build(
        children,
        prefetch=prefetch,
        ring=ring,
        buckets=draw(st.lists(st.integers(0, 3), min_size=len(children), max_size=len(children))),
        buffers=draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)),
        empty=frozenset(draw(st.lists(st.integers(0, len(children) - 1), max_size=2))),
        resident=resident,
        replicas=draw(st.booleans()),
    )


@st.composite
def calls(draw: st.DrawFn, model: Model, unit: int = 0) -> Call:
    """A forward in module order, where blocks may be called twice."""
    inner = []
    for child in model.children[unit]:
        times = 2 if draw(st.integers(0, 4)) == 0 else 1
        inner += [draw(calls(model, child)) for _ in range(times)]
    return Call(unit, tuple(inner))


@st.composite
def wild_calls(draw: st.DrawFn, model: Model, unit: int = 0) -> Call:
    """A forward that respects the tree and nothing else: units skipped, repeated, in any order."""
    children = model.children[unit]
    if not children:
        return Call(unit)
    chosen = draw(st.lists(st.sampled_from(children), max_size=len(children) + 2))
    return Call(unit, tuple(draw(wild_calls(model, child)) for child in chosen))


@st.composite
def recomputes(draw: st.DrawFn, model: Model) -> Recompute:
    """Some leaves are recomputed, in either way."""
    leaves = [n for n, unit in enumerate(model.spec.units) if unit.leaf]
    chosen = draw(st.lists(st.sampled_from(leaves), unique=True))
    ahead = frozenset(unit for unit in chosen if draw(st.booleans()))
    return Recompute(ahead, frozenset(chosen) - ahead)


@st.composite
def records(draw: st.DrawFn, model: Model) -> list[Position]:
    """What a pass records: forward only, or a whole step."""
    call = draw(calls(model))
    if draw(st.integers(0, 4)) == 0:
        return forward(call)
    return forward(call) + backward(model, call, draw(recomputes(model)))


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made from."""

    model: Model
    record: list[Position]
    stale: bool
    plan: Plan

    def __repr__(self) -> str:
        return f"Planned(stale={self.stale}, units={self.model.spec.units})\n{self.plan.table()}"


@st.composite
def plans(draw: st.DrawFn, max_leaves: int = 8) -> Planned:
    """The plan of any pass over any model."""
    model = draw(models(max_leaves))
    record = draw(records(model))
    stale = draw(st.booleans())
    plan = make_plan(model.spec, record, mode="train", prefetch=model.prefetch, stale=stale)
    return Planned(model, record, stale, plan)
