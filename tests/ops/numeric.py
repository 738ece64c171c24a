"""Fresh inputs, and how far a result may be from float64: what the dtypes themselves round away."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from ops.running import interpreted
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
STATES = (torch.float32, torch.bfloat16)
FP32 = torch.finfo(torch.float32)
CPU = torch.device("cpu")

# NumPy, which carries the interpreter, says so when it meets a NaN or an overflow; a GPU does not.
quiet_numpy = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# The fixtures only choose a face: no example uses them up.
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

seeds = st.integers(0, (1 << 64) - 1)
torch_seeds = st.integers(0, (1 << 32) - 1)
floats = st.sampled_from(FLOATS)
shifts = st.integers(0, 9)
"""Elements after an aligned address at which a view starts."""


def sizes(device: torch.device, *, most: int = 50_000) -> st.SearchStrategy[int]:
    """Lengths of flats: none, one, around vectors and blocks, and large ones where they cost nothing."""
    edges = [0, 1, 7, 8, 9, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2048, 4099]
    return st.sampled_from(edges) | st.integers(0, 2000 if interpreted(device) else most)


def values(size: int, dtype: torch.dtype, device: torch.device, *, shift: int = 0) -> Tensor:
    """Normal values; with ``shift`` a view that starts so many elements after an aligned address."""
    return torch.randn(size + shift).to(dtype).to(device)[shift:]


def wild(size: int, dtype: torch.dtype, device: torch.device, *, shift: int = 0, finite: bool = True) -> Tensor:
    """Values of every magnitude that ``dtype`` has, subnormals and zeros of both signs, or else NaN and Inf too."""
    limits = torch.finfo(dtype)
    least, most = torch.tensor([limits.tiny * limits.eps, limits.max], dtype=torch.float64).log2().tolist()
    exponents = torch.rand(size, dtype=torch.float64) * (most - least) + least
    exponents = torch.where(torch.rand(size) < 0.5, torch.randn(size, dtype=torch.float64), exponents)
    drawn = torch.where(torch.rand(size) < 0.5, -1.0, 1.0) * exponents.exp2()
    for rare in (0.0, -0.0) if finite else (0.0, -0.0, float("nan"), float("inf"), -float("inf")):
        drawn[torch.rand(size) < 0.01] = rare
    placed = torch.empty(size + shift, dtype=dtype, device=device)[shift:]
    return placed.copy_(drawn.clamp(-limits.max, limits.max) if finite else drawn)


def poisoned(size: int, dtype: torch.dtype, device: torch.device, *, shift: int = 0) -> Tensor:
    """An output that shows every element that was not written."""
    return torch.full((size + shift,), float("nan"), dtype=dtype, device=device)[shift:]


def placed(tensor: Tensor, device: torch.device, *, shift: int = 0) -> Tensor:
    """A copy on ``device`` that starts ``shift`` elements after an aligned address."""
    room = torch.empty(tensor.numel() + shift, dtype=tensor.dtype, device=device)
    return room[shift:].copy_(tensor)


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
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = one.cpu().contiguous(), other.cpu().contiguous()
    equal = one.view(words) == other.view(words)
    if one.is_floating_point() and one.element_size() > 1:
        equal |= one.isnan() & other.isnan()
    return bool(equal.all())
