"""Training in which one rank gets one call of one kind of collective wrong; what each rank gets to see of it."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from support.own_lanes import SETTLED_S, mesh_of_its_own
from support.pair import Pair
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import overlap
from overlap import _compat
from overlap.comm import groups, meshes
from overlap.comm.collective import Communicator
from overlap.comm.control import ControlChannel
from overlap.comm.pairwise import PairwiseCommunicator
from overlap.comm.shaped import Fault, ShapedCommunicator, ShapedControl

STEPS = 4
SMALL_BUCKETS = 1200
"""Bytes: a block has several, some of one size."""


@dataclass(frozen=True)
class Seen:
    """What a rank has seen.

    Attributes:
        steps: completed, with right numbers.
        wrong: further steps completed with wrong ones.
        text: of the error that came then; empty if none did.
        seconds: from the begin of the step that raised.
        close_s: that closing the engine took.
        threads: lanes that were still alive then.
    """

    steps: int
    wrong: int
    text: str
    seconds: float
    close_s: float
    threads: tuple[str, ...]


def train_with_each(faults: Sequence[Fault], victim: int, *, copies: int = 1, **options: Any) -> list[Seen]:
    """One training run after another, each with one fault of rank ``victim``. Runs on a rank.

    Args:
        faults: whose kinds are those of a collective, or of a call on the control channel.
        victim: global rank.
        copies: of the model; several are hybrid sharding.
        **options: of the engine; ``clip=False`` makes a reduction the last collective of a step.
    """
    _train([], mesh_of_its_own(SETTLED_S, copies), **options)  # what is slow but once must not count as silence
    timeout = _compat.group_timeout(dist.group.WORLD).total_seconds()
    mine = [[fault] if dist.get_rank() == victim else [] for fault in faults]
    return [_train(each, mesh_of_its_own(timeout + 0.001 * n, copies), **options) for n, each in enumerate(mine)]


def _train(faults: Sequence[Fault], on: DeviceMesh, *, clip: bool = True, **options: Any) -> Seen:
    start, right, wrong, pair, text = time.monotonic(), 0, 0, None, ""
    try:
        with _faults(faults):
            pair = Pair(mesh=on, bucket_bytes=SMALL_BUCKETS, **options)
            for _ in range(STEPS):
                start = time.monotonic()
                _step(pair, clip)
                same = _holds_rows_of(pair.model, pair.plain)
                right, wrong = right + same, wrong + (not same)
    except overlap.DesyncError as error:
        text = str(error)
    seconds = time.monotonic() - start
    return Seen(right, wrong, text, seconds, *_close(pair))


def _step(pair: Pair, clip: bool) -> None:
    pair.backward()
    if clip:
        overlap.clip_grad_norm_(pair.model.parameters(), 1e9)  # leaves gradients as they are
    pair.apply()


def _close(pair: Pair | None) -> tuple[float, tuple[str, ...]]:
    start = time.monotonic()
    if pair is not None:
        pair.engine.close()
    lanes = tuple(thread.name for thread in threading.enumerate() if thread.name.startswith("overlap-"))
    return time.monotonic() - start, lanes


@contextmanager
def _faults(faults: Sequence[Fault]) -> Iterator[None]:
    """Every communicator that is opened has the faults of its kinds."""

    def communicator(*args: Any) -> ShapedCommunicator:
        return ShapedCommunicator(PairwiseCommunicator(*args), fail_on=faults)

    def control(inner: Communicator) -> ShapedControl:
        return ShapedControl(ControlChannel(inner), faults)

    with (
        patch.object(groups, "PairwiseCommunicator", communicator),
        patch.object(groups, "ControlChannel", control),
        patch.object(meshes, "_compute", WeakKeyDictionary()),  # shared by all engines over the same ranks
    ):
        yield


def _holds_rows_of(model: nn.Module, plain: nn.Module) -> bool:
    """Whether this rank's rows are those of the plain model; asks no other rank, which may have failed."""
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    return all(torch.allclose(_local(mine), _rows(theirs, mine), rtol=1e-5, atol=1e-6) for mine, theirs in pairs)


def _local(param: nn.Parameter) -> torch.Tensor:
    assert isinstance(param, DTensor)
    return param.to_local()


def _rows(plain: nn.Parameter, like: nn.Parameter) -> torch.Tensor:
    assert isinstance(like, DTensor)
    (*_, placement), on = like.placements, like.device_mesh
    if not isinstance(placement, Shard):
        return plain
    return plain.chunk(on.size(on.ndim - 1), placement.dim)[on.get_local_rank(on.ndim - 1)]
