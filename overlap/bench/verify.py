"""Counting wrong values: every bit of every element against the reference, in chunks.

The reference runs on the CPU whatever the device: its bits are those that tests hold to float64, and CUDA's own
elementwise kernels round a few operations (division by a scalar) otherwise.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CHUNK = 1 << 22
"""Elements compared at a time: a multiple of every block of the ops, small beside the buffers."""

Buffers = Sequence[Tensor | None]


def wrong_values(
    buffers: Buffers,
    outputs: Buffers,
    run: Callable[[], None],
    truth: Callable[[Buffers, int], None],
    *,
    block: int = 1,
) -> int:
    """Run an elementwise op and count the values that it should have left otherwise, inputs included.

    Args:
        buffers: every tensor the op reads or writes, 1-D; None for an argument that is left out. The first has one
            value per element; shorter ones have one value per block.
        outputs: those that are written only; poisoned first.
        run: the op on ``buffers``.
        truth: the reference on CPU copies of a part of ``buffers``, and the index of its first element.
        block: elements of a block.
    """
    for output in outputs:
        if output is not None:
            poison(output)
    before = [None if buffer is None else buffer.clone() for buffer in buffers]
    run()
    assert buffers[0] is not None
    elements, wrong = buffers[0].numel(), 0
    steps = [1 if buffer is None or buffer.numel() == elements else block for buffer in buffers]
    for start in range(0, elements, CHUNK):
        part = [_part(buffer, start, step) for buffer, step in zip(before, steps, strict=True)]
        truth(part, start)
        got = [_part(buffer, start, step) for buffer, step in zip(buffers, steps, strict=True)]
        wrong += sum(differing(*pair) for pair in zip(got, part, strict=True))
    return wrong


def _part(buffer: Tensor | None, start: int, step: int) -> Tensor | None:
    return None if buffer is None else buffer[start // step : (start + CHUNK) // step].cpu()


def poison(tensor: Tensor) -> None:
    """Fill with what no op leaves behind: NaN, or the most negative integer."""
    if tensor.dtype.is_floating_point and tensor.element_size() > 1:
        tensor.fill_(torch.nan)
    else:
        tensor.view(torch.int8).fill_(-128)


def differing(got: Tensor | None, want: Tensor | None) -> int:
    """Count the values whose bits differ; any NaN equals any NaN."""
    if got is None or want is None:
        return 0
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    got, want = got.detach().cpu().contiguous(), want.detach().cpu().contiguous()
    same = got.view(words) == want.view(words)
    if got.dtype.is_floating_point and got.element_size() > 1:
        same |= got.isnan() & want.isnan()
    return same.numel() - int(same.sum())
