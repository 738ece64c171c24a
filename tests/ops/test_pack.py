import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.layouts import laid_out, packed_slots, slots_for
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

NAN = float("nan")


def expected(grads, slots, world, width, scale, before=None):
    """The definition, element by element, in float64."""
    bucket = torch.zeros(world, width, dtype=torch.float64) if before is None else before.double().clone()
    for grad, slot in zip(grads, slots, strict=True):
        if grad is not None:
            k = torch.arange(slot.numel)
            flat = grad.cpu().double().reshape(-1) * scale
            bucket[k // max(slot.chunk, 1), slot.offset + k % max(slot.chunk, 1)] += flat
    return bucket


SHAPES = [(33, 65), (7,), (0,), (1,), (3, 5, 7), (4099,)]


@pytest.mark.parametrize("bucket_dtype", FLOATS)
@pytest.mark.parametrize("grad_dtype", FLOATS)
@pytest.mark.parametrize("accumulate", [False, True])
def test_matches_float64(device, grad_dtype, bucket_dtype, accumulate):
    slots, width = packed_slots(SHAPES, world=2, gap=3)
    grads = [values(slot.numel, grad_dtype, device) for slot in slots]
    before = torch.randn(2, width).to(bucket_dtype) if accumulate else torch.full((2, width), NAN)
    bucket = before.to(bucket_dtype).clone().to(device)
    ops.pack(grads, bucket, slots, scale=1 / 3, accumulate=accumulate)
    want = expected(grads, slots, 2, width, 1 / 3, before if accumulate else None)
    assert_rounded(bucket.cpu(), want, want.abs() + 4, operations=2)


@pytest.mark.parametrize("world", [1, 3, 8])
def test_mixed_dtypes_strides_and_missing_gradients(device, world):
    grads = [
        values(70, torch.float32, device).view(7, 10).t(),
        None,
        values(9, torch.bfloat16, device, shift=1),
        values(48, torch.float16, device).view(6, 8)[:, ::2],
        torch.tensor(2.5, device=device),
    ]
    shapes = [(70,), (11,), (9,), (24,), (1,)]
    slots, width = packed_slots(shapes, world, align=4, gap=1)
    bucket = torch.full((world, width), NAN, device=device)
    ops.pack(grads, bucket, slots, scale=0.5)
    assert torch.equal(bucket.cpu().double(), expected(grads, slots, world, width, 0.5))


@pytest.mark.parametrize("shift", [0, 1])
def test_whole_blocks_aligned_or_not(device, shift):
    slots = (PackSlot(shift, 8192, 16384 - 5),)
    grad = values(16384 - 5, torch.float32, device, shift=shift)
    bucket = torch.full((2, 8192 + 64), NAN, dtype=torch.bfloat16, device=device)
    ops.pack([grad], bucket, slots)
    assert torch.equal(bucket.cpu().double(), expected([grad.bfloat16()], slots, 2, 8192 + 64, 1.0))


def test_every_element_of_a_poisoned_bucket_is_written(device):
    slots, width = packed_slots(SHAPES, world=4, gap=5)
    bucket = torch.full((4, width), NAN, device=device)
    ops.pack([None] * len(SHAPES), bucket, slots)
    assert not bucket.any()
    bucket.fill_(NAN)
    ops.pack([], bucket, ())
    assert not bucket.any()


def test_accumulate_leaves_the_rest_alone(device):
    slots, width = packed_slots([(10,), (6,)], world=2, gap=2)
    bucket = torch.full((2, width), NAN, device=device)
    bucket[:, slots[0].offset : slots[0].offset + 5] = 1.0
    ops.pack([torch.ones(10, device=device), None], bucket, slots, accumulate=True)
    written = torch.zeros(2, width, dtype=torch.bool)
    written[:, slots[0].offset : slots[0].offset + 5] = True
    assert torch.equal(bucket.cpu() == 2.0, written)
    assert torch.equal(bucket.cpu().isnan(), ~written)


def test_slots_in_any_order(device):
    slots = (PackSlot(8, 4, 7), PackSlot(0, 3, 6), PackSlot(8, 0, 0))
    grads = [values(slot.numel, torch.float32, device) for slot in slots]
    bucket = torch.full((2, 12), NAN, device=device)
    ops.pack(grads, bucket, slots)
    assert torch.equal(bucket.cpu().double(), expected(grads, slots, 2, 12, 1.0))


@pytest.mark.parametrize("size", [(0, 5), (3, 0)])
def test_empty_bucket(device, size):
    ops.pack([], torch.empty(size, device=device), ())
    ops.pack([torch.empty(0, device=device)], torch.empty(size, device=device), (PackSlot(0, 0, 0),))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_short_rows_of_many_ranks(on_threads, on_reference, threads, scale, accumulate):
    """Small parameters among many ranks: the native face walks columns there, cut between threads at any row."""
    world = 5000
    numels = [2 * world, 3 * world - 1, 1, world // 2, 0, 80 * world - 12, 5 * world]
    slots, width = packed_slots([(numel,) for numel in numels], world, align=8, gap=3)
    dtypes = [torch.float32, torch.bfloat16, torch.float32, torch.float16, torch.float32, torch.float32]
    grads = [values(numel, dtype, "cpu") for numel, dtype in zip(numels[:-1], dtypes, strict=True)] + [None]
    for dtype in FLOATS:
        buckets = [torch.full((world, width), 0.5 if accumulate else NAN, dtype=dtype) for _ in range(2)]
        on_threads(threads, ops.pack, grads, buckets[0], slots, scale=scale, accumulate=accumulate)
        on_reference(ops.pack, grads, buckets[1], slots, scale=scale, accumulate=accumulate)
        assert same_bits(*buckets)


@quiet_numpy
@against_the_reference
@pytest.mark.parametrize("bucket_dtype", FLOATS)
def test_same_bits_as_the_reference_at_the_edges_of_the_formats(device, on_reference, one_block, bucket_dtype):
    """Ties, subnormals, overflow, infinities and NaN: all halves as fp32, and their neighbours."""
    one_block("PACK")
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    exact = torch.cat([halves.view(torch.bfloat16).float(), halves.view(torch.float16).float()])
    ties = (exact.view(torch.int32) + 0x8000).view(torch.float32)
    grad = torch.cat([exact, ties, torch.nextafter(ties, torch.tensor(float("inf")))])
    slots, width = packed_slots([grad.shape], world=1)
    bucket, want = (torch.full((1, width), NAN, dtype=bucket_dtype) for _ in range(2))
    on_device = bucket.to(device)
    ops.pack([grad.to(device)], on_device, slots)
    on_reference(ops.pack, [grad], want, slots)
    assert same_bits(on_device, want)


@quiet_numpy
@pytest.mark.parametrize("grad_dtype", [torch.bfloat16, torch.float16])
def test_halves_widen_exactly(device, grad_dtype):
    grad = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(grad_dtype)
    bucket = torch.full((1, grad.numel()), NAN, device=device)
    ops.pack([grad.to(device)], bucket, (PackSlot(0, grad.numel(), grad.numel()),))
    assert same_bits(bucket[0], grad.float())


@pytest.mark.parametrize("device", ["triton"], indirect=True)
def test_block_size_changes_nothing(device, one_block):
    slots, width = packed_slots([(10_000,), (7,), (9000,)], world=2, gap=3)
    grads = [values(slot.numel, torch.float32, device) for slot in slots]
    first, second = (torch.full((2, width), NAN, device=device) for _ in range(2))
    ops.pack(grads, first, slots, scale=0.3)
    one_block("PACK")
    ops.pack(grads, second, slots, scale=0.3)
    assert same_bits(first, second)


def test_threads_split_rows_and_regions(on_threads, on_reference):
    slots, width = packed_slots([(1000, 301), (7,), (100_000,)], world=2, gap=3)
    grads = [torch.randn(301, 1000).t(), torch.randn(7), torch.randn(100_000).bfloat16()]
    buckets = {count: poisoned(2 * width, torch.bfloat16, CPU).view(2, width) for count in (0, 1, 2, 4)}
    for count in (1, 2, 4):
        on_threads(count, ops.pack, grads, buckets[count], slots, scale=1 / 7)
    on_reference(ops.pack, grads, buckets[0], slots, scale=1 / 7)
    assert all(same_bits(bucket, buckets[0]) for bucket in buckets.values())


@quiet_numpy
@against_the_reference
@few
@given(st.data())
def test_any_layout_gives_the_bits_of_the_reference(device, on_reference, data):
    torch.manual_seed(data.draw(torch_seeds))
    most = 2000 if interpreted(device) else 40_000
    layouts = floats.flatmap(lambda dtype: laid_out(device, dtype, expanded=True, most=most))
    grads = data.draw(st.lists(st.none() | layouts, max_size=5))
    numels = [data.draw(st.integers(0, 99)) if grad is None else grad.numel() for grad in grads]
    world, accumulate = data.draw(st.integers(1, 5)), data.draw(st.booleans())
    slots, width = data.draw(slots_for(numels, world))
    dtype, scale = data.draw(floats), data.draw(st.sampled_from([1.0, 0.25, 1 / 3, -7.5]))
    make = wild if accumulate else poisoned
    want = make(world * width, dtype, CPU).view(world, width)
    bucket = want.clone().to(device)
    ops.pack(grads, bucket, slots, scale=scale, accumulate=accumulate)
    on_cpu = [None if grad is None else grad.cpu() for grad in grads]
    on_reference(ops.pack, on_cpu, want, slots, scale=scale, accumulate=accumulate)
    assert same_bits(bucket, want)


def test_does_not_change_its_gradients(device):
    grads = [values(600, torch.bfloat16, device).view(20, 30).t(), values(77, torch.float32, device)]
    before = [grad.clone() for grad in grads]
    slots, width = packed_slots([(30, 20), (77,)], world=2)
    ops.pack(grads, poisoned(2 * width, torch.float32, device).view(2, width), slots, scale=3.0)
    assert all(same_bits(grad, then) for grad, then in zip(grads, before, strict=True))


@pytest.mark.parametrize("device", ["reference", "native"], indirect=True)
def test_places_beyond_two_to_the_31(device):
    """Accumulating touches the slots alone, so that 8 GiB of bucket cost a few pages of memory."""
    width, offset = (1 << 31) + 64, (1 << 31) + 3
    bucket = torch.empty(2, width, dtype=torch.bfloat16, device=device)
    held = bucket[:, offset : offset + 5]
    held.fill_(1.0)
    grad = torch.arange(9.0, device=device)
    slots = (PackSlot(offset, 5, 9),)
    ops.pack([grad], bucket, slots, accumulate=True)
    assert held.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 1.0]]
    back = torch.full((9,), NAN, device=device)
    ops.unpack(bucket, [back], slots)
    assert back.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
