"""Newton-Schulz against singular values, against torch, and at its edges."""

import pytest
import torch
from torch import nn

from overlap.optim.newton_schulz import newton_schulz

SHAPES = ((5, 5), (37, 16), (16, 37), (1, 9), (9, 1), (128, 48))
PRECISE = {"dtype": torch.float32, "steps": 5, "eps": 1e-7}


def _matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_keeps_the_singular_vectors_and_evens_out_the_values(shape: tuple[int, int]) -> None:
    matrix = _matrix(*shape)
    result = newton_schulz(matrix, **PRECISE)
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    inside = left.mT @ result.double() @ right.mT
    evened = inside.diagonal()
    torch.testing.assert_close(inside, torch.diag(evened), rtol=0, atol=1e-5)
    good = values > 0.02 * values.max()  # what is smaller still grows
    assert ((evened > 0.6) & (evened < 1.3))[good].all()


@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_equals_torch_to_the_bit(shape: tuple[int, int]) -> None:
    """Torch's Muon at momentum 0 and rate 1 shows what its Newton-Schulz gives."""
    param = nn.Parameter(torch.zeros(shape))
    param.grad = _matrix(*shape)
    torch.optim.Muon([param], lr=1.0, weight_decay=0.0, momentum=0.0).step()
    result = newton_schulz(param.grad, torch.bfloat16, steps=5, eps=1e-7)
    factor = max(1, shape[0] / shape[1]) ** 0.5
    assert torch.equal(param.detach(), torch.zeros(shape).add_(result, alpha=-factor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stack_is_worked_on_matrix_by_matrix(dtype: torch.dtype) -> None:
    stack = torch.stack([_matrix(12, 20, seed=seed) * 10.0**seed for seed in range(-3, 4)])
    apart = torch.stack([newton_schulz(matrix, dtype, steps=5, eps=1e-7) for matrix in stack])
    assert torch.equal(newton_schulz(stack, dtype, steps=5, eps=1e-7), apart)


def test_size_does_not_matter_and_zeros_stay() -> None:
    matrix = _matrix(6, 9)
    torch.testing.assert_close(newton_schulz(matrix * 2.0**40, **PRECISE), newton_schulz(matrix, **PRECISE))
    assert not newton_schulz(torch.zeros(6, 9), **PRECISE).any()


def test_what_is_given_is_left_as_it_is() -> None:
    matrix = _matrix(6, 9)
    newton_schulz(matrix, **PRECISE)
    assert torch.equal(matrix, _matrix(6, 9))
