"""A run of ``overlap bench collective`` as data. What can be refused is refused here, before any process is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self, get_args

import torch

from overlap.bench.collective.sizes import bytes_of, count_of, scan
from overlap.comm.volume import Collective
from overlap.errors import ConfigError, message

DTYPES = {
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "half": torch.float16,
    "double": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
"""By nccl-tests' names."""

ALIASES = {"fp32": "float", "bf16": "bfloat16", "fp16": "half", "fp64": "double", "all": ",".join(DTYPES)}
COLLECTIVES: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
REDUCING = ("reduce_scatter", "all_reduce")
REDOPS = ("sum", "prod", "min", "max")
TRANSPORTS = ("gloo", "nccl", "overlap")
Layout = Literal["flat", "coalesced", "staged"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


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
        self._check_devices()
        self._check_together()

    def _check_devices(self) -> None:
        _all_of("device", (self.device,), ("cpu", "cuda"))
        if ("nccl" in self.transports or self.device == "cuda") and not torch.cuda.is_available():
            subject = "transport" if "nccl" in self.transports else "device"
            got = f"{'nccl' if subject == 'transport' else 'cuda'}, and torch sees no GPU"
            raise ConfigError(message(subject, "run here", got, "use gloo or overlap on cpu"))

    def _check_together(self) -> None:
        """Refuse what each is known, but nobody can do together."""
        ours = "overlap" in self.transports
        if self.layout == "coalesced" and set(self.collectives) != {"all_gather"}:
            got = f"{', '.join(self.collectives)}: gradients are reduced in one flat bucket"
            raise ConfigError(message("--layout coalesced", "be of all_gather", got, "use --layout staged"))
        if self.out_datatype is not None and (self.transports, self.collectives) != (("overlap",), ("reduce_scatter",)):
            got = f"{', '.join(self.collectives)} over {', '.join(self.transports)}"
            cure = "use reduce_scatter --transport overlap: torch's collectives sum in the dtype of the wire"
            raise ConfigError(message("--out-datatype", "be of reduce_scatter over overlap", got, cure))
        if self.redop != "sum" and ours:
            raise ConfigError(message("op", "be sum over overlap", self.redop, "use --transport gloo or nccl"))
        if ours and self.device == "cuda" and "all_to_all" in self.collectives:
            raise ConfigError(message("all_to_all", "be over nccl on cuda", "overlap", "use --transport nccl"))
        whole = set(self.datatypes) - {"float", "bfloat16", "half"}
        if ours and whole and set(self.collectives) & set(REDUCING):
            got, cure = ", ".join(sorted(whole)), "use --transport gloo or nccl"
            raise ConfigError(message("datatype", "be float, bfloat16 or half where overlap reduces", got, cure))

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


def words(texts: Sequence[str]) -> tuple[str, ...]:
    """Split at commas, replace short names, drop doubles."""
    given = [word.strip() for text in texts for word in text.split(",")]
    return tuple(dict.fromkeys(word for each in given for word in ALIASES.get(each, each).split(",")))


def _all_of(subject: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            cure = f"did you mean {near[0]}?" if near else "choose one of these"
            raise ConfigError(message(subject, f"be one of {', '.join(known)}", name, cure))


def _at_least(subject: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(message(subject, f"be at least {least}", value, "give a larger value"))
