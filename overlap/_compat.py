"""Every private or renamed symbol of torch (2.11 to 2.14) and nvtx, so that a new release is one file's work."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions, ReduceScatterOptions, Store
from torch._compile import _disable_dynamo
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
from torch.utils.hooks import RemovableHandle

P = ParamSpec("P")
R = TypeVar("R")


def group_is_alive(group: ProcessGroup) -> bool:
    """Whether torch.distributed still knows the group: False once it, or all of them, were destroyed."""
    return group in distributed_c10d._world.pg_map


def group_timeout(group: ProcessGroup) -> timedelta | None:
    """The group's own timeout; None where its backend has none. `new_group` does not inherit it."""
    options = getattr(group._get_backend(group._device_types[0]), "options", None)
    return getattr(options, "_timeout", None)


def default_store() -> Store:
    """Where the ranks of the job find each other; raises where torch.distributed is not initialised."""
    return distributed_c10d._get_default_store()


def new_subgroup(ranks: Sequence[int], name: str, backend: str | None, timeout: timedelta | None) -> ProcessGroup:
    """A group of some ranks under a name of our own, which only those ranks call for.

    ``new_group`` names such groups by how many groups a rank is in: not the same number on all of them where some are
    in groups that the others are not in, and then they wait for each other for ever.
    """
    default = dist.group.WORLD
    assert default is not None
    default_backend, store = distributed_c10d._world.pg_map[default]
    backend = dist.Backend(backend or default_backend)
    group: ProcessGroup
    group, _ = distributed_c10d._new_process_group_helper(
        len(ranks),
        list(ranks).index(dist.get_rank()),
        list(ranks),
        backend,
        store,
        name,  # type: ignore[arg-type]
        timeout=timeout or distributed_c10d._get_default_timeout(backend),
        device_id=default.bound_device_id,
        group_desc=name,
    )
    distributed_c10d._world.pg_group_ranks[group] = {rank: n for n, rank in enumerate(ranks)}
    return group


def all_gather_coalesced(group: ProcessGroup, fulls: Sequence[Tensor], locals_: Sequence[Tensor]) -> None:
    """Gather many tensors in one collective, ready in the order of the current stream."""
    options = AllgatherOptions()
    options.asyncOp = False  # on CUDA: run on the current stream itself
    gather = getattr(group, "all_gather_single_coalesced", None) or group.allgather_into_tensor_coalesced
    work = gather(list(fulls), list(locals_), options)
    if work is not None:
        work.wait()


def all_gather(group: ProcessGroup, full: Tensor, local: Tensor) -> None:
    """Gather one tensor; `all_gather_into_tensor` until torch renamed it."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    call(full, local, group=group)


def reduce_scatter(
    group: ProcessGroup, out: Tensor, bucket: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> None:
    """Reduce-scatter one tensor; `reduce_scatter_tensor` until torch renamed it."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(out, bucket, op=op, group=group)


def reduce_scatter_coalesced(
    group: ProcessGroup, outs: Sequence[Tensor], buckets: Sequence[Tensor], op: dist.ReduceOp.RedOpType
) -> None:
    """Reduce-scatter many tensors in one collective."""
    options = ReduceScatterOptions()
    options.reduceOp, options.asyncOp = dist.ReduceOp(op), False
    call = getattr(group, "reduce_scatter_single_coalesced", None) or group.reduce_scatter_tensor_coalesced
    work = call(list(outs), list(buckets), options)
    if work is not None:
        work.wait()


def all_reduce_coalesced(group: ProcessGroup, tensors: Sequence[Tensor], op: dist.ReduceOp.RedOpType) -> None:
    """All-reduce many tensors in one collective, each in place."""
    options = AllreduceCoalescedOptions()
    options.reduceOp, options.asyncOp = dist.ReduceOp(op), False
    work = group.allreduce_coalesced(list(tensors), options)
    if work is not None:
        work.wait()


def uncompiled(work: Callable[P, R]) -> Callable[P, R]:
    """Run as it is inside of ``torch.compile``, too. ``torch.compiler.disable`` would import the compiler at once."""
    return _disable_dynamo(work)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back once, in the thread that runs backward, after the last node of the running backward."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def current_backward() -> int:
    """Number of the backward that runs in this thread, counting those within others; -1 outside of any."""
    return torch._C._current_graph_task_id()


def will_accumulate(leaf: Tensor) -> bool:
    """Whether the running backward adds to the gradient of a leaf, or has done so."""
    return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(leaf).node)


def init_fake_process_group(world: int) -> None:
    """Be rank 0 of a default group of ``world`` ranks, none of which is there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend; loads a lot

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


def gather_asynchronously(model: FSDPModule) -> None:
    """Let FSDP2 issue a unit's gather and those it prefetches before it waits: without streams it would not."""
    model._set_unshard_async_op(True)


def is_fsdp_forward_method(value: object) -> bool:
    """Whether ``torch.distributed.fsdp.register_fsdp_forward_method`` has made it."""
    # Its qualified name is the wrapped method's; that of its code is not.
    code = value.__code__ if isinstance(value, MethodType) and hasattr(value, "__code__") else None
    return code is not None and code.co_qualname == "register_fsdp_forward_method.<locals>.wrapped_method"


