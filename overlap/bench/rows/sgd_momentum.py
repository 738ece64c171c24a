"""sgd_momentum against torch's fused SGD with the casts that a mixed-precision step needs."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from overlap import ops
from overlap.bench.case import Case
from overlap.bench.rows.casting import with_casts
from overlap.bench.rows.update import LR, STEP, WEIGHT_DECAY, fp32_shards, update_case
from overlap.bench.verify import Buffers
from overlap.ops.coefficients import sgd_coefficients

MOMENTUM = 0.9
COEFFICIENTS = sgd_coefficients(LR, MOMENTUM, 0.0, WEIGHT_DECAY, STEP)


def sgd_momentum(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield fp32 weights with a bf16 shard."""
    shards = fp32_shards(elements, dtype, torch.bfloat16, device, averages=1)
    weights, momentum_buffer = shards.states

    def call(face: ModuleType, buffers: Buffers, start: int) -> None:
        face.sgd_momentum(*buffers, COEFFICIENTS, False, None, None, False, None, start, STEP)

    def public() -> None:
        options: dict[str, Any] = {"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY, "step": STEP}
        ops.sgd_momentum(weights, momentum_buffer, shards.grad, shards.shard, **options)

    fused = with_casts(
        "torch SGD(fused)",
        lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True),
        shards,
        {"momentum_buffer": shards.states[1]},
        step=None,
    )
    yield update_case("sgd_momentum", "fp32 weights", shards, call=call, public=public, peers=(fused,))
