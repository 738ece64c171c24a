"""SGD with momentum over a flat shard: kernels/sgd_momentum.py."""

from torch import Tensor

from overlap.kernels import launch
from overlap.kernels.sgd_momentum import sgd_momentum_kernel
from overlap.ops.coefficients import SGDCoefficients
from overlap.ops.triton_face.launching import EXACT, on, programs, signed


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
    """See ``overlap.ops.sgd_momentum``."""
    size = master.numel()
    if size == 0:
        return
    with on(master.device):
        sgd_momentum_kernel[(programs(size, launch.SGD_MOMENTUM.block),)](
            master, momentum_buffer, grad, shard, grad_scale, skip, size, *coefficients, signed(seed), start, step,
            NESTEROV=nesterov, HAS_SHARD=shard is not None, HAS_SCALE=grad_scale is not None,
            HAS_SKIP=skip is not None, MAXIMIZE=maximize, STOCHASTIC=seed is not None,
            BLOCK=launch.SGD_MOMENTUM.block, num_warps=launch.SGD_MOMENTUM.num_warps, **EXACT,
        )  # fmt: skip
