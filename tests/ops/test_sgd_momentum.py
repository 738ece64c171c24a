import pytest
import torch
from ops.numeric import assert_rounded, poisoned, same_bits, values
from ops.stepping import SGD

from overlap import ops


@pytest.mark.parametrize("size", [0, 1, 7, 1024, 4099])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("nesterov", [False, True])
def test_matches_float64(device, size, step, nesterov):
    options = SGD | {"step": step, "nesterov": nesterov}
    master, buffer, grad = (values(size, torch.float32, device, shift=1) for _ in range(3))
    shard = poisoned(size, torch.bfloat16, device, shift=1)
    w, b, g = (each.cpu().double() for each in (master, buffer, grad))
    g = g + 0.1 * w
    b = g if step == 1 else 0.9 * b + 0.9 * g
    p = w - 1e-2 * (g + 0.9 * b if nesterov else b)
    ops.sgd_momentum(master, buffer, grad, shard, **options)
    assert_rounded(buffer.cpu(), b, b.abs() + 8, operations=5)
    assert_rounded(master.cpu(), p, p.abs() + 1, operations=7)
    assert same_bits(shard, master.bfloat16())


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.4},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.8, "weight_decay": 0.1, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1, "maximize": True},
    ],
)
def test_follows_torch_for_twenty_steps(device, options):
    parameter = torch.nn.Parameter(torch.randn(1031))
    theirs = torch.optim.SGD([parameter], lr=1e-2, **options)
    master = parameter.detach().clone().to(device)
    buffer = torch.zeros_like(master)
    for step in range(1, 21):
        parameter.grad = torch.randn(1031)
        theirs.step()
        ops.sgd_momentum(master, buffer, parameter.grad.to(device), None, lr=1e-2, step=step, **options)
    torch.testing.assert_close(master.cpu(), parameter.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(buffer.cpu(), theirs.state[parameter]["momentum_buffer"], rtol=1e-5, atol=1e-6)


def test_the_first_step_takes_the_gradient_whole(device):
    """Neither damped nor added to what the buffer held."""
    master, buffer = torch.zeros(9, device=device), torch.full((9,), 100.0, device=device)
    ops.sgd_momentum(master, buffer, torch.ones(9, device=device), None, lr=0.5, momentum=0.9, dampening=0.9, step=1)
    assert buffer.tolist() == [1.0] * 9
    assert master.tolist() == [-0.5] * 9
