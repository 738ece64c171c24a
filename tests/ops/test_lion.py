import pytest
import torch
from ops.numeric import assert_rounded, poisoned, same_bits, values
from ops.running import against_the_reference
from ops.stepping import LION as OPTIONS
from ops.stepping import moved

from overlap import ops


def float64_step(master, exp_avg, grad, *, lr, beta1, beta2, weight_decay):
    """Chen et al. 2023, algorithm 2."""
    direction = (beta1 * exp_avg + (1 - beta1) * grad).sign()
    return master - lr * (direction + weight_decay * master), beta2 * exp_avg + (1 - beta2) * grad


@pytest.mark.parametrize("size", [0, 1, 7, 1024, 4099])
@pytest.mark.parametrize("shift", [0, 1])
def test_matches_float64(device, size, shift):
    master, exp_avg, grad = (values(size, torch.float32, device, shift=shift) for _ in range(3))
    shard = poisoned(size, torch.bfloat16, device, shift=shift)
    options = {name: value for name, value in OPTIONS.items() if name != "step"}
    p, m = float64_step(*(each.cpu().double() for each in (master, exp_avg, grad)), **options)
    ops.lion(master, exp_avg, grad, shard, **OPTIONS)
    assert_rounded(master.cpu(), p, p.abs() + 1, operations=3)
    assert_rounded(exp_avg.cpu(), m, m.abs() + 8, operations=3)
    assert same_bits(shard, master.bfloat16())


@pytest.mark.parametrize("maximize", [False, True])
def test_follows_float64_for_twenty_steps(device, maximize):
    master, exp_avg = values(1031, torch.float32, device), torch.zeros(1031, device=device)
    exact, average = master.cpu().double(), exp_avg.cpu().double()
    options = {name: value for name, value in OPTIONS.items() if name != "step"}
    for step in range(1, 21):
        grad = values(1031, torch.bfloat16, device)
        signed = grad.cpu().double() * (-1 if maximize else 1)
        exact, average = float64_step(exact, average, signed, **options)
        ops.lion(master, exp_avg, grad, None, maximize=maximize, step=step, **options)
    torch.testing.assert_close(master.cpu().double(), exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(exp_avg.cpu().double(), average, rtol=1e-5, atol=1e-6)


@against_the_reference
def test_zeros_of_either_sign_and_nan(device, on_reference):
    """No direction, no step: a zero takes part with the sign that the formula gives it, a NaN stays one."""
    corners = torch.tensor([0.0, -0.0, 1.0, -1.0, float("nan")])
    buffers = [each.clone() for each in torch.cartesian_prod(corners, corners, corners).T]
    on_device = moved(buffers, device)
    ops.lion(*on_device, None, **OPTIONS)
    on_reference(ops.lion, *buffers, None, **OPTIONS)
    assert all(same_bits(one, other) for one, other in zip(on_device, buffers, strict=True))


def test_steps_by_the_learning_rate_whatever_the_gradient(device):
    grad = torch.tensor([1e-30, -1e30, 0.0, float("nan")], device=device)
    master = torch.zeros(4, device=device)
    ops.lion(
        master, torch.zeros(4, device=device), grad, None, lr=0.25, beta1=0.9, beta2=0.99, weight_decay=0.0, step=1
    )
    assert master[:3].tolist() == [-0.25, 0.25, 0.0]
    assert master[3].isnan()
