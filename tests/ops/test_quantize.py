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
    poisoned,
    quiet_numpy,
    same_bits,
    shifts,
    sizes,
    torch_seeds,
    values,
    wild,
)
from ops.running import against_the_reference

from overlap import ops

PAYLOADS = (torch.int8, torch.float8_e4m3fn)
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
every_payload = pytest.mark.parametrize("dtype", PAYLOADS, ids=["int8", "e4m3"])
blocks = st.sampled_from([32 << power for power in range(10)])


def outputs(size, dtype, device, *, block=256, shift=0):
    """A payload and scales that show what was not written."""
    payload = torch.full((size + shift,), 85, dtype=torch.int8, device=device)[shift:].view(dtype)
    return payload, poisoned(-(-size // block), torch.float32, device)


def there_and_back(given, dtype, *, block=256):
    payload, scales = outputs(given.numel(), dtype, given.device, block=block)
    ops.quantize(given, payload, scales, block=block)
    back = poisoned(given.numel(), torch.float32, given.device)
    ops.dequantize(payload, scales, back, block=block)
    return payload.cpu(), scales.cpu(), back.cpu()


@quiet_numpy
@against_the_reference
@few
@given(st.data())
def test_same_bits_as_the_reference(device, on_reference, data):
    torch.manual_seed(data.draw(torch_seeds))
    size, block, dtype = data.draw(sizes(device)), data.draw(blocks), data.draw(st.sampled_from(PAYLOADS))
    given = wild(size, data.draw(floats), CPU, finite=data.draw(st.booleans()))
    want = outputs(size, dtype, CPU, block=block)
    got = outputs(size, dtype, device, block=block, shift=data.draw(shifts))
    ops.quantize(placed(given, device, shift=data.draw(shifts)), *got, block=block)
    on_reference(ops.quantize, given, *want, block=block)
    assert same_bits(got[0].view(torch.int8), want[0].view(torch.int8))
    assert same_bits(got[1], want[1])
    out = wild(size, data.draw(floats), CPU)
    on_device = placed(out, device, shift=data.draw(shifts))
    accumulate = data.draw(st.booleans())
    ops.dequantize(*got, on_device, block=block, accumulate=accumulate)
    on_reference(ops.dequantize, *want, out, block=block, accumulate=accumulate)
    assert same_bits(on_device, out)


@every_payload
@pytest.mark.parametrize("given", FLOATS)
@pytest.mark.parametrize("block", [32, 256, 4096])
def test_the_error_is_half_a_step(device, dtype, given, block):
    x = (values(5_011, torch.float32, device) * torch.rand(5_011, device=device).mul(20).sub(10).exp2()).to(given)
    _, scales, back = there_and_back(x, dtype, block=block)
    x = x.cpu().double()
    scale = scales.double().repeat_interleave(block)[: x.numel()]
    most = torch.stack([part.abs().max() for part in x.split(block)])
    torch.testing.assert_close(scales.double(), most / LARGEST[dtype], rtol=2.0**-23, atol=2.0**-126)
    step = scale / 2 if dtype == torch.int8 else torch.maximum(x.abs() / 16, scale * 2.0**-10)
    assert ((back.double() - x).abs() <= step * (1 + 2.0**-18)).all()


@every_payload
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_block_that_is_not_finite_comes_back_as_nan(device, dtype, bad):
    x = values(1000, torch.float32, device)
    x[300] = bad
    payload, scales, back = there_and_back(x, dtype)
    assert scales.isnan().tolist() == [False, True, False, False]
    assert not payload[256:512].view(torch.int8).any()
    assert back[256:512].isnan().all()
    assert back[:256].isfinite().all()
    assert back[512:].isfinite().all()


@every_payload
def test_zeros_stay_zeros(device, dtype):
    x = torch.zeros(600, device=device)
    x[:256] = -0.0
    _, scales, back = there_and_back(x, dtype)
    assert scales.tolist() == [2.0**-126] * 3
    assert torch.equal(back, torch.zeros(600))


@every_payload
@pytest.mark.parametrize("magnitude", [1e-45, 1e-40, 1.2e-38, 3e38])
def test_tiny_and_huge_blocks(device, dtype, magnitude):
    x = torch.rand(512, device=device) * magnitude
    _, scales, back = there_and_back(x, dtype)
    assert scales.isfinite().all()
    error = (back.double() - x.cpu().double()).abs()
    assert (error <= torch.maximum(x.cpu().double() / 15, scales.double().max() / 2)).all()


@every_payload
def test_the_extremes_of_a_block_are_exact_codes(device, dtype):
    x = torch.linspace(-3.0, 3.0, 256, device=device)
    payload, _, _ = there_and_back(x, dtype)
    assert payload.float().min() == -LARGEST[dtype]
    assert payload.float().max() == LARGEST[dtype]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn])
