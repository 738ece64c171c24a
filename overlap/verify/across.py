"""What the ranks must share: the structure of the model, initial values, replicas and buffers.

Each rank reports itself where it differs from the first rank that should have the same; all functions are collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overlap.verify.build import facts_of, unit_of, values_of
from overlap.verify.finding import Spot
from overlap.verify.log import Placed
from overlap.verify.pair import Pair
from overlap.verify.peers import Peers, digest


def structure(first: nn.Module, second: nn.Module, peers: Peers, spot: Spot) -> Iterator[Placed]:
    """Every call of the factory, on every rank, builds the same parameters and buffers."""
    expected = peers.gather(facts_of(first))[0]
    for call, model in (("", first), (" in the second call", second)):
        for place, (mine, theirs) in enumerate(zip_longest(facts_of(model), expected)):
            if mine != theirs:
                name = (mine or theirs)[0]
                met = f"{_fact(mine)}{call} where rank 0 builds {_fact(theirs)}"
                yield place, spot.finding("structure", "", name, met)
                break  # names behind it are only shifted


def _fact(fact: tuple[str, str] | None) -> str:
    return "nothing" if fact is None else " ".join(fact)


def initial_values(model: nn.Module, units: Sequence[str], peers: Peers, spot: Spot) -> Iterator[Placed]:
    """Before sharding; tensors on the meta device have no values yet."""
    mine = {name: digest(tensor) for name, tensor in values_of(model).items() if not tensor.is_meta}
    expected = peers.gather(mine)[0]
    for place, (name, value) in enumerate(mine.items()):
        if value != expected[name]:
            yield place, spot.finding("initial_ranks", unit_of(name, units), name, "")


def replicas(pair: Pair, spot: Spot) -> Iterator[Placed]:
    """Ranks that hold the same part of a parameter hold the same bits."""
    mine = {name: (_part(param), digest(_local(param))) for name, param in pair.public.items()}
    everyone = pair.peers.gather(mine)
    for place, (name, (part, bits)) in enumerate(mine.items()):
        first = next(rank for rank, theirs in enumerate(everyone) if theirs[name][0] == part)
        if everyone[first][name][1] != bits:
            yield place, spot.finding("replica", pair.unit_of(name), name, f"other bits than on rank {first}")


def _local(param: nn.Parameter) -> Tensor:
    return param.to_local() if isinstance(param, DTensor) else param


def _part(param: nn.Parameter) -> tuple[int, ...]:
    """Which part of a parameter this rank holds: its coordinates along the dimensions that split it."""
    if not isinstance(param, DTensor):
        return ()
    places = param.device_mesh.get_coordinate() or ()
    return tuple(place for place, how in zip(places, param.placements, strict=True) if not how.is_replicate())


def buffers(pair: Pair, spot: Spot) -> Iterator[Placed]:
    """Buffers that are not the same on all ranks, though each is right for its rank."""
    mine = {name: digest(buffer) for name, buffer in pair.sharded.model.named_buffers()}
    expected = pair.peers.gather(mine)[0]
    for place, (name, value) in enumerate(mine.items()):
        if expected.get(name) != value:
            yield place, spot.finding("buffer_ranks", pair.unit_of(name), name, "")
