import pytest
import torch
from ops.numeric import FLOATS, assert_rounded, poisoned, same_bits, values

from overlap import ops

OPTIONS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "step": 3}


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


@pytest.mark.parametrize("shard_dtype", [*FLOATS, None])
@pytest.mark.parametrize("grad_dtype", FLOATS)
@pytest.mark.parametrize("maximize", [False, True])
def test_same_bits_as_the_reference(device, on_reference, grad_dtype, shard_dtype, maximize):
    states, grad = state(2085, torch.device("cpu")), values(2085, grad_dtype, torch.device("cpu"))
    shard = None if shard_dtype is None else poisoned(2085, shard_dtype, torch.device("cpu"))
    buffers = [*states, grad, shard]
    copies = [None if t is None else t.clone().to(device) for t in buffers]
    ops.adamw(*copies, maximize=maximize, **OPTIONS)
    on_reference(ops.adamw, *buffers, maximize=maximize, **OPTIONS)
    for got, want in zip(copies, buffers, strict=True):
        assert want is None or same_bits(got, want)


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


@pytest.mark.parametrize("flag", [1.0, float("nan"), 7])
def test_skip_leaves_every_bit(device, flag):
    buffers = [*state(2050, device), values(2050, torch.float32, device)]
    buffers.append(poisoned(2050, torch.bfloat16, device))
    buffers[3][5] = float("inf")
    before = [t.clone() for t in buffers]
    dtype = torch.int32 if isinstance(flag, int) else torch.float32
    ops.adamw(*buffers, skip=torch.tensor([flag], dtype=dtype, device=device), **OPTIONS)
    assert all(same_bits(now, then) for now, then in zip(buffers, before, strict=True))


def test_zero_skip_updates_and_bad_gradients_reach_the_weights(device):
    buffers = [*state(64, device), values(64, torch.float32, device)]
    buffers[3][5] = float("nan")
    before = buffers[0].clone()
    ops.adamw(*buffers, None, skip=torch.zeros(1, dtype=torch.int32, device=device), **OPTIONS)
    assert buffers[0][5].isnan()
    changed = (buffers[0] != before).cpu()
    assert changed.all()


@pytest.mark.parametrize("device", ["triton"], indirect=True)
def test_block_size_changes_nothing(device, one_block):
    buffers = [*state(5003, device), values(5003, torch.float32, device)]
    copies = [t.clone() for t in buffers]
    ops.adamw(*buffers, None, **OPTIONS)
    one_block("ADAMW")
    ops.adamw(*copies, None, **OPTIONS)
    assert all(same_bits(got, want) for got, want in zip(copies, buffers, strict=True))


def test_threads_change_nothing(threads, on_reference):
    buffers = [*state(200_003, torch.device("cpu")), torch.randn(200_003), torch.empty(200_003).bfloat16()]
    copies = [t.clone() for t in buffers]
    ops.adamw(*copies, **OPTIONS)
    on_reference(ops.adamw, *buffers, **OPTIONS)
    assert all(same_bits(got, want) for got, want in zip(copies, buffers, strict=True))
