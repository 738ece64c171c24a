"""What every `Communicator` must do: rank-side checks that tests/comm/test_contract.py runs.

A check is `check_*(subject)`: it runs on all ranks and raises where the contract is broken.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.volume import Collective, WireTotals, total_wire_bytes, wire_bytes
from overlap.errors import ConfigError
from overlap.shard.piece import Piece

SIZES = (1, 2, 3, 5, 17, 1000)
EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.bfloat16, torch.float16)}


@dataclass
class Subject:
    """A communicator under test and what its documentation promises about sums.

    exact: sums are in rank order and fp32; otherwise order and precision are the backend's.
    """

    comm: Communicator
    exact: bool
    seed: int

    def data(self, rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random values of `rank`, which every rank can compute; other ones at each `fresh()`."""
        generator = torch.Generator().manual_seed(self.seed * 1000 + rank)
        return torch.randn(*shape, generator=generator).to(dtype)

    def fresh(self) -> None:
        self.seed += 1

    def assert_sum(self, got: Tensor, terms: list[Tensor], wire: torch.dtype) -> None:
        """Within the rounding that `len(terms)` additions in the documented precision can cause."""
        stacked = torch.stack([term.double() for term in terms])
        eps = EPS[torch.float32 if self.exact else wire] * len(terms) + EPS[got.dtype]
        error = (got.double() - stacked.sum(0)).abs()
        assert (error <= eps * stacked.abs().sum(0)).all(), f"error {error.max()}"


def _poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype)


def _piece(subject: Subject, chunk: int, dtype: torch.dtype) -> Piece:
    local = subject.data(subject.comm.rank, chunk, dtype=dtype)
    return Piece(local, _poisoned(subject.comm.world * chunk, dtype=dtype))


def _gathered(subject: Subject, chunk: int, dtype: torch.dtype) -> Tensor:
    return torch.cat([subject.data(rank, chunk, dtype=dtype) for rank in range(subject.comm.world)])


def _assert_equal_on_all_ranks(subject: Subject, value: Tensor) -> None:
    bits = value.contiguous().view(torch.uint8)
    everyone = bits.new_empty(subject.comm.world * bits.numel())
    subject.comm.all_gather([Piece(bits, everyone)], "compare")
    for row in everyone.view(subject.comm.world, -1):
        assert torch.equal(row, bits)


def check_gather_many_pieces(subject: Subject) -> None:
    comm = subject.comm
    chunks = (0, *SIZES, *range(1, 40))
    for dtype in EPS:
        subject.fresh()
        pieces = [_piece(subject, chunk, dtype) for chunk in chunks]
        comm.all_gather(pieces, "gather")
        for chunk, piece in zip(chunks, pieces, strict=True):
            assert torch.equal(piece.full, _gathered(subject, chunk, dtype))


def check_gather_nothing(subject: Subject) -> None:
    subject.comm.all_gather([], "gather")
    subject.comm.all_gather([Piece(torch.empty(0), torch.empty(0))], "gather")


def check_gather_in_place(subject: Subject) -> None:
    comm = subject.comm
    for chunk in SIZES:
        subject.fresh()
        full = _poisoned(comm.world * chunk)
        local = full[comm.rank * chunk : (comm.rank + 1) * chunk]
        local.copy_(subject.data(comm.rank, chunk))
        comm.all_gather([Piece(local, full)], "gather")
        assert torch.equal(full, _gathered(subject, chunk, torch.float32))


def check_reduce_scatter(subject: Subject) -> None:
    for wire in EPS:
        for out_dtype in {torch.float32, wire}:
            for numel in SIZES:
                out = _poisoned(numel, dtype=out_dtype)
                terms = _reduce_scatter(subject, out, wire)
                subject.assert_sum(out, terms, wire)


def check_reduce_scatter_in_place(subject: Subject) -> None:
    comm = subject.comm
    for numel in SIZES:
        subject.fresh()
        bucket = subject.data(comm.rank, comm.world, numel)
        comm.reduce_scatter(bucket, bucket[comm.rank], "reduce")
        subject.assert_sum(bucket[comm.rank], _terms(subject, numel, torch.float32), torch.float32)


def check_reduce_scatter_accumulates(subject: Subject) -> None:
    for wire in EPS:
        before = subject.data(99, 33)
        out = before.clone()
        terms = _reduce_scatter(subject, out, wire, accumulate=True)
        subject.assert_sum(out, [before, *terms], wire)


def check_reduce_scatter_keeps_other_rows(subject: Subject) -> None:
    comm = subject.comm
    bucket = subject.data(comm.rank, comm.world, 9)
    before = bucket.clone()
    comm.reduce_scatter(bucket, _poisoned(9), "reduce")
    assert torch.equal(bucket, before)


def check_reduce_scatter_carries_nonfinite(subject: Subject) -> None:
    comm = subject.comm
    bucket = torch.ones(comm.world, 3)
    bucket[:, 0] = math.inf
    bucket[:, 1] = math.nan
    out = torch.zeros(3)
    comm.reduce_scatter(bucket, out, "reduce")
    assert out[0] == math.inf
    assert out[1].isnan()
    assert out[2] == comm.world


def check_all_reduce(subject: Subject) -> None:
    comm = subject.comm
    for dtype in EPS:
        for numel in SIZES:
            subject.fresh()
            flat = subject.data(comm.rank, numel, dtype=dtype)
            comm.all_reduce(flat, "reduce")
            subject.assert_sum(flat, [subject.data(r, numel, dtype=dtype) for r in range(comm.world)], dtype)
            _assert_equal_on_all_ranks(subject, flat)


def check_all_reduce_nothing(subject: Subject) -> None:
    subject.comm.all_reduce(torch.empty(0), "reduce")


