"""A run of ``overlap bench collective`` as data. What can be refused is refused here, before any process is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Self

import torch

from overlap.bench.collective.limits import check_average, check_layout, check_ours, check_out_datatype
from overlap.bench.collective.names import (
    ALL_ROOTS,
    COLLECTIVES,
    DTYPES,
    LAYOUTS,
    NO_ROOT,
    REDOPS,
    ROOTED,
    TRANSPORTS,
    Layout,
)
from overlap.bench.collective.sizes import bytes_of, count_of, scan
from overlap.comm.volume import Collective
from overlap.errors import ConfigError, message


@dataclass(frozen=True, kw_only=True)
class CollectiveSettings:
    """Everything that decides a run."""

    collectives: tuple[str, ...] = ("all_gather", "reduce_scatter")
    """Measured one after the other."""
    transports: tuple[str, ...] = ("overlap",)
    """Take turns, call by call: ``gloo`` and ``nccl`` are torch's own collectives, ``overlap`` is what the engine uses
    on ``device``."""
    device: str = "cpu"
    """Of ``overlap``: cpu or cuda; the others have theirs."""
    ranks: int = 2
    """Processes."""
    min_bytes: int = 32 << 20
    """First size, of the whole tensor."""
    max_bytes: int = 32 << 20
    """Last size."""
    step_bytes: int = 1 << 20
    """From size to size, where there is no factor."""
    step_factor: int | None = None
    """From size to size."""
    iters: int = 20
    """Timed calls."""
    warmup: int = 1
    """Calls before them."""
    check: int = 1
    """Calls whose values are checked; 0 checks none."""
    datatypes: tuple[str, ...] = ("float",)
    """On the wire."""
    out_datatype: str | None = None
    """Of what a reduce-scatter leaves; None is the wire's. ``float`` behind ``bfloat16``: sums in fp32."""
    redop: str = "sum"
    """Of reductions."""
    root: int = 0
    """Of broadcast and reduce; `ALL_ROOTS`: each rank in turn."""
    layout: Layout = "flat"
    """``flat``: one tensor. ``coalesced``: ``pieces`` tensors in one call, each gathered into its place. ``staged``: as
    many tensors copied into one buffer, one call, copied out."""
    pieces: int = 16
    """Tensors, where the layout is not flat."""
    json: str | None = None
    """File that rank 0 keeps up to date."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        _all_of("collective", self.collectives, COLLECTIVES)
        _all_of("transport", self.transports, TRANSPORTS)
        _all_of("datatype", self.datatypes, tuple(DTYPES))
        _all_of("op", (self.redop,), REDOPS)
        _all_of("layout", (self.layout,), LAYOUTS)
        for name in ("ranks", "min_bytes", "step_bytes", "iters", "pieces"):
            _at_least(name, getattr(self, name), 1)
        for name in ("warmup", "check"):
            _at_least(name, getattr(self, name), 0)
        _at_least("max_bytes", self.max_bytes, self.min_bytes)
        if self.step_factor is not None:
            _at_least("step_factor", self.step_factor, 2)
        if self.out_datatype is not None:
            _all_of("out_datatype", (self.out_datatype,), tuple(DTYPES))
        self._check_root()
        self._check_devices()
        check_layout(self.layout, self.collectives, self.transports)
        check_out_datatype(self.out_datatype, self.collectives, self.transports)
        check_average(self.redop, self.datatypes, self.ranks)
        if "overlap" in self.transports:
            check_ours(self.collectives, self.datatypes, self.redop, self.device)

    def _check_devices(self) -> None:
        _all_of("device", (self.device,), ("cpu", "cuda"))
        if ("nccl" in self.transports or self.device == "cuda") and not torch.cuda.is_available():
            subject = "transport" if "nccl" in self.transports else "device"
            got = f"{'nccl' if subject == 'transport' else 'cuda'}, and torch sees no GPU"
            raise ConfigError(message(subject, "run here", got, "use gloo or overlap on cpu"))

    def _check_root(self) -> None:
        if not ALL_ROOTS <= self.root < self.ranks:
            raise ConfigError(message("root", f"be one of {self.ranks} ranks, or all", self.root, "count from 0"))

    def roots(self, op: str) -> Sequence[int]:
        """Roots that a collective is measured with; `NO_ROOT` alone for one that has none."""
        if op not in ROOTED:
            return (NO_ROOT,)
        return range(self.ranks) if self.root == ALL_ROOTS else (self.root,)

    def sizes(self, op: Collective, itemsize: int) -> list[tuple[int, int]]:
        """Count and bytes of every size that is visited, as rounded for the ranks, each once."""
        asked = scan(self.min_bytes, self.max_bytes, self.step_bytes, self.step_factor)
        counts = dict.fromkeys(self._whole_pieces(count_of(op, nbytes, itemsize, self.ranks)) for nbytes in asked)
        return [(count, bytes_of(op, count, itemsize, self.ranks)) for count in counts]

    def _whole_pieces(self, count: int) -> int:
        """Pieces are of one size."""
        pieces = 1 if self.layout == "flat" else self.pieces
        return max(1, count // pieces) * pieces

    def to_json(self) -> str:
        """Return the settings as one line, fit for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild what ``to_json`` wrote."""
        given = json.loads(text)
        lists: dict[str, Any] = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**{**given, **lists})


def _all_of(subject: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            cure = f"did you mean {near[0]}?" if near else "choose one of these"
            raise ConfigError(message(subject, f"be one of {', '.join(known)}", name, cure))


def _at_least(subject: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(message(subject, f"be at least {least}", value, "give a larger value"))
