"""pack and unpack in CUDA C++: the bits of the reference, on every route."""

import struct
from ctypes import c_int64, c_uint64

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.cuda.fake_driver import Launch
from ops.layouts import arranged, laid_out, packed_slots, slots_for
from ops.numeric import FLOATS, few, floats, same_bits, torch_seeds, values, wild
from torch import Tensor

from overlap.ops import PackSlot, cuda_face, reference
from overlap.ops.cuda_face.tables import tables

NAN = float("nan")
CPU = torch.device("cpu")


def copies(tensors):
    """On the CPU, with strides of their own."""
    return [None if tensor is None else tensor.detach().cpu().clone() for tensor in tensors]


def drawn(data, device, *, expanded):
    """Tensors, their slots, and the shape of the bucket."""
    torch.manual_seed(data.draw(torch_seeds))
    layouts = floats.flatmap(lambda dtype: laid_out(device, dtype, expanded=expanded, most=9000))
    tensors = data.draw(st.lists(st.none() | layouts, max_size=5))
    numels = [data.draw(st.integers(0, 99)) if tensor is None else tensor.numel() for tensor in tensors]
    world = data.draw(st.integers(1, 5))
    slots, width = data.draw(slots_for(numels, world))
    return tensors, slots, (world, width)


@few
@given(st.data())
def test_packs_any_layout(device, data):
    grads, slots, (world, width) = drawn(data, device, expanded=True)
    accumulate = data.draw(st.booleans())
    want = wild(world * width, data.draw(floats), CPU).view(world, width)
    bucket = want.clone().to(device)
    scale = data.draw(st.sampled_from([1.0, 0.25, 1 / 3, -7.5]))
    reference.pack(copies(grads), want, slots, scale, accumulate)
    cuda_face.pack(grads, bucket, slots, scale, accumulate)
    assert same_bits(bucket, want)


