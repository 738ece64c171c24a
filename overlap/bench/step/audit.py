"""Which collectives a contender really calls: peers have been seen to run something else than they were asked for.

torch's profiler names what gloo is given, below every library's own layers, C++ reducers included: there a
reduce-scatter shows as the all-reduce that gloo makes of it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from torch.profiler import ProfilerActivity, profile

from overlap.comm.volume import Collective, wire_bytes

PREFIX = "gloo:"
ITEM_BYTES = {
    "float": 4,
    "double": 8,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "long int": 8,
    "int": 4,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
}
"""By the profiler's name of a tensor's dtype."""
COUNTED: dict[str, Collective] = {"all_gather": "all_gather", "all_reduce": "all_reduce", "broadcast": "broadcast"}


@dataclass(frozen=True)
class Audit:
    """Collectives of one step."""

    calls: dict[str, int]
    """By gloo's name."""
    formula_bytes: int
    """What a bandwidth-optimal algorithm of each would send from this rank, point-to-point messages apart."""


def audit(step: Callable[[], object], world: int) -> Audit:
    """Run one step under the profiler."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiler:
        step()
    kineto: Any = profiler.profiler
    events = [event for event in kineto.kineto_results.events() if event.name().startswith(PREFIX)]
    calls = Counter(event.name().removeprefix(PREFIX) for event in events)
    sent = sum(_sent(event, world) for event in events)
    return Audit(dict(calls), sent)


def _sent(event: Any, world: int) -> int:
    name = event.name().removeprefix(PREFIX)
    if name not in COUNTED:
        return 0
    nbytes = sum(
        prod(shape) * ITEM_BYTES[kind] for shape, kind in zip(event.shapes(), event.dtypes(), strict=True) if kind
    )
    # Gloo's all_gather is given this rank's part; the size of a collective is that of the whole.
    return wire_bytes(COUNTED[name], nbytes * (world if name == "all_gather" else 1), world)
