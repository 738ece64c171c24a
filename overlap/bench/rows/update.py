"""What the four optimizer updates share: fresh buffers, and the check against the reference."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from overlap.bench import memory
from overlap.bench.case import Case, Peer, dtype_name
from overlap.bench.timing import Run
from overlap.bench.verify import Buffers, wrong_values
from overlap.ops import reference

STEP, SEED = 3, 0x9E3779B97F4A7C15
LR, WEIGHT_DECAY = 0.1, 0.1
"""A step so large that bf16 shows it: a peer that makes none is told apart."""


@dataclass(frozen=True)
class Shards:
    """One unit's flat buffers on this rank: what an update reads and writes."""

    states: list[Tensor]
    """The weights first, then the optimizer's averages (and their scales)."""
    grad: Tensor
    shard: Tensor | None

    @property
    def buffers(self) -> list[Tensor | None]:
        """All of them, in the order of the ops' arguments."""
        return [*self.states, self.grad, self.shard]

    @property
    def bytes(self) -> int:
        """States read and written, the gradient read, the shard written."""
        written = 0 if self.shard is None else self.shard.nbytes
        return 2 * sum(state.nbytes for state in self.states) + self.grad.nbytes + written

    @property
    def weights(self) -> Tensor:
        """What the next gather sends."""
        return self.states[0] if self.shard is None else self.shard


def fp32_shards(
    elements: int, grad: torch.dtype, shard: torch.dtype | None, device: torch.device, *, averages: int
) -> Shards:
    """Return fp32 weights and averages (the second one positive), gradient and shard."""
    weights = memory.randn(elements, torch.float32, device)
    moments = [memory.randn(elements, torch.float32, device).mul_(0.1) for _ in range(averages)]
    for moment in moments[1:]:
        moment.square_()
    out = None if shard is None else memory.empty(elements, shard, device)
    return Shards([weights, *moments], memory.randn(elements, grad, device), out)


def update_case(
    op: str,
    variant: str,
    shards: Shards,
    *,
    call: Callable[[ModuleType, Buffers, int], None],
    public: Run,
    peers: tuple[Peer, ...],
    block: int = 1,
) -> Case:
    """Build the case of one update.

    Args:
        op: name in ``overlap.ops``.
        variant: what is special about the buffers.
        shards: the buffers.
        call: the op of a face on buffers in the order of ``Shards.buffers``, and the global index of their start.
        public: the op through ``overlap.ops``.
        peers: who else can do it.
        block: elements per scale, for states that have one.
    """

    def wrong(face: ModuleType) -> int:
        run = partial(call, face, shards.buffers, 0)
        return wrong_values(shards.buffers, [shards.shard], run, partial(call, reference), block=block)

    return Case(
        op=op,
        variant=variant,
        dtype=f"{dtype_name(shards.grad.dtype)} -> {dtype_name(shards.weights.dtype)}",
        elements=shards.grad.numel(),
        bytes=shards.bytes,
        bound="triad",
        call=lambda face: call(face, shards.buffers, 0),
        public=public,
        wrong=wrong,
        results=lambda: [shards.states[0]] if shards.shard is None else [shards.states[0], shards.shard],
        peers=peers,
    )