def check_broadcast(subject: Subject) -> None:
    comm = subject.comm
    for src in range(comm.world):
        for dtype in (*EPS, torch.int64):
            subject.fresh()
            value = subject.data(src, 3, 5).mul(100).to(dtype)
            tensor = value.clone() if comm.rank == src else torch.zeros(3, 5, dtype=dtype)
            comm.broadcast(tensor, src, "weights")
            assert torch.equal(tensor, value)


def check_bytes_follow_the_formulas(subject: Subject) -> None:
    comm, world = subject.comm, subject.comm.world
    before = comm.counter.snapshot()
    comm.all_gather([_piece(subject, chunk, torch.bfloat16) for chunk in SIZES], "gather")
    comm.reduce_scatter(torch.zeros(world, 7), torch.zeros(7), "reduce")
    comm.all_reduce(torch.zeros(world + 1), "replicate")
    comm.broadcast(torch.zeros(5), world - 1, "weights")
    spent = comm.counter.snapshot() - before
    assert spent.calls == {"gather": 1, "reduce": 1, "replicate": 1, "weights": 1}
    _assert_sent(subject, spent, "gather", "all_gather", sum(SIZES) * world * 2)
    _assert_sent(subject, spent, "reduce", "reduce_scatter", world * 7 * 4)
    _assert_sent(subject, spent, "replicate", "all_reduce", (world + 1) * 4)
    _assert_sent(subject, spent, "weights", "broadcast", 5 * 4)


def check_even_splits_load_every_rank_alike(subject: Subject) -> None:
    comm, world = subject.comm, subject.comm.world
    before = comm.counter.snapshot()
    comm.all_gather([_piece(subject, 11, torch.float32)], "gather")
    comm.all_reduce(torch.zeros(world * 6), "replicate")
    spent = comm.counter.snapshot() - before
    assert spent.sent.get("gather", 0) == wire_bytes("all_gather", 11 * world * 4, world)
    assert spent.sent.get("replicate", 0) == wire_bytes("all_reduce", world * 6 * 4, world)


def check_wrong_shapes_are_refused_before_sending(subject: Subject) -> None:
    comm = subject.comm
    with pytest.raises(ConfigError, match="full tensor of piece 0 must hold"):
        comm.all_gather([Piece(torch.zeros(2), torch.zeros(2 * comm.world + 1))], "gather")
    with pytest.raises(ConfigError, match="bucket must be"):
        comm.reduce_scatter(torch.zeros(comm.world, 3), torch.zeros(4), "reduce")
    with pytest.raises(ConfigError, match="must be contiguous"):
        comm.all_reduce(torch.zeros(4, 2)[:, 0], "reduce")
    check_gather_in_place(subject)


def check_scratch_is_kept(subject: Subject) -> None:
    comm = subject.comm
    sizes = set()
    for _ in range(3):
        comm.reduce_scatter(torch.zeros(comm.world, 5000, dtype=torch.bfloat16), torch.zeros(5000), "reduce")
        sizes.add(comm.scratch_bytes)
    assert len(sizes) == 1


def check_exact_sums_are_in_rank_order(subject: Subject) -> None:
    if not subject.exact:
        return
    for wire in EPS:
        out = _poisoned(1000)
        terms = _reduce_scatter(subject, out, wire)
        assert torch.equal(out, _in_rank_order(terms))
        flat = subject.data(subject.comm.rank, 1001, dtype=wire)
        expected = _in_rank_order([subject.data(r, 1001, dtype=wire) for r in range(subject.comm.world)])
        subject.comm.all_reduce(flat, "reduce")
        assert torch.equal(flat, expected.to(wire))


def check_exact_sums_do_not_depend_on_bucketing(subject: Subject) -> None:
    if not subject.exact:
        return
    comm = subject.comm
    bucket = subject.data(comm.rank, comm.world, 257)
    whole, halves = _poisoned(257), _poisoned(257)
    comm.reduce_scatter(bucket, whole, "reduce")
    comm.reduce_scatter(bucket[:, :100].contiguous(), halves[:100], "reduce")
    comm.reduce_scatter(bucket[:, 100:].contiguous(), halves[100:], "reduce")
    assert torch.equal(whole, halves)


CHECKS: dict[str, Callable[[Subject], None]] = {
    name.removeprefix("check_"): value for name, value in globals().items() if name.startswith("check_")
}


def _terms(subject: Subject, numel: int, wire: torch.dtype) -> list[Tensor]:
    """Every rank's row for this rank."""
    comm = subject.comm
    return [subject.data(r, comm.world, numel, dtype=wire)[comm.rank] for r in range(comm.world)]


def _reduce_scatter(subject: Subject, out: Tensor, wire: torch.dtype, *, accumulate: bool = False) -> list[Tensor]:
    comm = subject.comm
    subject.fresh()
    bucket = subject.data(comm.rank, comm.world, out.numel(), dtype=wire)
    comm.reduce_scatter(bucket, out, "reduce", accumulate=accumulate)
    return _terms(subject, out.numel(), wire)


def _in_rank_order(terms: list[Tensor]) -> Tensor:
    total = terms[0].float()
    for term in terms[1:]:
        total = total + term.float()
    return total


def _assert_sent(subject: Subject, spent: WireTotals, kind: str, op: Collective, nbytes: int) -> None:
    """Measured bytes of all ranks add up to the total; computed ones are each rank's mean."""
    comm = subject.comm
    sent = spent.sent.get(kind, 0)
    if not comm.counter.measured:
        assert sent == wire_bytes(op, nbytes, comm.world)
        return
    everyone = torch.empty(comm.world, dtype=torch.int64)
    comm.all_gather([Piece(torch.tensor([sent]), everyone)], "compare")
    assert int(everyone.sum()) == total_wire_bytes(op, nbytes, comm.world)
