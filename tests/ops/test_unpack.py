import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.layouts import arranged, laid_out, packed_slots, slots_for
from ops.numeric import (
    CPU,
    FLOATS,
    assert_rounded,
    few,
    floats,
    poisoned,
    quiet_numpy,
    same_bits,
    torch_seeds,
    values,
    wild,
)
from ops.running import against_the_reference, interpreted

from overlap import ops
from overlap.ops import PackSlot

SHAPES = [(33, 65), (7,), (0,), (1,), (3, 5, 7), (4099,), ()]


def expected(bucket, slot, shape):
    """The definition, element by element, in float64."""
    k = torch.arange(slot.numel)
    chunk = max(slot.chunk, 1)
    return bucket.cpu().double()[k // chunk, slot.offset + k % chunk].view(shape)


@pytest.mark.parametrize("bucket_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_matches_float64(device, bucket_dtype, dtype, scale):
    slots, width = packed_slots(SHAPES, world=2, gap=3)
    bucket = values(2 * width, bucket_dtype, device).view(2, width)
    tensors = [poisoned(slot.numel, dtype, device).view(shape) for slot, shape in zip(slots, SHAPES, strict=True)]
    ops.unpack(bucket, tensors, slots, scale=scale)
    for tensor, slot, shape in zip(tensors, slots, SHAPES, strict=True):
        want = expected(bucket, slot, shape) * torch.tensor(scale, dtype=torch.float32).double()
        assert_rounded(tensor.cpu(), want, want.abs(), operations=1)


@quiet_numpy
@against_the_reference
@few
@given(st.data())
def test_any_layout_gives_the_bits_of_the_reference(device, on_reference, data):
    torch.manual_seed(data.draw(torch_seeds))
    most = 2000 if interpreted(device) else 40_000
    layouts = floats.flatmap(lambda dtype: laid_out(device, dtype, expanded=False, most=most))
    tensors = data.draw(st.lists(st.none() | layouts, max_size=5))
    numels = [data.draw(st.integers(0, 99)) if tensor is None else tensor.numel() for tensor in tensors]
    world = data.draw(st.integers(1, 5))
    slots, width = data.draw(slots_for(numels, world))
    bucket = wild(world * width, data.draw(floats), CPU).view(world, width)
    scale = data.draw(st.sampled_from([1.0, 0.25, 1 / 3, -7.5]))
    want = [None if tensor is None else tensor.cpu().clone() for tensor in tensors]
    ops.unpack(bucket.to(device), tensors, slots, scale=scale)
    on_reference(ops.unpack, bucket, want, slots, scale=scale)
    assert all(tensor is None or same_bits(tensor, other) for tensor, other in zip(tensors, want, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("other", FLOATS)
def test_undoes_pack(device, dtype, other):
    grads = [
        arranged(kind, [6, 5, 4, 7], device, dtype, [2, 0, 3, 1])
        for kind in ("contiguous", "permuted", "channels last", "every other")
    ]
    slots, width = packed_slots([(6, 5, 4, 7)] * 4, world=3, gap=1)
    bucket = poisoned(3 * width, torch.float32, device).view(3, width)
    ops.pack(grads, bucket, slots)
    backs = [torch.full_like(grad, float("nan"), dtype=other) for grad in grads]
    ops.unpack(bucket, backs, slots)
    assert all(same_bits(back, grad.to(other)) for back, grad in zip(backs, grads, strict=True))


@quiet_numpy
@pytest.mark.parametrize("dtype", FLOATS)
def test_moves_bits_unchanged(device, dtype):
    """All halves, or random words: quiet NaNs keep their payload, zeros their sign, and nothing is flushed."""
    if dtype == torch.float32:
        words = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), dtype=torch.int64).int() | 0x400000
    else:
        words = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).short()
        words = words | 0x200 if dtype == torch.float16 else words | 0x40
    bucket = words.view(dtype).clone().to(device).view(2, -1)
    tensor = torch.zeros(1 << 16, dtype=dtype, device=device)
    ops.unpack(bucket, [tensor], (PackSlot(0, 1 << 15, 1 << 16),))
    assert torch.equal(tensor.cpu().view(words.dtype), words)


def test_writes_nothing_else(device):
    """Not between the elements of a strided tensor, not a skipped tensor, not the bucket."""
    rows = torch.full((12, 10), 5.0, device=device)
    bucket = values(2 * 64, torch.float32, device).view(2, 64)
    before = bucket.clone()
    slots = (PackSlot(3, 18, 36), PackSlot(30, 4, 7), PackSlot(40, 6, 12))
    ops.unpack(bucket, [rows[::2, 1:7], None, torch.empty(12, device=device)], slots)
    written = torch.zeros(12, 10, dtype=torch.bool)
    written[::2, 1:7] = True
    assert torch.equal(rows.cpu() != 5.0, written)
    assert same_bits(bucket, before)


def test_writes_parameters_that_require_grad(device):
    parameter = torch.nn.Parameter(torch.zeros(4, device=device))
    ops.unpack(torch.arange(4.0, device=device).view(2, 2), [parameter], (PackSlot(0, 2, 4),))
    assert parameter.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("device", ["triton"], indirect=True)
def test_block_size_changes_nothing(device, one_block):
    slots, width = packed_slots([(10_000,), (7,), (9000,)], world=2, gap=3)
    bucket = values(2 * width, torch.float32, device).view(2, width)
    first, second = ([poisoned(slot.numel, torch.bfloat16, device) for slot in slots] for _ in range(2))
    ops.unpack(bucket, first, slots, scale=0.3)
    one_block("UNPACK")
    ops.unpack(bucket, second, slots, scale=0.3)
    assert all(same_bits(one, other) for one, other in zip(first, second, strict=True))


def test_threads_change_nothing(on_threads, on_reference):
    slots, width = packed_slots([(1000, 301), (7,), (100_000,)], world=2, gap=3)
    bucket = torch.randn(2, width)
    want = [torch.empty(301, 1000).t(), torch.empty(7), torch.empty(100_000, dtype=torch.bfloat16)]
    on_reference(ops.unpack, bucket, want, slots, scale=1 / 7)
    for count in (1, 2, 4):
        tensors = [torch.full_like(tensor, float("nan")) for tensor in want]
        on_threads(count, ops.unpack, bucket, tensors, slots, scale=1 / 7)
        assert all(same_bits(tensor, other) for tensor, other in zip(tensors, want, strict=True))
