"""reduce_sum and grad_norm in CUDA C++: the bits of the reference, the order of the norm, on every route."""

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.numeric import CPU, FLOATS, few, floats, placed, poisoned, same_bits, shifts, torch_seeds, values, wild

from overlap.ops import cuda_face, reference

sizes = st.sampled_from([0, 1, 7, 8, 2047, 2048, 4095, 4096, 4097, 8192]) | st.integers(0, 12_000)


def norm_of(flat, device, start=(0.0, 0.0)):
    """What grad_norm of this face adds to ``start``."""
    norm = torch.tensor(start, dtype=torch.float64, device=device)
    cuda_face.grad_norm(flat, norm, True)
    return norm


@few
@given(st.data())
def test_sums_rows_and_squares(device, data):
    torch.manual_seed(data.draw(torch_seeds))
    size, dtype, out_dtype = data.draw(sizes), data.draw(floats), data.draw(floats)
    finite, accumulate = data.draw(st.booleans()), data.draw(st.booleans())
    rows = [wild(size, dtype, CPU, finite=finite) for _ in range(data.draw(st.integers(1, 10)))]
    want = wild(size, out_dtype, CPU) if accumulate else poisoned(size, out_dtype, CPU)
    out = placed(want, device, shift=data.draw(st.just(0) | shifts))
    there = [placed(row, device, shift=data.draw(st.just(0) | shifts)) for row in rows]
    norm = torch.tensor([3.5, 0.0], dtype=torch.float64, device=device)
    cuda_face.reduce_sum(there, out, 0.3, accumulate, norm)
    reference.reduce_sum(rows, want, 0.3, accumulate, None)
    assert same_bits(out, want)
    assert same_bits(norm, norm_of(out, device, (3.5, 0.0)))
    without = placed(want, device)
    cuda_face.reduce_sum([without], without, 1.0, False, None)
    assert same_bits(without, want)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_in_place_on_any_row(device, dtype, place):
    receive = values(3 * 4100, dtype, device).view(3, 4100)
    before, want = receive.cpu().clone(), poisoned(4100, dtype, CPU)
    reference.reduce_sum(list(before), want, 0.5, False, None)
    cuda_face.reduce_sum(list(receive), receive[place], 0.5, False, None)
    assert same_bits(receive[place], want)
    assert all(same_bits(receive[row], before[row]) for row in range(3) if row != place)


@pytest.mark.parametrize("dtype", FLOATS)
def test_more_rows_than_one_launch_takes(on_fake, dtype):
    """In order through an fp32 scratch: 505, 505, then the rest."""
    rows = [values(70, dtype, CPU) for _ in range(1100)]
    out, want = poisoned(70, torch.bfloat16, CPU), poisoned(70, torch.bfloat16, CPU)
    norm = torch.zeros(2, dtype=torch.float64)
    cuda_face.reduce_sum(rows, out, 1 / 3, False, norm)
    reference.reduce_sum(rows, want, 1 / 3, False, None)
    assert same_bits(out, want)
    assert same_bits(norm, norm_of(out, CPU))
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    launches = on_fake.launches[:4]
    assert [launch.kernel for launch in launches] == [f"reduce_sum_{name}_fp32"] * 2 + [
        f"reduce_sum_{name}_bf16",
        "finish",
    ]
    fields = [struct.unpack_from("=QQQqifii", launch.arguments) for launch in launches[:3]]
    (scratch, nothing, *_), (same, start, *_), (last, end, partial, *_) = fields
    assert (nothing, same, start, end, last) == (0, scratch, scratch, scratch, out.data_ptr())
    assert [count for _, _, _, _, count, *_ in fields] == [505, 505, 90]
    assert partial != 0


