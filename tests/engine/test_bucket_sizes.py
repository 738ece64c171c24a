"""Buckets of any size carry any parameters: sizes at the limit, beyond it, and dtypes that differ from the wire's."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from support.chain import WIDTH, data, sharded_chain
from support.pair import Sharded
from support.ranks import Ranks
from support.twins import Twins, gradients
from torch import Tensor, nn

import overlap
from overlap.schedule.op import LaneName

STAGES = (0, 1, 2, 3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LIMIT = 120  # elements of a bucket


class Vectors(nn.Module):
    """Parameters of given sizes, each with a gradient of its own in every element."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.params = nn.ParameterList(torch.randn(size) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        return sum((param * x[0, 0] + torch.arange(len(param)) * x[0, 1]).square().sum() for param in self.params)


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank))


def _at_the_limit(stage: int, dtype: torch.dtype) -> None:
    sizes = (LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT)
    # Alone, each in each place among small ones, and all in every order.
    orders = [(size,) for size in sizes]
    orders += [order for size in sizes for order in ((size, 7, 7), (7, size, 7), (7, 7, size))]
    orders += permutations(sizes)
    for order in orders:
        twins = Twins(
            lambda order=order: Vectors(order),
            _loss,
            stage=stage,
            reduce_dtype=dtype,
            bucket_bytes=LIMIT * dtype.itemsize,
            replicate_max_numel=0,
        )
        twins.backward()
        if dtype is torch.float32:
            twins.check_gradients(f"of sizes {order}")
        else:
            _same_but_for_rounding(twins, dtype)


def _same_but_for_rounding(twins: Twins, dtype: torch.dtype) -> None:
    for name, grad in gradients(twins.model).items():
        exact = twins.plain.get_parameter(name).grad
        assert (grad - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max(), name


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("stage", STAGES)
def test_parameters_as_large_as_a_bucket_are_reduced(ranks: Ranks, stage: int, world: int) -> None:
    ranks(world, _at_the_limit, stage, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_a_wire_of_another_dtype_carries_parameters_beyond_a_bucket(
    ranks: Ranks, stage: int, dtype: torch.dtype
) -> None:
    ranks(2, _at_the_limit, stage, dtype)


def _watch(run: Any, lane: LaneName, name: str, met: set[torch.dtype], of: Callable[..., Any]) -> None:
    comm = run.comms[lane]
    call = getattr(comm, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        met.update(tensor.dtype for tensor in of(*args))
        return call(*args, **kwargs)

    setattr(comm, name, watched)


def _met(stage: int, compute: torch.dtype, wire: torch.dtype) -> tuple[set[torch.dtype], set[torch.dtype]]:
    """Dtypes that really were handed to the gather and to the reduce lane."""
    gathered: set[torch.dtype] = set()
    reduced: set[torch.dtype] = set()
    run = Sharded(stage=stage, param_dtype=compute, reduce_dtype=wire)
    _watch(run.engine, LaneName.GATHER, "all_gather", gathered, lambda pieces, *_: [piece.local for piece in pieces])
    _watch(run.engine, LaneName.REDUCE, "reduce_scatter", reduced, lambda bucket, *_: [bucket])
    _watch(run.engine, LaneName.REDUCE, "all_reduce", reduced, lambda bucket, *_: [bucket])
    for _ in range(2):
        run.step()
    return gathered, reduced


def _as_configured(stage: int) -> None:
    for compute in DTYPES:
        for wire in DTYPES:
            gathered, reduced = _met(stage, compute, wire)
            assert gathered == ({compute} if stage else set())
            assert reduced == {wire}


@pytest.mark.parametrize("stage", STAGES)
def test_what_travels_has_the_dtype_that_was_asked_for(ranks: Ranks, stage: int) -> None:
    ranks(2, _as_configured, stage)


def _own_dtype_of_a_bf16_model(stage: int) -> None:
    """A model that is bf16 itself: gathered so, gradients travel in fp32 unless told otherwise."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).bfloat16()
    model = overlap.shard(net, stage=stage, unit=nn.Linear, replicate_max_numel=0)
    engine = overlap.engine_of(model)
    reduced: set[torch.dtype] = set()
    gathered: set[torch.dtype] = set()
    _watch(engine, LaneName.GATHER, "all_gather", gathered, lambda pieces, *_: [piece.local for piece in pieces])
    _watch(engine, LaneName.REDUCE, "reduce_scatter", reduced, lambda bucket, *_: [bucket])
    _watch(engine, LaneName.REDUCE, "all_reduce", reduced, lambda bucket, *_: [bucket])
    model(data().bfloat16()).float().square().mean().backward()
    assert reduced == {torch.float32}
    assert gathered == ({torch.bfloat16} if stage else set())
    assert all(param.grad.dtype is torch.float32 for param in model.parameters())


@pytest.mark.parametrize("stage", STAGES)
def test_a_bf16_model_is_never_reduced_in_another_16_bit_dtype(ranks: Ranks, stage: int) -> None:
    ranks(2, _own_dtype_of_a_bf16_model, stage)


def _a_bucket_each() -> None:
    model = sharded_chain(bucket_bytes=1, replicate_max_numel=0)
    buckets = overlap.engine_of(model).gradients.buckets
    assert [len(bucket.params) for bucket in buckets] == [1] * len(list(model.parameters()))


def test_no_limit_is_too_small(ranks: Ranks) -> None:
    ranks(2, _a_bucket_each)
