"""A process group per lane: lanes must not queue behind each other, and each has an order of its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import ProcessGroup

from overlap import _compat
from overlap.comm.collective import Communicator
from overlap.comm.control import ControlChannel
from overlap.comm.pairwise import PairwiseCommunicator
from overlap.comm.process_group import ProcessGroupCommunicator
from overlap.comm.volume import WireCounter
from overlap.errors import ConfigError, StateError, message

Transport = Callable[[str, Sequence[int], Callable[[], Communicator]], Communicator]

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}

# Groups cost threads and sockets until torch.distributed is destroyed: one per lane, however many engines or
# base groups over the same ranks come and go. The weak key is the default group: all go with it.
_Key = tuple[tuple[int, ...], str, str | None, timedelta | None]
_groups: WeakKeyDictionary[ProcessGroup, dict[_Key, ProcessGroup]] = WeakKeyDictionary()


_transport: Transport | None = None


def lane_group(
    base: ProcessGroup | None, lane: str, *, backend: str | None = None, ranks: Sequence[int] | None = None
) -> ProcessGroup:
    """The group of `lane` over the ranks of `base`, made at the first call; it has `base`'s timeout.

    A collective: its ranks (and no others) call it in the same order.

    Args:
        base: None is the default group.
        lane: any name; each has a group of its own.
        ranks: global ranks to take instead of `base`'s.
        backend: "gloo", "nccl", ...; None is the default group's.

    Raises:
        StateError: torch.distributed is not initialised, or `base` or the lane's group was destroyed.
    """
    base = _alive(dist.group.WORLD if base is None else base, "process group")
    lanes = _groups.setdefault(_alive(dist.group.WORLD, "process group"), {})
    members, timeout = tuple(ranks or dist.get_process_group_ranks(base)), _compat.group_timeout(base)
    key = (members, lane, backend, timeout)
    if key not in lanes:
        lanes[key] = _new_group(members, lane, backend, timeout)
    # A successor would not do: torch gives it the same name, under which ranks find each other's dead addresses.
    return _alive(lanes[key], f"group of lane '{lane}'")


@contextmanager
def transport(make: Transport) -> Iterator[None]:
    """Within the block, let ``make`` open communicators, from lane, global ranks and what would usually open one."""
    global _transport
    before, _transport = _transport, make
    try:
        yield
    finally:
        _transport = before


def communicator_for(
    group: ProcessGroup | None,
    lane: str,
    device_type: str,
    ranks: Sequence[int] | None = None,
    counter: WireCounter | None = None,
) -> Communicator:
    """A communicator for `lane` over the ranks of `group`: pairwise on "cpu", NCCL on "cuda".

    A collective, as `lane_group`; `ranks` as there; `counter` counts for it. Raises `ConfigError` for another device
    type.
    """
    usual = partial(_usual_communicator, group, lane, device_type, ranks, counter)
    if _transport is None:
        return usual()
    base = _alive(dist.group.WORLD if group is None else group, "process group")
    return _transport(lane, ranks or dist.get_process_group_ranks(base), usual)


def _usual_communicator(
    group: ProcessGroup | None,
    lane: str,
    device_type: str,
    ranks: Sequence[int] | None,
    counter: WireCounter | None,
) -> Communicator:
    backend = _BACKENDS.get(device_type)
    if backend is None:
        rule = f"be one of {list(_BACKENDS)}"
        raise ConfigError(message("device type", rule, device_type, "move the model"))
    lane_of = lane_group(group, lane, backend=backend, ranks=ranks)
    if device_type == "cpu":
        return PairwiseCommunicator(lane_of, lane, counter)
    return ProcessGroupCommunicator(lane_of, lane, counter)


def control_channel(group: ProcessGroup | None, ranks: Sequence[int] | None = None) -> ControlChannel:
    """The host-side channel over the ranks of `group`, or over `ranks`: gloo, whatever the device. A collective."""
    return ControlChannel(communicator_for(group, "control", "cpu", ranks))


def _alive(group: ProcessGroup | None, what: str) -> ProcessGroup:
    if group is None or not _compat.group_is_alive(group):
        cure = "call torch.distributed.init_process_group() (again)"
        raise StateError(message(what, "be initialised", "none, or a destroyed one", cure))
    return group


def _new_group(ranks: tuple[int, ...], lane: str, backend: str | None, timeout: timedelta | None) -> ProcessGroup:
    if len(ranks) < dist.get_world_size():
        # Ranks outside the group need not take part, so that hybrid meshes and sub-worlds work alike.
        name = f"overlap:{lane}:{backend}:{timeout}:{'_'.join(map(str, ranks))}"
        return _compat.new_subgroup(ranks, name, backend, timeout)
    group = dist.new_group(list(ranks), timeout=timeout, backend=backend, group_desc=f"overlap:{lane}")
    assert isinstance(group, ProcessGroup)
    return group