@pytest.mark.parametrize(("shift", "aligned"), [(0, 1), (3, 0)])
@pytest.mark.parametrize("which", ["row", "out"])
def test_vectors_only_where_every_address_allows(on_fake, shift, aligned, which):
    """Which the results alone would not show: unaligned vectors fault on a GPU only."""
    row = values(4096, torch.float32, CPU, shift=shift if which == "row" else 0)
    out = poisoned(4096, torch.float32, CPU, shift=shift if which == "out" else 0)
    cuda_face.reduce_sum([row, row], out, 1.0, False, None)
    (launch,) = on_fake.launches
    _, _, _, size, count, scale, is_aligned, accumulate = struct.unpack_from("=QQQqifii", launch.arguments)
    assert (launch.grid, size, count, scale, accumulate) == ((1, 1), 4096, 2, 1.0, 0)
    assert is_aligned == aligned


def documented_order(flat):
    """The sum of squares as csrc/cuda/norm.cuh and grad_norm.cu describe it, written down once more."""
    squares = flat.cpu().double().square()
    tiles = -(-squares.numel() // 4096)
    squares = torch.nn.functional.pad(squares, (0, tiles * 4096 - squares.numel())).view(tiles, 2, 512, 4)
    quads = torch.zeros(tiles, 512, dtype=torch.float64)
    for step in range(2):
        for item in range(4):
            quads = quads + squares[:, step, :, item]
    partial = tree(quads)
    threads = torch.zeros(256, dtype=torch.float64)
    for row in torch.nn.functional.pad(partial, (0, -tiles % 256)).view(-1, 256):
        threads = threads + row
    return tree(threads[None])[0]


def tree(sums):
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [0, 1, 5, 2048, 4099, 50_001])
@pytest.mark.parametrize("shift", [0, 1])
def test_norm_follows_its_documented_order(device, dtype, size, shift):
    flat = values(size, dtype, device, shift=shift)
    norm = torch.full((2,), math.nan, dtype=torch.float64, device=device)
    cuda_face.grad_norm(flat, norm, False)
    assert norm.tolist() == [documented_order(flat).item(), 0.0]
    cuda_face.grad_norm(flat, norm, True)
    assert norm.tolist() == [2 * documented_order(flat).item(), 0.0]
    want = torch.zeros(2, dtype=torch.float64)
    reference.grad_norm(flat.cpu(), want, False)
    assert math.isclose(norm[0].item(), 2 * want[0].item(), rel_tol=1e-14)


def test_many_tiles_for_each_thread_of_the_last_block(device):
    """More tiles than it has threads: 300 of them, made by hand."""
    from overlap.ops.cuda_face.grad_norm import finish

    partial = torch.rand(300, dtype=torch.float64, device=device)
    norm = torch.full((2,), math.nan, dtype=torch.float64, device=device)
    finish(partial, norm, False)
    threads = partial.cpu()[:256].clone()
    threads[:44] += partial.cpu()[256:]
    assert norm.tolist() == [tree(threads[None])[0].item(), 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4095, 4099])
def test_flags_what_is_not_finite(device, bad, place):
    flat = values(4100, torch.float32, device)
    flat[place] = bad
    norm = norm_of(flat, device)
    assert not math.isfinite(norm[0].item())
    assert norm[1].item() == 1.0
    cuda_face.grad_norm(values(10, torch.float32, device), norm, True)
    assert norm[1].item() == 1.0, "once met, it stays"


def test_squares_are_of_the_rounded_sum(device):
    """1 + 2^-9 is no bf16: its square would show."""
    row = torch.full((4096,), 1 + 2**-9, device=device)
    out, norm = poisoned(4096, torch.bfloat16, device), torch.zeros(2, dtype=torch.float64, device=device)
    cuda_face.reduce_sum([row], out, 1.0, False, norm)
    assert norm.tolist() == [4096.0, 0.0]


def test_nothing_to_sum_still_keeps_the_norm(device):
    empty, norm = torch.empty(0, device=device), torch.tensor([2.0, 1.0], dtype=torch.float64, device=device)
    cuda_face.reduce_sum([empty], empty, 1.0, False, norm)
    assert norm.tolist() == [2.0, 1.0]
    cuda_face.grad_norm(empty, norm, False)
    assert norm.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [5, 2048])
def test_negative_zero_stays(device, size):
    rows = [torch.full((size,), -0.0, device=device) for _ in range(3)]
    out = poisoned(size, torch.float32, device)
    cuda_face.reduce_sum(rows, out, 1.0, False, None)
    assert out.signbit().all()
