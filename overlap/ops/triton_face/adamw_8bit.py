"""AdamW with 8-bit moments: kernels/adamw_8bit.py."""

from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.adamw_8bit import adamw_8bit_kernel
from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.triton_face.launching import EXACT, on, programs, signed


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
    """See ``overlap.ops.adamw_8bit``."""
    size, shape = master.numel(), launch.ADAMW_8BIT
    if size == 0:
        return
    with on(master.device):
        adamw_8bit_kernel[(programs(size, shape.block),)](
            master, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, grad, shard, grad_scale, skip, size,
            *coefficients, signed(seed), start, step,
            HAS_SHARD=shard is not None, HAS_SCALE=grad_scale is not None, HAS_SKIP=skip is not None,
            MAXIMIZE=maximize, BLOCK=shape.block, num_warps=shape.num_warps, **EXACT,
        )  # fmt: skip
