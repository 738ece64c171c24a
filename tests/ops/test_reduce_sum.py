import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.numeric import (
    CPU,
    FLOATS,
    assert_rounded,
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


@pytest.mark.parametrize("size", [0, 1, 7, 2048, 5001])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_matches_float64(device, size, shift, count):
    rows = [values(size, torch.bfloat16, device, shift=shift) for _ in range(count)]
    out = poisoned(size, torch.float32, device, shift=shift)
    ops.reduce_sum(rows, out, scale=1 / 3)
    stacked = torch.stack([row.cpu().double() for row in rows])
    assert_rounded(out.cpu(), stacked.sum(0) / 3, stacked.abs().sum(0), operations=count + 1)


@against_the_reference
@pytest.mark.parametrize("row_dtype", FLOATS)
@pytest.mark.parametrize("out_dtype", FLOATS)
@pytest.mark.parametrize("accumulate", [False, True])
def test_same_bits_as_the_reference(device, on_reference, row_dtype, out_dtype, accumulate):
    cpu = torch.device("cpu")
    rows = [values(2601, row_dtype, cpu) for _ in range(4)]
    rows[1][3], rows[2][4] = float("nan"), float("inf")
    want = values(2601, out_dtype, cpu) if accumulate else poisoned(2601, out_dtype, cpu)
    out = want.clone().to(device)
    ops.reduce_sum([row.to(device) for row in rows], out, scale=0.3, accumulate=accumulate)
    on_reference(ops.reduce_sum, rows, want, scale=0.3, accumulate=accumulate)
    assert same_bits(out, want)


def test_sums_in_the_order_given(device):
    """1e8 swallows a 1 that comes before it cancels: another order gives another number."""
    big, small = torch.full((8,), 1e8, device=device), torch.ones(8, device=device)
    out = torch.empty(8, device=device)
    ops.reduce_sum([big, small, -big], out)
    assert out.tolist() == [0.0] * 8
    ops.reduce_sum([big, -big, small], out)
    assert out.tolist() == [1.0] * 8


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_in_place_on_any_row(device, dtype, place):
    receive = values(3 * 4100, dtype, device).view(3, 4100)
    want = poisoned(4100, dtype, device)
    ops.reduce_sum(list(receive.clone()), want, scale=0.5)
    others = [receive[row].clone() for row in range(3)]
    ops.reduce_sum(list(receive), receive[place], scale=0.5)
    assert same_bits(receive[place], want)
    assert all(same_bits(receive[row], others[row]) for row in range(3) if row != place)


def test_accumulate_adds_last_and_in_place(device):
    rows = [torch.full((5,), 3.0, device=device), torch.full((5,), 4.0, device=device)]
    ops.reduce_sum(rows, rows[0], scale=2.0, accumulate=True)
    assert rows[0].tolist() == [17.0] * 5


def test_bf16_rows_round_once(device):
    """256 + 1 + 1 is 258 in fp32; rounding each partial sum to bf16 would stay at 256."""
    rows = [torch.full((4,), value, dtype=torch.bfloat16, device=device) for value in (256.0, 1.0, 1.0)]
    out = torch.empty(4, dtype=torch.bfloat16, device=device)
    ops.reduce_sum(rows, out)
    assert out.tolist() == [258.0] * 4


@pytest.mark.parametrize("device", ["triton"], indirect=True)
def test_block_size_changes_nothing(device, one_block):
    rows = [values(5003, torch.float32, device) for _ in range(3)]
    first, second = (poisoned(5003, torch.float32, device) for _ in range(2))
    ops.reduce_sum(rows, first, scale=0.3)
    one_block("REDUCE_SUM")
    ops.reduce_sum(rows, second, scale=0.3)
    assert same_bits(first, second)


def test_threads_change_nothing(on_threads, on_reference):
    rows = [torch.randn(300_001) for _ in range(3)]
    outs = {count: poisoned(300_001, torch.float32, CPU) for count in (0, 1, 2, 4)}
    norms = {count: torch.zeros(2, dtype=torch.float64) for count in outs}
    for count in (1, 2, 4):
        on_threads(count, ops.reduce_sum, rows, outs[count], scale=0.1, norm=norms[count])
    on_reference(ops.reduce_sum, rows, outs[0], scale=0.1)
    assert all(same_bits(out, outs[0]) for out in outs.values())
    assert same_bits(norms[1], norms[2])
    assert same_bits(norms[1], norms[4])


@quiet_numpy
@few
@given(st.data())
def test_any_rows_give_the_bits_of_the_reference_and_the_norm_of_grad_norm(device, on_reference, data):
    torch.manual_seed(data.draw(torch_seeds))
    size, row_dtype, out_dtype = data.draw(sizes(device)), data.draw(floats), data.draw(floats)
    rows = [wild(size, row_dtype, CPU) for _ in range(data.draw(st.integers(1, 5)))]
    options = {"scale": data.draw(st.sampled_from([1.0, 0.25, 1 / 3])), "accumulate": data.draw(st.booleans())}
    want = wild(size, out_dtype, CPU)
    out = placed(want, device, shift=data.draw(shifts))
    norm = torch.tensor([2.5, data.draw(st.sampled_from([0.0, 1.0]))], dtype=torch.float64, device=device)
    expected = norm.clone()
    ops.reduce_sum([placed(row, device, shift=data.draw(shifts)) for row in rows], out, norm=norm, **options)
    on_reference(ops.reduce_sum, rows, want, **options)
    assert same_bits(out, want)
    ops.grad_norm(out, expected, accumulate=True)
    assert same_bits(norm, expected)


@quiet_numpy
def test_the_norm_sees_what_was_rounded(device):
    """65536 overflows in fp16: the sum was finite, what is stored is not."""
    rows = [torch.full((40,), 32768.0, device=device)] * 2
    out = poisoned(40, torch.float16, device)
    norm = torch.zeros(2, dtype=torch.float64, device=device)
    ops.reduce_sum(rows, out, norm=norm)
    assert norm.tolist() == [float("inf"), 1.0]


def test_the_norm_of_nothing_changes_nothing(device):
    norm = torch.tensor([2.5, 0.0], dtype=torch.float64, device=device)
    ops.reduce_sum([torch.empty(0, device=device)], torch.empty(0, device=device), norm=norm)
    assert norm.tolist() == [2.5, 0.0]
