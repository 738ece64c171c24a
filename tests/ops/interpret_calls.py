"""Run every call of face_calls.py in Triton's interpreter and on the reference, and print those that differ.

Run by test_aot.py with another Triton than the one installed. Usage: python -m ops.interpret_calls, with tests/ on
PYTHONPATH and TRITON_INTERPRET=1.
"""

import torch
import triton
from ops.face_calls import CALLS, Call
from ops.numeric import same_bits
from torch import Tensor

from overlap.ops import reference, triton_face


def cloned(argument: object) -> object:
    """Copy tensors, with their strides, and lists of them."""
    if isinstance(argument, list):
        return [cloned(each) for each in argument]
    return argument.clone(memory_format=torch.preserve_format) if isinstance(argument, Tensor) else argument


def tensors_in(arguments: list) -> list[Tensor]:
    """Flatten lists."""
    nested = [each if isinstance(each, list) else [each] for each in arguments]
    return [each for group in nested for each in group if isinstance(each, Tensor)]


def agree(one: Tensor, other: Tensor) -> bool:
    """Bit for bit; fp64 holds sums of squares, which every face adds in an order of its own."""
    if one.dtype == torch.float64:
        return bool(torch.isclose(one, other, rtol=1e-12, atol=0.0).all())
    return same_bits(one, other)


def differs(call: Call, size: int, scalars: int) -> bool:
    ours = call.arguments(size, scalars)
    theirs = cloned(ours)
    getattr(triton_face, call.op)(*ours)
    getattr(reference, call.op)(*theirs)
    return not all(map(agree, tensors_in(ours), tensors_in(theirs)))


if __name__ == "__main__":
    print("triton", triton.__version__)
    for call in CALLS:
        for size, scalars in ((1, 1 << 33), (3000, 3)):
            if differs(call, size, scalars):
                print(f"{call.label}, size {size}, scalars {scalars}")
