"""What a collective moved: its kind, its size as nccl-tests counts it, its communicator.

Kineto tells in three places, by version: arguments of the kernel, the ``nccl:all_reduce`` range around its launch, the
name of the kernel. What none of them says stays unknown.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, cast, get_args

from overlap.comm.volume import Collective, wire_bytes
from overlap.profiling.nesting import HostEvent
from overlap.profiling.recording import Message

_KINDS = (
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("reduce", re.compile(r"(?<![a-z])reduce", re.IGNORECASE)),
    ("send_recv", re.compile(r"send|recv", re.IGNORECASE)),
)
_RANGE = re.compile(r"^(?:nccl|gloo):_*(?P<kind>\w+)")
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long int", "long", "int64", "float64", "uint64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32", "uint32"), 4),
    **dict.fromkeys(("bfloat16", "half", "short", "short int", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
}
_KNOWN = get_args(Collective)
LANE_COLLECTIVES = {"gather": "all_gather", "reduce": "reduce_scatter", "replicate": "all_reduce"}
"""What our lanes call."""


def message_of(name: str, args: Mapping[str, Any], around: Sequence[HostEvent], world: int) -> Message:
    """The message of one communication.

    Args:
        name: of the kernel or range.
        args: arguments of the kernel.
        around: host ranges that were open at its launch, outermost first.
        world: ranks of the job, taken where the trace names no communicator; 0 where unknown.
    """
    ours = next((event for event in reversed(around) if _RANGE.match(event.name)), None)
    kind = kind_of(str(args.get("Collective name", ""))) or (kind_of(ours.name) if ours else "") or kind_of(name)
    ranks = int(args.get("Group size", 0)) or world
    size = _stated_bytes(kind, args) or (input_bytes(kind, ours.args, ranks) if ours else 0)
    return message(
        kind, size, str(args.get("Process Group Description") or args.get("Process Group Name") or ""), ranks
    )


def message(kind: str, size: int, group: str, ranks: int) -> Message:
    """A message, with the bytes on the wire where the kind has a formula."""
    on_wire = wire_bytes(cast("Collective", kind), size, ranks) if kind in _KNOWN and size and ranks else 0
    return Message(collective=kind, bytes=size, wire_bytes=on_wire, group=group, world=ranks)


def kind_of(name: str) -> str:
    """The collective that a name speaks of; "" for none."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "")


def input_bytes(kind: str, args: Mapping[str, Any], ranks: int) -> int:
    """Size from the input tensor that a range of c10d names; an all-gather puts out ``ranks`` times as much."""
    dims, types = args.get("Input Dims", ()), args.get("Input type", ())
    size: int = sum(prod(shape) * item_bytes(dtype) for shape, dtype in zip(dims, types, strict=False) if _flat(shape))
    return size * ranks if kind == "all_gather" else size


def item_bytes(dtype: str) -> int:
    """Bytes of an element by any of the names that traces use; 0 for an unknown one."""
    return _ITEM_BYTES.get(dtype.removeprefix("c10::").lower(), 0)


def _flat(shape: object) -> bool:
    return isinstance(shape, list) and bool(shape) and all(isinstance(size, int) for size in shape)


def _stated_bytes(kind: str, args: Mapping[str, Any]) -> int:
    """Size from the kernel's own arguments: the larger of input and output is the whole tensor."""
    counts = [int(args[key]) for key in ("In msg nelems", "Out msg nelems") if key in args]
    return max(counts, default=0) * item_bytes(str(args.get("dtype", "")))


def world_of(header: Mapping[str, Any]) -> int:
    """Ranks of the job as the header tells; 0 where it does not."""
    info: Mapping[str, Any] = header.get("distributedInfo", {})
    return int(info.get("world_size", 0))
