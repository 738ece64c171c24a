"""What is compared in a step, each check with its findings in the order of cause and effect.

    edited -> forward, loss -> gradients, backwards -> parameters, replicas, buffers

Checks that read whole parameters are collectives: they go through all names in one order, whatever they find.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from torch import Tensor

from overlap.verify.compare import Difference, Rule, all_finite, difference
from overlap.verify.cures import Kind
from overlap.verify.finding import Spot
from overlap.verify.log import Placed
from overlap.verify.pair import Pair, Pass
from overlap.verify.peers import whole
from overlap.verify.recorder import Event
from overlap.verify.tolerance import Tolerance, nothing


def initial_values(pair: Pair, spot: Spot) -> Iterator[Placed]:
    """Sharding keeps what the factory gave, to the bit."""
    buffers = dict(pair.twin.module.named_buffers())
    mine = {name: whole(param) for name, param in pair.public.items()}
    mine |= dict(pair.sharded.model.named_buffers())
    for place, (name, expected) in enumerate({**pair.twin.masters, **buffers}.items()):
        met = difference(mine[name], expected.detach(), nothing)
        if met is not None:
            yield place, spot.finding("initial", pair.unit_of(name), name, met)


def weights(pair: Pair, spot: Spot, kind: Kind, tolerance: Tolerance) -> Iterator[Placed]:
    """Parameters against the twin's: after an update, or (``edited``) between two of them. A collective."""
    for place, (name, master) in enumerate(pair.twin.masters.items()):
        met = difference(whole(pair.public[name]), master.detach(), tolerance.of_weight)
        if met is not None:
            yield place, spot.finding(kind, pair.unit_of(name), name, met)


def forward(mine: Pass, theirs: Pass, spot: Spot, tolerance: Tolerance) -> Iterator[Placed]:
    """The first input or output of a unit that differs, then the loss if no unit does: the rest follows from it."""
    for place, (ours, plain) in enumerate(zip_longest(mine.events, theirs.events)):
        if ours is None or plain is None or (ours.unit, ours.what) != (plain.unit, plain.what):
            unit = ours.unit if ours is not None else plain.unit
            yield (
                place,
                spot.finding("order", unit, "", f"{_step_of(ours)} where the unsharded model {_step_of(plain)}"),
            )
            return
        for number, (got, expected) in enumerate(zip_longest(ours.tensors, plain.tensors)):
            met = _met(got, expected, tolerance.of_forward)
            if met is not None:
                yield place, spot.finding("forward", ours.owner, _name(ours, number), met)
                return
    met = difference(mine.loss, theirs.loss, tolerance.of_forward)
    if met is not None:
        yield len(mine.events), spot.finding("loss", "", "loss", met)


def _met(got: Tensor | None, expected: Tensor | None, rule: Rule) -> Difference | str | None:
    """As ``difference``, where either may be missing."""
    if got is None:
        return None if expected is None else "none where the unsharded model has one"
    return "one where the unsharded model has none" if expected is None else difference(got, expected, rule)


def _step_of(event: Event | None) -> str:
    if event is None:
        return "ends"
    return f"{'enters' if event.what == 'input' else 'leaves'} {event.unit or '(root)'}"


def _name(event: Event, number: int) -> str:
    """An input that differs was made by the owner, so the unit that takes it must be named beside."""
    name = f"{event.what}[{number}]"
    return name if event.owner == event.unit else f"{name} of {event.unit}"


def gradients(pair: Pair, spot: Spot, order: list[str], tolerance: Tolerance) -> Iterator[Placed]:
    """Reduced gradients against the mean over ranks of the twins'; ``order`` is that of backward. A collective."""
    places = {name: place for place, name in enumerate(order)}
    for name, master in pair.twin.masters.items():
        got = pair.public[name].grad
        mine = None if got is None else whole(got).float()
        theirs = None if master.grad is None else master.grad.float()
        met = _met(mine, theirs, tolerance.of_gradient)
        if met is not None:
            yield places.get(name, len(places)), spot.finding("gradient", pair.unit_of(name), name, met)


def buffers(pair: Pair, spot: Spot, tolerance: Tolerance) -> Iterator[Placed]:
    """Buffers of this rank against its twin's, which has seen the same batches."""
    theirs = dict(pair.twin.module.named_buffers())
    for place, (name, buffer) in enumerate(pair.sharded.model.named_buffers()):
        met = _met(buffer, theirs.get(name), tolerance.of_forward)
        if met is not None:
            yield place, spot.finding("buffer", pair.unit_of(name), name, met)


def finiteness(pair: Pair, mine: Pass, spot: Spot) -> Iterator[Placed]:
    """The first loss or gradient that is no number any more."""
    if not all_finite(mine.loss):
        yield 0, spot.finding("not_finite", "", "loss", f"{mine.loss.item()}")
        return
    for name, master in pair.twin.masters.items():
        if master.grad is not None and not all_finite(master.grad):
            yield 1, spot.finding("not_finite", pair.unit_of(name), name, "in its gradient")
            return
