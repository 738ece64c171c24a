import pytest
import torch
from ops.numeric import assert_rounded, poisoned, same_bits, values
from ops.stepping import ADAMW as OPTIONS

from overlap import ops


def state(size, device, *, shift=0):
    """Master, first and second moment."""
    master, exp_avg, root = (values(size, torch.float32, device, shift=shift) for _ in range(3))
    return [master, exp_avg * 0.1, root * root * 0.01]


def float64_step(master, exp_avg, exp_avg_sq, grad, *, lr, beta1, beta2, eps, weight_decay, step):
    m = beta1 * exp_avg + (1 - beta1) * grad
    v = beta2 * exp_avg_sq + (1 - beta2) * grad * grad
    denominator = (v / (1 - beta2**step)).sqrt() + eps
    return master * (1 - lr * weight_decay) - lr * (m / (1 - beta1**step)) / denominator, m, v


@pytest.mark.parametrize("size", [0, 1, 7, 1024, 4099])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    ("grad_dtype", "shard_dtype"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)],
)
def test_matches_float64(device, size, shift, grad_dtype, shard_dtype):
    states = state(size, device, shift=shift)
    grad = values(size, grad_dtype, device, shift=shift)
    shard = poisoned(size, shard_dtype, device, shift=shift)
    scale = torch.tensor([0.37], device=device)
    scaled = grad.cpu().double() * scale.cpu().double()
    want = float64_step(*(t.cpu().double() for t in states), scaled, **OPTIONS)
    ops.adamw(*states, grad, shard, grad_scale=scale, **OPTIONS)
    p, m, v = (t.cpu() for t in states)
    assert_rounded(m, want[1], want[1].abs() + 4, operations=3)
    assert_rounded(v, want[2], want[2].abs() + 1, operations=4)
    assert_rounded(p, want[0], want[0].abs() + 1, operations=8)
    assert same_bits(shard, p.to(shard_dtype))


def test_bf16_states_are_read_exactly_and_rounded_once(device):
    states = [t.bfloat16() for t in state(3000, device)[1:]]
    master, grad = values(3000, torch.float32, device), values(3000, torch.float32, device)
    wide = [master.clone(), *(t.float() for t in states)]
    ops.adamw(master, *states, grad, None, **OPTIONS)
    ops.adamw(*wide, grad, None, **OPTIONS)
    assert same_bits(master, wide[0])
    assert all(same_bits(state, other.bfloat16()) for state, other in zip(states, wide[1:], strict=True))


@pytest.mark.parametrize("maximize", [False, True])
def test_follows_torch_for_twenty_steps(device, maximize):
    parameter = torch.nn.Parameter(torch.randn(1031))
    theirs = torch.optim.AdamW([parameter], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, maximize=maximize)
    master = parameter.detach().clone().to(device)
    exp_avg, exp_avg_sq = torch.zeros_like(master), torch.zeros_like(master)
    for step in range(1, 21):
        parameter.grad = torch.randn(1031)
        theirs.step()
        ops.adamw(
            master, exp_avg, exp_avg_sq, parameter.grad.to(device), None, lr=1e-2, beta1=0.9, beta2=0.999,
            eps=1e-8, weight_decay=0.1, step=step, maximize=maximize,
        )  # fmt: skip
    torch.testing.assert_close(master.cpu(), parameter.detach(), rtol=1e-6, atol=1e-6)
    moments = theirs.state[parameter]
    torch.testing.assert_close(exp_avg.cpu(), moments["exp_avg"], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(exp_avg_sq.cpu(), moments["exp_avg_sq"], rtol=1e-5, atol=1e-9)


def test_bad_gradients_reach_the_weights(device):
    buffers = [*state(64, device), values(64, torch.float32, device)]
    buffers[3][5] = float("nan")
    ops.adamw(*buffers, None, **OPTIONS)
    assert buffers[0].isnan().cpu().nonzero().tolist() == [[5]]


def test_bf16_weights_follow_fp32_weights(device):
    """32 steps of 2^-10 take 1 to 0.97. bf16 resolves 2^-8 below 1: rounded to nearest, the weights would stay 1."""
    narrow, wide = (torch.ones(1024, dtype=dtype, device=device) for dtype in (torch.bfloat16, torch.float32))
    moments, grad = torch.zeros(2, 2, 1024, device=device), torch.ones(1024, device=device)
    for step in range(1, 33):
        options = OPTIONS | {"lr": 2.0**-10, "weight_decay": 0.0, "step": step}
        ops.adamw(narrow, *moments[0], grad, None, **options, seed=7)
        ops.adamw(wide, *moments[1], grad, None, **options)
    assert wide.mean().item() == pytest.approx(1 - 2.0**-5, abs=1e-5)
    # Each of the 1024 strays by less than sqrt(32) * 2^-8 / 2; their mean by a 32nd of it.
    assert narrow.float().mean().item() == pytest.approx(wide.mean().item(), abs=6 * 32**0.5 * 2.0**-9 / 32)
