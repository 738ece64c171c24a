"""The optimizer steps."""

import torch
from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.ops.check.tensors import FLAGS, FLOATS, FP32, check_flat, check_one
from overlap.ops.coefficients import AdamWCoefficients, LionCoefficients, SGDCoefficients
from overlap.ops.scalars import check_step, check_switch, is_whole

STATES = (torch.float32, torch.bfloat16)
CODES = (torch.uint8,)
GROUP, BLOCK = 8, 256
"""Elements that share random words, and that share a scale in ``adamw_8bit``."""


def adamw(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: AdamWCoefficients,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int | None,
    start: int,
    step: int,
) -> None:
    """Refuse buffers and scalars that do not fit together."""
    check_flat("master", master, master, STATES)
    check_flat("exp_avg", exp_avg, master, STATES)
    check_flat("exp_avg_sq", exp_avg_sq, master, (exp_avg.dtype,))
    _check_rest(master, grad, shard, grad_scale, skip, maximize)
    _check_rounding(master, shard, seed, start, step)


def adamw_8bit(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    exp_avg_scale: Tensor,
    exp_avg_sq_scale: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: AdamWCoefficients,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int,
    start: int,
    step: int,
) -> None:
    """Refuse buffers and scalars that do not fit together."""
    check_flat("master", master, master, FP32)
    check_flat("exp_avg", exp_avg, master, CODES)
    check_flat("exp_avg_sq", exp_avg_sq, master, CODES)
    blocks = -(-master.numel() // BLOCK)
    check_flat("exp_avg_scale", exp_avg_scale, master, FP32, blocks)
    check_flat("exp_avg_sq_scale", exp_avg_sq_scale, master, FP32, blocks)
    _check_rest(master, grad, shard, grad_scale, skip, maximize)
    _check_seed(seed)
    _check_place(start, step, BLOCK)


def sgd_momentum(
    master: Tensor,
    momentum_buffer: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: SGDCoefficients,
    nesterov: bool,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int | None,
    start: int,
    step: int,
) -> None:
    """Refuse buffers and scalars that do not fit together."""
    check_flat("master", master, master, STATES)
    check_flat("momentum_buffer", momentum_buffer, master, STATES)
    check_switch("nesterov", nesterov)
    _check_rest(master, grad, shard, grad_scale, skip, maximize)
    _check_rounding(master, shard, seed, start, step)


def lion(
    master: Tensor,
    exp_avg: Tensor,
    grad: Tensor,
    shard: Tensor | None,
    coefficients: LionCoefficients,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    maximize: bool,
    seed: int | None,
    start: int,
    step: int,
) -> None:
    """Refuse buffers and scalars that do not fit together."""
    check_flat("master", master, master, STATES)
    check_flat("exp_avg", exp_avg, master, STATES)
    _check_rest(master, grad, shard, grad_scale, skip, maximize)
    _check_rounding(master, shard, seed, start, step)


def _check_rest(
    master: Tensor, grad: Tensor, shard: Tensor | None, grad_scale: Tensor | None, skip: Tensor | None,
    maximize: bool,
) -> None:  # fmt: skip
    check_flat("grad", grad, master, FLOATS)
    if shard is not None:
        check_flat("shard", shard, master, FLOATS)
    check_one("grad_scale", grad_scale, master, FP32)
    check_one("skip", skip, master, FLAGS)
    check_switch("maximize", maximize)


def _check_rounding(master: Tensor, shard: Tensor | None, seed: int | None, start: int, step: int) -> None:
    if master.dtype == torch.bfloat16:
        if seed is None:
            cure = "pass one per run, the same on every rank"
            raise ConfigError(message("seed", "be given for bfloat16 weights", seed, cure))
        if shard is not None:
            cure = "gather the weights themselves"
            raise ConfigError(message("shard", "be None for bfloat16 weights", "a tensor", cure))
    if seed is not None:
        _check_seed(seed)
    _check_place(start, step, GROUP)


def _check_seed(seed: int) -> None:
    if not is_whole(seed) or not 0 <= seed < 1 << 64:
        cure = "pass one per run, the same on every rank"
        raise ConfigError(message("seed", "be an integer from 0 to 2**64 - 1", seed, cure))


def _check_place(start: int, step: int, multiple: int) -> None:
    if not is_whole(start) or start < 0 or start % multiple:
        cure = "pass the global index of the first element, and cut shards there"
        raise ConfigError(message("start", f"be a multiple of {multiple}, 0 or more", start, cure))
    check_step(step)
