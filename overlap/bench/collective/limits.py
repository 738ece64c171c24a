"""What is known by name, but what nobody, or not the transport that was asked for, can do."""

from __future__ import annotations

from collections.abc import Sequence

from overlap.bench.collective.names import COALESCED, DTYPES, REDUCING, Layout
from overlap.bench.collective.values import EXACT
from overlap.errors import ConfigError, message

ELSEWHERE = "use --transport gloo or nccl"


def check_layout(layout: Layout, collectives: Sequence[str], transports: Sequence[str]) -> None:
    """Refuse calls of many tensors where there are none: the engine has them for gathers, torch for some more."""
    ours = "overlap" in transports
    known = COALESCED[:1] if ours else COALESCED
    for name in collectives if layout == "coalesced" else ():
        if name not in known:
            flat = ours and name in COALESCED
            got = f"{name}: gradients are reduced in one flat bucket" if flat else name
            cure = f"use --layout staged{f', or {ELSEWHERE[4:]}' if flat else ''}"
            rule = f"be of {', '.join(known)}{' over overlap' if ours else ''}"
            raise ConfigError(message("--layout coalesced", rule, got, cure))


def check_out_datatype(out: str | None, collectives: Sequence[str], transports: Sequence[str]) -> None:
    """Refuse sums in another dtype than the wire's but where we add."""
    if out is not None and (tuple(transports), tuple(collectives)) != (("overlap",), ("reduce_scatter",)):
        got = f"{', '.join(collectives)} over {', '.join(transports)}"
        cure = "use reduce_scatter --transport overlap: torch's collectives sum in the dtype of the wire"
        raise ConfigError(message("--out-datatype", "be of reduce_scatter over overlap", got, cure))


def check_average(redop: str, datatypes: Sequence[str], ranks: int) -> None:
    """Refuse averages of integers, which gloo has not, and those of more ranks than can be told apart exactly."""
    for name in datatypes if redop == "avg" else ():
        dtype = DTYPES[name]
        if not dtype.is_floating_point:
            raise ConfigError(message("datatype of avg", "be a floating one", name, "use --op sum"))
        if ranks > EXACT[dtype]:
            rule = f"be at most {EXACT[dtype]} for avg of {name}, whose values are checked exactly"
            raise ConfigError(message("ranks", rule, ranks, "use -d float"))


def check_ours(collectives: Sequence[str], datatypes: Sequence[str], redop: str, device: str) -> None:
    """Refuse what the engine has no use for, and so its transport has not."""
    if redop not in ("sum", "avg"):
        raise ConfigError(message("op", "be sum or avg over overlap", redop, ELSEWHERE))
    if "reduce" in collectives:
        raise ConfigError(message("reduce", "be over gloo or nccl", "overlap, which reduces for all ranks", ELSEWHERE))
    if device == "cuda" and "all_to_all" in collectives:
        raise ConfigError(message("all_to_all", "be over nccl on cuda", "overlap", "use --transport nccl"))
    whole = set(datatypes) - {"float", "bfloat16", "half"}
    if whole and set(collectives) & set(REDUCING):
        got = ", ".join(sorted(whole))
        raise ConfigError(message("datatype", "be float, bfloat16 or half where overlap reduces", got, ELSEWHERE))