def on_accumulated(param: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call ``hook`` each time a gradient has been accumulated into a leaf, until the handle is removed."""
    wanted = param.requires_grad
    param.requires_grad_()  # torch takes no hook for a leaf that is frozen for now
    handle: RemovableHandle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    param.requires_grad_(wanted)
    return handle


def move_own_tensors(module: nn.Module, device: torch.device) -> None:
    """Move the parameters and buffers that a module itself owns, not those of its submodules."""
    module._apply(lambda tensor: tensor.to(device), recurse=False)  # type: ignore[no-untyped-call]


def parameter_table(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The dictionary in which a module registers its own parameters."""
    return module._parameters


fast_attributes = torch._C.DisableTorchFunctionSubclass
"""Inside, ``.grad``, ``._version`` and the like of a DTensor cost half as much: nobody asks for its
``__torch_function__``, which is switched off anyway. For attributes alone; no code of users may run there."""


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """How often each has been changed in place."""
    with fast_attributes():
        return [*map(_version_of, tensors)]


_version_of = attrgetter("_version")


def local_tensor(tensor: Tensor) -> Tensor:
    """Of a DTensor, as an attribute: ``to_local`` gives a view. Any other tensor is its own."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def put_into(held: Tensor, given: DTensor) -> None:
    """Let a DTensor that others hold take another's local tensor, dtype and all."""
    assert isinstance(held, DTensor)
    held.data = given
    held._local_tensor, held._spec = given._local_tensor, given._spec


def gradient_hooks(param: Tensor) -> list[Callable[[Tensor], Tensor | None]]:
    """What ``register_hook`` was called with."""
    return list((param._backward_hooks or {}).values())


def on_gradient(param: Tensor, hook: Callable[[Tensor], None]) -> None:
    """Call ``hook`` with each gradient of a leaf before it is accumulated."""
    wanted = param.requires_grad
    param.requires_grad_()  # torch takes no hook for a leaf that is frozen for now
    param.register_hook(hook)  # type: ignore[no-untyped-call]
    param.requires_grad_(wanted)


def accumulation_hooks(param: Tensor) -> list[Callable[[Tensor], None]]:
    """What ``register_post_accumulate_grad_hook`` was called with."""
    return list((param._post_accumulate_grad_hooks or {}).values())


def have_hooks(params: Iterable[Tensor], *, beside: int) -> list[bool]:
    """Which leaves have hooks of either kind, more than ``beside`` of those that see a gradient before it is added."""
    with fast_attributes():
        return [
            bool(param._post_accumulate_grad_hooks) or len(param._backward_hooks or ()) > beside for param in params
        ]


def on_registration(hook: Callable[[Any, str, Any], None]) -> None:
    """Call ``hook(module, name, what)`` for every module and parameter that is registered in any module."""
    nn.modules.module.register_module_module_registration_hook(hook)
    nn.modules.module.register_module_parameter_registration_hook(hook)


def multiply_each(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply tensors of one device and dtype by a scalar tensor of the same, in place."""
    torch._foreach_mul_(list(tensors), factor)


def share_hooks(of: Tensor, to: Tensor) -> None:
    """Give a parameter the hooks of another; handles of either remove them from both."""
    if of._backward_hooks:
        to._backward_hooks = of._backward_hooks
    if of._post_accumulate_grad_hooks:
        to._post_accumulate_grad_hooks = of._post_accumulate_grad_hooks


def base_of(tensor: Tensor) -> Tensor | None:
    """What a tensor is a view of; None for any other tensor."""
    return tensor._base


def check_finite_by_placement() -> None:
    """Let ``torch.amp.GradScaler`` learn of an Inf in any rank's shard on all ranks, whatever the order of gradients.

    torch's handler for a list of DTensors shares what it found according to the placement of the first one alone: where
    that is replicated, an Inf in another's shard stays unknown to the other ranks, and they take a step that this one
    skips (2.11 to 2.14).
    """
    handlers = DTensor._op_dispatcher._custom_op_handlers
    check = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
    handlers[check] = partial(_each_placement_apart, handlers[check])


def _each_placement_apart(handler: Callable[..., None], check: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    alike: dict[Any, list[Tensor]] = {}
    for grad in args[0]:
        alike.setdefault((grad.device_mesh, grad.placements) if isinstance(grad, DTensor) else None, []).append(grad)
    # Sharded ones last: what they share covers what the others have found.
    for key, grads in sorted(alike.items(), key=lambda each: each[0] is not None and _is_sharded(each[0][1])):
        if key is None:
            check(grads, *args[1:], **kwargs)
        else:
            handler(check, (grads, *args[1:]), kwargs)


def _is_sharded(placements: Sequence[Placement]) -> bool:
    return any(placement.is_shard() for placement in placements)


def profile_all_threads() -> Any:
    """Let torch.profiler record every thread, our lanes' too, not only those that torch has started."""
    from torch._C._profiler import _ExperimentalConfig

    return _ExperimentalConfig(profile_all_threads=True)


def nvtx_domain(name: str | None) -> Any:
    """The NVTX domain of that name (None: the default one), whatever the tool answers to whether it is enabled.

    ``nvtx`` (0.2.12 to 0.2.17) asks and, told no, hands out a stand-in that does nothing. Nsight Systems 2022.4 and
    2023.4 always say no, and record what they are sent all the same.
    """
    from nvtx import Domain
    from nvtx._lib.lib import DomainHandle

    domain = object.__new__(Domain)
    domain.handle = DomainHandle(name)
    domain.__init__(name)  # __new__ is what asks, and it alone is left out
    return domain
