"""adamw against torch's fused AdamW and DeepSpeed's CPUAdam, each with the casts that a mixed-precision step needs."""

from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from overlap import ops
from overlap.bench import memory
from overlap.bench.case import Case, Peer, dtype_name
from overlap.bench.peers_deepspeed import cpu_adam
from overlap.bench.rows.casting import with_casts
from overlap.bench.rows.update import LR, SEED, STEP, WEIGHT_DECAY, Shards, fp32_shards, update_case
from overlap.bench.verify import Buffers
from overlap.ops.coefficients import adamw_coefficients

BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
OPTIONS: dict[str, Any] = {
    "lr": LR,
    "beta1": BETA1,
    "beta2": BETA2,
    "eps": EPS,
    "weight_decay": WEIGHT_DECAY,
    "step": STEP,
}
THEIR_OPTIONS: dict[str, Any] = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": WEIGHT_DECAY}
COEFFICIENTS = adamw_coefficients(LR, BETA1, BETA2, EPS, WEIGHT_DECAY, STEP)


def adamw(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield fp32 weights with a bf16 shard, without one (for fp32 gradients), and bf16 weights, with bf16 averages."""
    yield _case("fp32 weights", fp32_shards(elements, dtype, torch.bfloat16, device, averages=2), None)
    if dtype == torch.float32:
        yield _case("fp32 weights, no shard", fp32_shards(elements, dtype, None, device, averages=2), None)
    wide = fp32_shards(elements, dtype, None, device, averages=2)
    weights, *averages = wide.states
    yield _case("bf16 weights", Shards([memory.copy(weights, torch.bfloat16), *averages], wide.grad, None), SEED)
    narrow = [memory.copy(state, torch.bfloat16) for state in wide.states]
    yield _case("bf16 weights and averages", Shards(narrow, wide.grad, None), SEED)


def _case(variant: str, shards: Shards, seed: int | None) -> Case:
    weights, first, second = shards.states

    def call(face: ModuleType, buffers: Buffers, start: int) -> None:
        face.adamw(*buffers, COEFFICIENTS, None, None, False, seed, start, STEP)

    return update_case(
        "adamw",
        variant if seed is None else f"{variant}, stochastic",
        shards,
        call=call,
        public=lambda: ops.adamw(weights, first, second, shards.grad, shards.shard, **OPTIONS, seed=seed),
        peers=adam_peers(shards, first, second),
    )


def adam_peers(shards: Shards, exp_avg: Tensor, exp_avg_sq: Tensor) -> tuple[Peer, ...]:
    """Return torch's and, on CPU, DeepSpeed's; all start from the given averages."""
    averages = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    peers = [_fused(shards, averages, dtype) for dtype in dict.fromkeys((torch.float32, exp_avg.dtype))]
    if shards.grad.device.type == "cpu":
        peers.append(_deepspeed(shards, averages))
    return tuple(peers)


def _fused(shards: Shards, averages: dict[str, Tensor], dtype: torch.dtype) -> Peer:
    """In bf16 it rounds to nearest, which loses small updates: as many bytes, other results."""
    name = "torch AdamW(fused)" if dtype == torch.float32 else f"torch AdamW(fused) in {dtype_name(dtype)}, to nearest"
    make = partial(torch.optim.AdamW, fused=True, **THEIR_OPTIONS)
    step = torch.tensor(float(STEP - 1), device=shards.grad.device)
    return with_casts(name, make, shards, averages, step=step, dtype=dtype)


def _deepspeed(shards: Shards, averages: dict[str, Tensor]) -> Peer:
    optimizer, missing = cpu_adam()
    if optimizer is None:
        return Peer("DeepSpeed CPUAdam", None, missing=missing)
    return with_casts("DeepSpeed CPUAdam", partial(optimizer, **THEIR_OPTIONS), shards, averages, step=STEP - 1)