def test_e4m3_codes_are_those_of_a_cast(device, dtype):
    x = values(4096, torch.float32, device)
    payload, scales, _ = there_and_back(x, dtype)
    scaled = x.cpu() / scales.repeat_interleave(256)
    cast = scaled.clamp(-448, 448).to(dtype)
    assert torch.equal(payload.view(torch.int8), cast.view(torch.int8))


@every_payload
@pytest.mark.parametrize("block", [32, 256, 2048])
def test_cutting_at_blocks_changes_nothing(device, dtype, block):
    x = values(5000, torch.bfloat16, device)
    whole, parts = outputs(5000, dtype, device, block=block), outputs(5000, dtype, device, block=block)
    ops.quantize(x, *whole, block=block)
    for begin, end in ((0, 2048), (2048, 4096), (4096, 5000)):
        scales = parts[1][begin // block : -(-end // block)]
        ops.quantize(x[begin:end], parts[0][begin:end], scales, block=block)
    assert same_bits(parts[0].view(torch.int8), whole[0].view(torch.int8))
    assert same_bits(parts[1], whole[1])


@every_payload
@pytest.mark.parametrize("out_dtype", FLOATS)
def test_dequantize_rounds_once(device, dtype, out_dtype):
    codes = torch.randint(-128, 128, (3000,)).to(torch.int8)
    codes[codes & 0x7F == 0x7F] = 1  # NaN in e4m3: below
    payload = codes.to(device).view(dtype)
    scales = torch.rand(12, device=device)
    product = payload.cpu().float() * scales.cpu().repeat_interleave(256)[:3000]
    out = poisoned(3000, out_dtype, device)
    ops.dequantize(payload, scales, out)
    assert same_bits(out, product.to(out_dtype))
    before = out.cpu().float().clone()
    ops.dequantize(payload, scales, out, accumulate=True)
    assert same_bits(out, (before + product).to(out_dtype))


def test_a_code_that_is_not_a_number_stays_none(device):
    payload = torch.tensor([0x7F, -1, 1], dtype=torch.int8, device=device).view(torch.float8_e4m3fn)
    out = torch.zeros(3, device=device)
    ops.dequantize(payload, torch.ones(1, device=device), out)
    assert out.isnan().tolist() == [True, True, False]


def test_threads_change_nothing(on_threads, on_reference):
    x = torch.randn(600_011)
    for dtype in PAYLOADS:
        want, back = outputs(600_011, dtype, CPU), torch.empty(600_011)
        on_reference(ops.quantize, x, *want)
        on_reference(ops.dequantize, *want, back)
        for count in (1, 2, 4):
            got, again = outputs(600_011, dtype, CPU), poisoned(600_011, torch.float32, CPU)
            on_threads(count, ops.quantize, x, *got)
            on_threads(count, ops.dequantize, *got, again)
            assert same_bits(got[0].view(torch.int8), want[0].view(torch.int8))
            assert same_bits(got[1], want[1])
            assert same_bits(again, back)
