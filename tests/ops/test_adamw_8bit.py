import pytest
import torch
from ops.numeric import assert_rounded, poisoned, quiet_numpy, same_bits, values
from ops.stepping import ADAMW, STEPS, moved

from overlap import ops

OPTIONS = ADAMW | {"seed": 5}
UE5M3 = torch.tensor([(8 + code % 8 if code > 7 else code) * 2.0 ** (max(code // 8, 1) - 18) for code in range(256)])
"""The values of the second moment's codes, written down once more."""


def decoded(exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale):
    """The moments in float64."""
    size = exp_avg.numel()
    first, second = (scale.cpu().double().repeat_interleave(256)[:size] for scale in (exp_avg_scale, exp_avg_sq_scale))
    m = exp_avg.cpu().view(torch.float8_e4m3fn).double() * first
    return m, UE5M3.double()[exp_avg_sq.cpu().long()] * second


def fresh(size, device):
    """Moments before the first step."""
    blocks = -(-size // 256)
    codes = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
    return codes + [torch.zeros(blocks, device=device) for _ in range(2)]


def filled(size, device):
    """Moments as earlier steps may have left them."""
    moments = STEPS["adamw_8bit"].states(size, torch.uint8)
    moments[2:] = [scales * 2.0**-12 for scales in moments[2:]]
    return moved(moments, device)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 4099])
def test_matches_float64_within_a_code(device, size):
    master, grad = values(size, torch.float32, device), values(size, torch.bfloat16, device)
    moments, shard = filled(size, device), poisoned(size, torch.bfloat16, device)
    m, v = decoded(*moments)
    w, g = master.cpu().double(), grad.cpu().double()
    ops.adamw_8bit(master, *moments, grad, shard, **OPTIONS)
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    p = w * (1 - 1e-3) - 1e-2 * (m / (1 - 0.9**3)) / ((v / (1 - 0.95**3)).sqrt() + 1e-8)
    assert_rounded(master.cpu(), p, p.abs() + 1, operations=8)
    assert same_bits(shard, master.bfloat16())
    stored_m, stored_v = decoded(*moments)
    for stored, exact, largest, scales in ((stored_m, m, 448, moments[2]), (stored_v, v, 122880, moments[3])):
        most = torch.stack([part.abs().max() for part in exact.split(256)]) if size else exact
        torch.testing.assert_close(scales.cpu().double(), most / largest, rtol=1e-6, atol=2.0**-126)
        # A code apart at most: an eighth of the value, or a step of the subnormals.
        smallest = 2.0**-9 if largest == 448 else 2.0**-17
        step = torch.maximum(exact.abs() / 8, scales.cpu().double().repeat_interleave(256)[:size] * smallest)
        assert ((stored - exact).abs() <= step * 1.0001).all()


def test_moments_are_right_on_average(device):
    """Every block holds the same values: the mean over blocks is the value, give or take six standard deviations."""
    grad = values(256, torch.float32, device).repeat(64)
    moments, master = fresh(64 * 256, device), torch.zeros(64 * 256, device=device)
    ops.adamw_8bit(master, *moments, grad, None, **OPTIONS | {"step": 1})
    g = grad[:256].cpu().double()
    for stored, exact in zip(decoded(*moments), (0.1 * g, 0.05 * g * g), strict=True):
        drawn = stored.view(64, 256)
        error = (drawn.mean(dim=0) - exact).abs()
        # Between two neighbours the deviation is at most half their distance, a sixteenth of the value.
        assert (error <= 6 * torch.maximum(exact.abs() / 16, exact.abs().max() / 448 * 2.0**-10) / 8).all()


def test_nothing_comes_of_nothing(device):
    moments, master = fresh(600, device), values(600, torch.float32, device)
    before = master.clone()
    ops.adamw_8bit(master, *moments, torch.zeros(600, device=device), None, **OPTIONS | {"weight_decay": 0.0})
    assert same_bits(master, before)
    assert not moments[0].any()
    assert not moments[1].any()
    assert moments[2].tolist() == [2.0**-126] * 3
    assert moments[3].tolist() == [2.0**-126] * 3


@quiet_numpy
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_spoils_its_block_visibly_and_no_other(device, bad):
    moments, master = fresh(700, device), values(700, torch.float32, device)
    grad = values(700, torch.float32, device)
    grad[300] = bad
    ops.adamw_8bit(master, *moments, grad, None, **OPTIONS)
    for codes, scales in (moments[::2], moments[1::2]):
        assert scales.isnan().tolist() == [False, True, False]
        assert not codes[256:512].any()
        assert codes[:256].any()
        assert codes[512:].any()
    assert master.isfinite().sum() >= 699
    ops.adamw_8bit(master, *moments, values(700, torch.float32, device), None, **OPTIONS)
    assert master.isnan().cpu().tolist() == [256 <= index < 512 for index in range(700)]


def regression(device, step):
    """Fit 300 weights to 1024 rows in 30 steps of full gradient descent; return the loss at the end."""
    generator = torch.Generator().manual_seed(1)
    rows, truth = torch.randn(1024, 300, generator=generator), torch.randn(300, generator=generator)
    weights = torch.zeros(300, device=device)
    for number in range(1, 31):
        error = rows @ (weights.cpu() - truth)
        step(weights, (rows.T @ error / 1024).to(device), number)
    return (rows @ (weights.cpu() - truth)).square().mean().item(), (rows @ truth).square().mean().item()


def test_learns_as_well_as_with_fp32_moments(device):
    rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
    wide, narrow = torch.zeros(2, 300, device=device), fresh(300, device)
    exact, first = regression(device, lambda w, g, step: ops.adamw(w, *wide, g, None, **rates, step=step))
    coded, _ = regression(device, lambda w, g, step: ops.adamw_8bit(w, *narrow, g, None, **rates, step=step, seed=9))
    assert exact < 0.03 * first
    assert coded == pytest.approx(exact, rel=0.1)
