"""Lion over a flat shard: kernels/lion.py."""

from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.lion import lion_kernel
from overlap.ops.coefficients import LionCoefficients
from overlap.ops.triton_face.launching import EXACT, on, programs, signed


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
    """See ``overlap.ops.lion``."""
    size = master.numel()
    if size == 0:
        return
    with on(master.device):
        lion_kernel[(programs(size, launch.LION.block),)](
            master, exp_avg, grad, shard, grad_scale, skip, size, *coefficients, signed(seed), start, step,
            HAS_SHARD=shard is not None, HAS_SCALE=grad_scale is not None, HAS_SKIP=skip is not None,
            MAXIMIZE=maximize, STOCHASTIC=seed is not None, BLOCK=launch.LION.block,
            num_warps=launch.LION.num_warps, **EXACT,
        )  # fmt: skip
