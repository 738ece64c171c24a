import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.numeric import (
    CPU,
    FLOATS,
    few,
    floats,
    placed,
    quiet_numpy,
    same_bits,
    shifts,
    sizes,
    torch_seeds,
    values,
    wild,
)
from ops.running import face

from overlap import ops


def result(grad, device, *, before=(math.nan, math.nan), accumulate=False):
    out = torch.tensor(before, dtype=torch.float64, device=device)
    ops.grad_norm(grad, out, accumulate=accumulate)
    return out.cpu()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [0, 1, 31, 1024, 16384, 40_001])
@pytest.mark.parametrize("shift", [0, 1])
def test_matches_an_exact_sum(device, dtype, size, shift):
    grad = values(size, dtype, device, shift=shift)
    total, flag = result(grad, device).tolist()
    exact = math.fsum(value * value for value in grad.double().tolist())
    # Squares of fp32 are exact in fp64: only the additions round, at most `size` of them.
    assert total == pytest.approx(exact, rel=max(size, 1) * 2.0**-53, abs=0)
    assert flag == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 17_000, 19_999])
def test_flags_what_is_not_finite(device, bad, place):
    grad = torch.zeros(20_000, device=device)
    grad[place] = bad
    total, flag = result(grad, device).tolist()
    assert flag == 1
    assert not math.isfinite(total)


def test_neither_overflows_nor_loses_small_values(device):
    huge = torch.full((5000,), 3e38, device=device)
    total, flag = result(huge, device).tolist()
    assert total == pytest.approx(5000 * float(huge[0]) ** 2)
    assert flag == 0
    tiny = torch.full((5000,), 1e-30, device=device)
    assert result(tiny, device)[0].item() == pytest.approx(5000 * float(tiny[0]) ** 2)


def test_accumulate_adds_sums_and_keeps_the_flag(device):
    ones = torch.ones(10, device=device)
    assert result(ones, device, before=(2.5, 0.0), accumulate=True).tolist() == [12.5, 0.0]
    assert result(ones, device, before=(math.inf, 1.0), accumulate=True).tolist() == [math.inf, 1.0]
    total, flag = result(ones * math.nan, device, before=(2.5, 0.0), accumulate=True).tolist()
    assert math.isnan(total)
    assert flag == 1.0


def test_same_bits_for_any_alignment(device):
    storage = values(50_004, torch.float32, device)
    first = result(storage[:50_001].clone(), device)
    for shift in (1, 2, 3):
        moved = storage.clone()
        moved[shift : shift + 50_001] = storage[:50_001]
        assert same_bits(result(moved[shift : shift + 50_001], device), first)


def test_same_bits_for_any_thread_count(on_threads):
    grad = torch.randn(1_000_003)
    results = {count: torch.empty(2, dtype=torch.float64) for count in (1, 2, 3)}
    for count, out in results.items():
        on_threads(count, ops.grad_norm, grad, out)
    assert all(same_bits(out, results[1]) for out in results.values())


def test_same_bits_for_any_thread_count_of_torch():
    grad, before = torch.randn(1_000_003), torch.get_num_threads()
    results = []
    with face("reference"):
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(result(grad, CPU))
    torch.set_num_threads(before)
    assert all(same_bits(out, results[0]) for out in results)


@quiet_numpy
@few
@given(st.data())
def test_any_magnitude_sums_as_in_exact_arithmetic(device, data):
    torch.manual_seed(data.draw(torch_seeds))
    grad = wild(data.draw(sizes(device, most=20_000)), data.draw(floats), CPU)
    total, flag = result(placed(grad, device, shift=data.draw(shifts)), device).tolist()
    exact = math.fsum(value * value for value in grad.double().tolist())
    # Squares of fp32 are exact in fp64.
    assert total == pytest.approx(exact, rel=max(grad.numel(), 1) * 2.0**-53, abs=0)
    assert flag == 0
