"""What every optimizer kernel shares: the skip flag, and the gradient as the update sees it.

Each reads a block, computes once, and writes it: only loads and stores are there twice, without a mask for whole
blocks and with one for the last. A block starts at a scalar (int64) and its lanes are int32: one address per stream
serves all of a thread's elements, where 64-bit offsets would take two registers for each.
"""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, negate, widen


@triton.jit
def skipped(skip, HAS_SKIP: tl.constexpr):
    """Whether the flag on the device says so (NaN does): one load per program and no host sync."""
    if HAS_SKIP:
        return tl.load(skip) != 0
    else:
        return False


@triton.jit
def gradient(g, grad_scale, HAS_SCALE: tl.constexpr, MAXIMIZE: tl.constexpr):
    """Return the loaded gradient in fp32, scaled, and negated where the step ascends."""
    g = widen(g)
    if HAS_SCALE:
        g = g * tl.load(grad_scale)
    return negate(g) if MAXIMIZE else g


@triton.jit
def store_shard(shard, start, lanes, mask, p, HAS_SHARD: tl.constexpr):
    """Store the new fp32 weights, rounded to nearest even, where the next gather reads them."""
    if HAS_SHARD:
        tl.store(shard + start + lanes, narrow(p, shard.dtype.element_ty), mask=mask)


@triton.jit
def load_three(master, state, grad, start, lanes, mask):
    """Return a block of the weights, of the one state of sgd_momentum and lion, and of the gradient."""
    p = tl.load(master + start + lanes, mask=mask)
    s = tl.load(state + start + lanes, mask=mask)
    return p, s, tl.load(grad + start + lanes, mask=mask)


@triton.jit
def store_three(master, state, shard, start, lanes, mask, w, s, p, HAS_SHARD: tl.constexpr):
    """Store ``w`` and ``s``, rounded to the dtypes of master and state, and the fp32 weights ``p`` as the shard."""
    tl.store(master + start + lanes, w, mask=mask)
    tl.store(state + start + lanes, s, mask=mask)
    store_shard(shard, start, lanes, mask, p, HAS_SHARD)