@few
@given(st.data())
def test_unpacks_into_any_layout(device, data):
    tensors, slots, (world, width) = drawn(data, device, expanded=False)
    bucket = wild(world * width, data.draw(floats), CPU).view(world, width)
    scale = data.draw(st.sampled_from([1.0, 0.25, 1 / 3, -7.5]))
    want = copies(tensors)
    reference.unpack(bucket, want, slots, scale)
    cuda_face.unpack(bucket.to(device), tensors, slots, scale)
    assert all(tensor is None or same_bits(tensor, other) for tensor, other in zip(tensors, want, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bucket_dtype", FLOATS)
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_many_blocks_aligned_or_not(device, dtype, bucket_dtype, shift):
    """Blocks that are full, cut, and empty, in both rows; vectors, and what cannot be one."""
    numel = 2 * 20_000 - 9_001
    slots, width = (PackSlot(shift, 20_000, numel),), 20_000 + shift + 8_200
    grad = wild(numel + shift, dtype, CPU).to(device)[shift:]
    for accumulate in (False, True):
        want = torch.randn(2, width).to(bucket_dtype) if accumulate else torch.full((2, width), NAN, dtype=bucket_dtype)
        bucket = want.clone().to(device)
        reference.pack(copies([grad]), want, slots, 1 / 3, accumulate)
        cuda_face.pack([grad], bucket, slots, 1 / 3, accumulate)
        assert same_bits(bucket, want)
    back = torch.full_like(grad, NAN)
    cuda_face.unpack(bucket, [back], slots, -0.7)
    expected = [torch.full((numel,), NAN, dtype=dtype)]
    reference.unpack(want, expected, slots, -0.7)
    assert same_bits(back, expected[0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_unpack_of_one_moves_bits(device, dtype):
    """Signalling NaNs and all: through a float they would come out quiet."""
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)
    words = halves << 16 | 1 if dtype == torch.float32 else halves.to(torch.int16)
    bucket = words.view(dtype).to(device)
    slots = (PackSlot(0, words.numel(), words.numel()),)
    flat, strided = torch.zeros_like(bucket), torch.zeros(words.numel(), 2, dtype=dtype, device=device)[:, 0]
    cuda_face.unpack(bucket[None], [flat], slots, 1.0)
    cuda_face.unpack(bucket[None], [strided], slots, 1.0)
    assert torch.equal(flat.view(words.dtype), bucket.view(words.dtype))
    assert torch.equal(strided.contiguous().view(words.dtype), bucket.view(words.dtype))


@pytest.mark.parametrize("kind", ["contiguous", "shifted", "permuted", "every other"])
def test_unpack_writes_nothing_else(device, kind):
    tensor = arranged(kind, [5, 6, 7], device, torch.float32, [2, 0, 1])
    storage = torch.full((tensor.untyped_storage().nbytes() // 4,), -1.0, device=device)
    view = storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    bucket = torch.full((2, 120), 7.0, device=device)
    cuda_face.unpack(bucket, [view, None], (PackSlot(3, 105, 210), PackSlot(110, 5, 10)), 1.0)
    assert bool((view == 7.0).all())
    assert int((storage == 7.0).sum()) == 210
    assert int((storage == -1.0).sum()) == storage.numel() - 210


def test_a_tensor_of_more_dimensions_than_any_limit(device):
    order = [8, 1, 6, 3, 0, 7, 2, 5, 4]
    grad = arranged("permuted", [2, 3, 2, 2, 3, 2, 2, 2, 3], device, torch.float32, order)
    slots, width = packed_slots([tuple(grad.shape)], world=3)
    bucket, want = (torch.full((3, width), NAN) for _ in range(2))
    bucket = bucket.to(device)
    cuda_face.pack([grad], bucket, slots, 1.0, False)
    reference.pack(copies([grad]), want, slots, 1.0, False)
    assert same_bits(bucket, want)
    back = torch.full_like(grad, NAN)
    cuda_face.unpack(bucket, [back], slots, 1.0)
    assert torch.equal(back, grad)


def test_more_tensors_than_one_launch_takes(on_fake):
    """505 regions a launch; the gap before the first slot is a region of its own."""
    grads = [values(int(size), FLOATS[index % 3], CPU) for index, size in enumerate(torch.randint(0, 40, (1200,)))]
    slots, width = packed_slots([tuple(grad.shape) for grad in grads], world=2, gap=1)
    bucket, want = (torch.full((2, width), NAN) for _ in range(2))
    cuda_face.pack(grads, bucket, slots, 0.5, False)
    reference.pack(grads, want, slots, 0.5, False)
    assert same_bits(bucket, want)
    backs, wants = ([torch.full_like(grad, NAN) for grad in grads] for _ in range(2))
    cuda_face.unpack(bucket, backs, slots, 3.0)
    reference.unpack(bucket, wants, slots, 3.0)
    assert all(same_bits(back, other) for back, other in zip(backs, wants, strict=True))
    kernels = [launch.kernel for launch in on_fake.launches]
    assert kernels == ["pack_fp32"] * 3 + ["unpack_fp32"] * 3
    assert [decoded(launch)["first"] for launch in on_fake.launches[:3]] == [0, 505, 1010]


def test_an_empty_bucket_launches_nothing(on_fake):
    cuda_face.pack([], torch.empty(0, 5), (), 1.0, False)
    cuda_face.unpack(torch.empty(3, 0), [], (), 1.0)
    assert on_fake.launches == []


HEADER = ("regions", "blocks", "dims", "bucket", "width", "scale", "first")


def decoded(launch: Launch) -> dict[str, object]:
    """``struct MoveArguments``, read independently of the code that wrote it."""
    assert len(launch.arguments) == 48 + 8 * 505 <= 4096
    fields = struct.unpack_from("=QQQQqfi", launch.arguments)
    return dict(zip(HEADER, fields, strict=True)) | {"tensors": struct.unpack_from("=505Q", launch.arguments, 48)}


def words_at(address: int, count: int) -> list[int]:
    return list((c_int64 * count).from_address(address))


def test_what_a_launch_carries(on_fake):
    plain, strided = values(30, torch.bfloat16, CPU, shift=1), values(42, torch.float16, CPU).view(6, 7).t()
    bucket = torch.full((2, 9000), NAN)
    slots = (PackSlot(40, 21, 42), PackSlot(4, 15, 30), PackSlot(100, 1, 2))
    cuda_face.pack([strided, plain, None], bucket, slots, 1 / 3, False)
    (launch,) = on_fake.launches
    assert (launch.kernel, launch.grid, launch.threads, launch.stream) == ("pack_fp32", (5, 2), 256, 0)
    fields = decoded(launch)
    assert fields["bucket"] == bucket.data_ptr()
    assert (fields["width"], fields["first"]) == (9000, 0)
    assert fields["scale"] == torch.tensor(1 / 3, dtype=torch.float32).item()
    # In column order: the gap, then the tensors; the dtype lies above the address.
    assert fields["tensors"][:4] == (0, plain.data_ptr() | 1 << 62, strided.data_ptr() | 2 << 62, 0)
    regions = [words_at(fields["regions"] + 40 * index, 5) for index in range(4)]
    assert regions == [
        [0, 4, 0, 0, 0],
        [4, 40, 15, 30, 0],
        [40, 100, 21, 42, 2 << 32],
        [100, 9000, 1, 2, 2],
    ]
    sizes_and_strides = [tuple(words_at(fields["dims"] + 32 * index, 2)) for index in range(2)]
    assert sizes_and_strides == [(7, 1), (6, 7)]
    blocks = [(word & 0xFFFFFFFF, word >> 32) for word in words_at(fields["blocks"], 5)]
    assert blocks == [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)]


def test_nothing_is_sent_when_gradients_move(on_fake):
    slots, width = packed_slots([(50,), (8, 8)], world=2)
    bucket = torch.empty(2, width)
    for _ in range(3):
        grads = [torch.randn(50), torch.randn(8, 8)]
        cuda_face.pack(grads, bucket, slots, 1.0, False)
        carried = decoded(on_fake.launches[-1])["tensors"][:2]
        assert carried == tuple(grad.data_ptr() for grad in grads)
    assert tables.cache_info().misses == 1
    cuda_face.pack([torch.randn(50), torch.randn(8, 8).t()], bucket, slots, 1.0, False)
    assert tables.cache_info().misses == 2, "other strides are another layout"


def test_two_rows_of_a_tensor_that_is_its_own_view(device):
    """A view into the middle of a larger tensor: its first element is not its storage's."""
    whole: Tensor = values(600, torch.float32, device).view(20, 30)
    grad = whole[3:9, 5:25]
    slots, width = packed_slots([(6, 20)], world=4)
    bucket = torch.full((4, width), NAN, device=device)
    cuda_face.pack([grad], bucket, slots, 1.0, False)
    assert torch.equal(bucket[:, :30].reshape(-1), grad.reshape(-1))


def test_the_largest_magic_number_survives_the_table(on_fake):
    """It needs all 64 bits: in a signed word it is negative."""
    grad = torch.randn(7, 3).t()
    bucket = torch.full((1, 21), NAN)
    cuda_face.pack([grad], bucket, (PackSlot(0, 21, 21),), 1.0, False)
    assert torch.equal(bucket[0], grad.reshape(-1))
    magic = c_uint64.from_address(decoded(on_fake.launches[0])["dims"] + 32 + 16).value
    assert magic >= 1 << 63
