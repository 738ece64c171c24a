"""lion against the same update in plain torch: there is no Lion in torch."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from overlap import ops
from overlap.bench import memory
from overlap.bench.case import Case, Peer
from overlap.bench.rows.update import LR, STEP, WEIGHT_DECAY, Shards, fp32_shards, update_case
from overlap.bench.verify import Buffers
from overlap.ops.coefficients import lion_coefficients

BETA1, BETA2 = 0.9, 0.99
COEFFICIENTS = lion_coefficients(LR, BETA1, BETA2, WEIGHT_DECAY, STEP)


def lion(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield fp32 weights with a bf16 shard."""
    shards = fp32_shards(elements, dtype, torch.bfloat16, device, averages=1)
    weights, exp_avg = shards.states

    def call(face: ModuleType, buffers: Buffers, start: int) -> None:
        face.lion(*buffers, COEFFICIENTS, None, None, False, None, start, STEP)

    def public() -> None:
        options: dict[str, Any] = {"lr": LR, "beta1": BETA1, "beta2": BETA2, "weight_decay": WEIGHT_DECAY, "step": STEP}
        ops.lion(weights, exp_avg, shards.grad, shards.shard, **options)

    yield update_case("lion", "fp32 weights", shards, call=call, public=public, peers=(_plain(shards),))


def _plain(shards: Shards) -> Peer:
    """In place where it can be, with one scratch buffer."""
    weights, average = (memory.copy(state) for state in shards.states)
    grad = memory.empty_like(weights) if shards.grad.dtype != torch.float32 else shards.grad
    direction = memory.empty_like(weights)
    shard = memory.empty_like(shards.weights)

    def run() -> None:
        if grad is not shards.grad:
            grad.copy_(shards.grad)
        torch.lerp(grad, average, BETA1, out=direction).sign_()
        weights.mul_(1 - LR * WEIGHT_DECAY).sub_(direction, alpha=LR)
        average.lerp_(grad, 1 - BETA2)
        shard.copy_(weights)

    passes = 3 + 2 + 2 + 3 + 3 + 1  # fp32 buffers read and written by lerp, sign_, mul_, sub_, lerp_, copy_
    moved = passes * weights.nbytes + shard.nbytes
    moved += 0 if grad is shards.grad else shards.grad.nbytes + grad.nbytes
    return Peer("torch lerp, sign, sub", run, moved, lambda: [weights, shard])
