"""AdamW over a flat shard: kernels/adamw.py."""

from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.adamw import adamw_kernel
from overlap.ops.coefficients import AdamWCoefficients
from overlap.ops.triton_face.launching import EXACT, on, programs, signed


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
    """See ``overlap.ops.adamw``."""
    size = master.numel()
    if size == 0:
        return
    with on(master.device):
        adamw_kernel[(programs(size, launch.ADAMW.block),)](
            master, exp_avg, exp_avg_sq, grad, shard, grad_scale, skip, size, *coefficients,
            signed(seed), start, step,
            HAS_SHARD=shard is not None, HAS_SCALE=grad_scale is not None, HAS_SKIP=skip is not None,
            MAXIMIZE=maximize, STOCHASTIC=seed is not None, BLOCK=launch.ADAMW.block,
            num_warps=launch.ADAMW.num_warps, **EXACT,
        )  # fmt: skip
