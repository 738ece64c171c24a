"""Fresh inputs, and how far a result may be from float64: what the dtypes themselves round away."""

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP32 = torch.finfo(torch.float32)


def values(size: int, dtype: torch.dtype, device: torch.device, *, shift: int = 0) -> Tensor:
    """Normal values; with ``shift`` a view that starts so many elements after an aligned address."""
    return torch.randn(size + shift).to(dtype).to(device)[shift:]


def poisoned(size: int, dtype: torch.dtype, device: torch.device, *, shift: int = 0) -> Tensor:
    """An output that shows every element that was not written."""
    return torch.full((size + shift,), float("nan"), dtype=dtype, device=device)[shift:]


def assert_rounded(got: Tensor, want: Tensor, magnitude: Tensor, operations: int) -> None:
    """Check ``got`` against float64 ``want``.

    ``magnitude`` bounds every intermediate value of the ``operations`` roundings in float32; the last one
    rounds to the dtype of ``got``.
    """
    target = torch.finfo(got.dtype)
    allowed = want.abs() * target.eps / 2 + magnitude.abs() * operations * FP32.eps + target.tiny * target.eps
    error = (got.double() - want).abs()
    worst = (error - allowed).max() if got.numel() else torch.zeros(())
    assert worst <= 0, f"worst excess {worst.item():.3g}, worst error {error.max().item():.3g}"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bits; any NaN equals any NaN."""
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    one, other = one.cpu().contiguous(), other.cpu().contiguous()
    equal = (one.view(words) == other.view(words)) | (one.isnan() & other.isnan())
    return one.dtype == other.dtype and bool(equal.all())
