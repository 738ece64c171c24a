import itertools
import random

import pytest
import torch

from overlap.bench.collective.names import DTYPES, REDOPS
from overlap.bench.collective.values import Values, count_wrong, fill, poison

CPU = torch.device("cpu")
COUNT = 4096


def rows(values, world, dtype):
    return [values.of(rank, 0, COUNT, CPU).to(dtype) for rank in range(world)]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("world", [2, 3, 8, 300])
def test_sums_are_exact_in_any_order(dtype, world):
    values = Values(world, dtype, dtype, "sum", random.randrange(1000))
    parts = rows(values, world, dtype)
    random.shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = total + part  # every partial sum is rounded to the dtype
    assert torch.equal(total.long(), values.reduced(0, COUNT, CPU))
    assert total.long().float().std() > 0


@pytest.mark.parametrize(
    ("redop", "dtype"),
    [
        (redop, dtype)
        for redop in REDOPS
        for dtype in (torch.int8, torch.bfloat16, torch.float32)
        if redop != "avg" or dtype.is_floating_point  # settings refuse averages of integers
    ],
    ids=str,
)
def test_each_reduction_gives_what_torch_gives(dtype, redop):
    values = Values(4, dtype, dtype, redop, 0)
    stacked = torch.stack(rows(values, 4, dtype))
    wanted = {
        "sum": stacked.sum(0),
        "avg": stacked.sum(0) / 4,
        "prod": stacked.prod(0),
        "min": stacked.amin(0),
        "max": stacked.amax(0),
    }[redop]
    assert torch.equal(wanted.long(), values.reduced(0, COUNT, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("world", [2, 3, 7, 49, 200])
def test_averages_are_integers_however_they_are_taken(dtype, world):
    """By a division of the exact sum, or as NCCL does by a factor of 1/n before."""
    values = Values(world, dtype, dtype, "avg", random.randrange(1000))
    parts = rows(values, world, dtype)
    total, scaled = parts[0].clone(), parts[0] * torch.tensor(1 / world, dtype=dtype)
    for part in parts[1:]:
        total, scaled = total + part, scaled + part * torch.tensor(1 / world, dtype=dtype)
    assert count_wrong(total / world, values.reduced, rounds=True) == 0
    assert count_wrong(scaled, values.reduced, rounds=True) == 0
    assert count_wrong(total / world + 1, values.reduced, rounds=True) == COUNT
    assert values.of(0, 0, COUNT, CPU).unique().numel() > 1


def test_a_sum_in_bf16_shows_where_fp32_was_asked_for():
    values = Values(2, torch.bfloat16, torch.float32, "sum", 0)
    first, second = rows(values, 2, torch.bfloat16)
    right = first.float() + second.float()
    assert count_wrong(right, values.reduced) == 0
    assert count_wrong((first + second).float(), values.reduced) > COUNT // 20


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_values_tell_ranks_places_and_repetitions_apart(dtype):
    """All but about one in 128 of int8."""
    make = [Values(2, dtype, dtype, None, repetition) for repetition in (0, 1)]
    chunks = [
        make[repetition].of(rank, start, COUNT, CPU)
        for repetition, rank, start in itertools.product((0, 1), (0, 1), (0, COUNT, 12345))
    ]
    for one, other in itertools.combinations(chunks, 2):
        assert int((one != other).sum()) > 0.97 * COUNT


def test_blocks_make_no_difference(monkeypatch):
    values = Values(2, torch.float32, torch.float32, "sum", 3)
    whole = values.reduced(0, 1000, CPU).float()
    monkeypatch.setattr("overlap.bench.collective.values.BLOCK", 77)
    pieced = torch.empty(1000)
    fill(pieced, values.reduced)
    assert torch.equal(whole, pieced)
    pieced[[0, 500, 999]] += 1
    assert count_wrong(pieced, values.reduced) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_poison_is_no_value_of_ours(dtype):
    out = torch.empty(64, dtype=dtype)
    poison(out)
    assert count_wrong(out, Values(2, dtype, dtype, "sum", 0).reduced) == 64
