"""The face of a sharded module: an ``FSDPModule`` whose call goes through the engine.

``fully_shard`` changes a module's class to a subclass of its own class and ``ShardedModule``. Calling it is then

    enter_forward -> the module's own __call__ (with the user's hooks) -> exit_forward, backward triggers on outputs
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from overlap import _compat
from overlap.config import ShardOptions
from overlap.engine.build import ShardGroup
from overlap.engine.by_hand import UnshardHandle
from overlap.engine.engine import Engine
from overlap.engine.outputs import watch_outputs
from overlap.engine.tree import cast_floating
from overlap.errors import ConfigError, StateError, message
from overlap.shard.flat import home_of
from overlap.shard.unit import Unit

# Kept in a module's __dict__: nn.Module's attribute magic must not see them.
_UNIT, _ROOT, _ENGINE, _GROUP = "_overlap_unit", "_overlap_root", "_overlap_engine", "_overlap_group"

# A unit that leaves an option at its default follows the root, except for these: they already shaped its shards.
_SAME_EVERYWHERE = ("stage", "param_dtype", "replicate_max_numel")
_OF_EACH_UNIT = ("output_dtype", "cast_forward_inputs", "reshard_after_forward", "init", "init_fn")


class ShardedModule(FSDPModule):
    """Mixin of every sharded module; methods are those of FSDP2's ``FSDPModule``."""

    _orig_cls_mro_index = 3

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with full parameters."""
        return run_through_engine(self, super().__call__, args, kwargs)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        """Torch's ``register_fsdp_forward_method`` sets a wrapper of its own: use ours."""
        if _compat.is_fsdp_forward_method(value):
            register_forward_method(self, name)  # type: ignore[arg-type]
        else:
            super().__setattr__(name, value)

    def __deepcopy__(self, memo: Any) -> Any:
        """Refused: a copy would share the engine's buffers, or have none.

        Raises:
            StateError: always.
        """
        cure = (
            "build and shard a second model and load_state_dict() into it; for an average of the weights keep "
            "{name: p.detach().clone()} of its parameters"
        )
        raise StateError(message("sharded model", "not be copied", "a deepcopy", cure))

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``nn.Module``'s; always the sharded faces outside forward and backward, also after a failed backward."""
        _recover(self)
        yield from super().named_parameters(*args, **kwargs)  # type: ignore[misc]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As ``nn.Module``'s: DTensors under the names of the model before it was sharded."""
        _recover(self)
        state: dict[str, Any] = super().state_dict(*args, **kwargs)  # type: ignore[misc]
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        for name, param in super().named_parameters(remove_duplicate=False):  # type: ignore[misc]
            home, key = home_of(param), prefix + name
            if home is not None and key in state and state[key] is not param:
                # Unlike detach(), this shares the version counter: a checkpoint loaded in place is noticed.
                state[key] = home.flat.rows_like(param.to_local(), home.param)
        return state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """``.to()``, ``.cuda()``, ``.half()`` and the like: nothing where nothing would change, else an error.

        Raises:
            StateError: dtype or device would change; shards cannot follow.
        """
        _recover(self)
        with torch.no_grad():
            for tensor in (*self.parameters(recurse), *self.buffers(recurse)):  # type: ignore[attr-defined]
                changed = fn(tensor)
                if changed.dtype != tensor.dtype or changed.device != tensor.device:
                    got = f"a change from {tensor.dtype} on {tensor.device} to {changed.dtype} on {changed.device}"
                    cure = "move or cast it before sharding, or use param_dtype for mixed precision"
                    raise StateError(message("sharded model", "keep its dtype and device", got, cure))
        return self

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether the next backwards reduce gradients, or only accumulate them. Decided when backward starts.

        Args:
            requires_gradient_sync: False accumulates locally, in the wider of gradient and reduce dtype.
            recurse: must be True: gradients of a model are reduced together.
        """
        engine = self._of_whole_model("set_requires_gradient_sync", recurse=recurse)
        engine.requires_gradient_sync = requires_gradient_sync

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients of backwards that start inside; the next one outside reduces all of them."""
        engine = engine_of(self)
        before, engine.requires_gradient_sync = engine.requires_gradient_sync, False
        try:
            yield
        finally:
            engine.requires_gradient_sync = before

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Hybrid sharding: whether the next backwards sum gradients over all copies of the model.

        With False they are summed within this rank's copy only and kept there, in the wider of gradient and reduce
        dtype, until a backward that sums over copies; ``.grad`` appears then. Without copies it changes nothing.

        Args:
            requires_all_reduce: True for the last micro-batch of a step.
            recurse: must be True, as for ``set_requires_gradient_sync``.
        """
        self._of_whole_model("set_requires_all_reduce", recurse=recurse).requires_all_reduce = requires_all_reduce

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Bring this unit's full parameters, in compute dtype, until ``reshard()``. A collective; not recursive.

        They are for reading: what is changed in them is refused or lost (``summon_full_params`` writes back). The unit
        has a slot of its own from the first call on. A pass gathers it again only once weights have changed.

        Args:
            async_op: return a handle at once; its ``wait()``, or the unit's forward, shows full parameters.

        Raises:
            StateError: inside forward or backward, where the plan decides.
        """
        handle = engine_of(self).unshard(unit_of(self))
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Let go of what ``unshard()`` has brought.

        Raises:
            StateError: inside forward or backward; or full parameters were edited in place.
        """
        engine_of(self).reshard(unit_of(self))

    def reset_iter_state(self) -> None:
        """Leave a forward or backward that has raised. The next pass does it, too."""
        engine_of(self).reset()

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether full parameters leave after forward; between passes. Without effect where they are resident.

        Args:
            reshard_after_forward: False gives each unit memory of its own and saves the gather for backward.
            recurse: also for the units inside.
        """
        self._keep(recurse, "reshard_after_forward", reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether full parameters leave after backward; between passes.

        Args:
            reshard_after_backward: False keeps them until weights change: micro-batches gather once.
            recurse: also for the units inside.
        """
        self._keep(recurse, "reshard_after_backward", reshard_after_backward)

    def _keep(self, recurse: bool, name: str, value: bool) -> None:
        if not isinstance(value, bool):
            raise ConfigError(message(name, "be True or False", value, "choose one of them"))
        for module in self.modules() if recurse else [self]:  # type: ignore[attr-defined]
            if _UNIT in module.__dict__:
                setattr(unit_of(module), name, value)
        engine: Engine | None = self.__dict__[_ROOT]().__dict__.get(_ENGINE)
        if engine is not None:
            engine.keep_otherwise()

    def set_modules_to_forward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """Gather at least ``len(modules)`` units ahead, in the whole model. The plan knows which: those that come next.

        Args:
            modules: sharded modules of this model.
        """
        for module in modules:
            if _UNIT not in module.__dict__ or module.__dict__[_ROOT]() is not self.__dict__[_ROOT]():
                cure = "pass modules that fully_shard was applied to"
                raise ConfigError(message("module to prefetch", "be a unit of this model", type(module).__name__, cure))
        engine_of(self).gather_ahead(len(modules))

    def set_modules_to_backward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """As ``set_modules_to_forward_prefetch``: one distance serves both ways."""
        self.set_modules_to_forward_prefetch(modules)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Nothing to say: every backward of this engine ends with its reductions done. Here for FSDP2's callers."""

    def _of_whole_model(self, method: str, *, recurse: bool = True) -> Engine:
        if not recurse or self.__dict__[_ROOT]() is not self:
            got = "recurse=False" if not recurse else f"unit {unit_of(self).name!r}"
            cure = "set it on the outermost module"
            raise ConfigError(message(f"{method}()", "concern the whole model", got, cure))
        return engine_of(self)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide summed gradients by ``factor`` instead of the number of ranks; concerns the whole model."""
        if not factor > 0:
            raise ConfigError(message("factor", "be above 0", factor, "give the number that the sum is divided by"))
        engine_of(self).gradients.divide_factor = float(factor)


def _refused(name: str) -> Any:
    def refuse(self: ShardedModule, *args: Any, **kwargs: Any) -> None:
        raise StateError(
            message(
                f"{name}()",
                "be one of FSDPModule's methods that this engine has",
                "one that it does not have",
                "set the matching option of overlap.fully_shard, or read whole parameters with full_tensor()",
            )
        )

    refuse.__name__ = name
    refuse.__doc__ = f"Not available: FSDP2's ``{name}`` sets what the plan decides here."
    return refuse


# A method that FSDP2 has and this class would inherit reaches into FSDP2's own state: refuse it by name instead.
for _name in [name for name in vars(FSDPModule) if not name.startswith("_") and name not in vars(ShardedModule)]:
    setattr(ShardedModule, _name, _refused(_name))


def run_through_engine(
    module: nn.Module | ShardedModule, call: Callable[..., Any], args: Any, kwargs: Any, method: str = ""
) -> Any:
    """Call something of a sharded module with full parameters, as its forward is called."""
    unit = unit_of(module)
    engine = engine_of(module)
    if engine.summoned:  # the parameters that are registered are full and plain
        return call(*args, **kwargs)
    if unit.options.param_dtype is not None and unit.options.cast_forward_inputs:
        args, kwargs = cast_floating((args, kwargs), unit.options.param_dtype)
    try:
        engine.enter_forward(unit, method)
        outputs = call(*args, **kwargs)
    except BaseException:
        engine.interrupt(unit)
        raise
    engine.exit_forward(unit)
    if unit.options.output_dtype is not None:
        outputs = cast_floating(outputs, unit.options.output_dtype)
    if torch.is_grad_enabled():
        watch_outputs(outputs, (args, kwargs), unit, engine.backward_trigger(unit))
    return outputs


def register_forward_method(module: nn.Module, method_name: str) -> None:
    """Let a method other than ``forward`` (``generate``, ``encode``) run with full parameters, too.

    As ``torch.distributed.fsdp.register_fsdp_forward_method``, which works as well. For a module that is not sharded it
    does nothing, so that one program serves both.

    Args:
        module: a sharded module.
        method_name: of a method of its class.

    Raises:
        ConfigError: its class has no such method.
    """
    if not is_unit(module):
        return
    cls = type(module)
    method = getattr(cls, method_name, None)
    if not callable(method):
        got, cure = f"no {method_name!r}", "name a method of its class"
        raise ConfigError(message(f"class {cls.__name__}", "have the method", got, cure))

    @wraps(method)
    def through_engine(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run_through_engine(self, partial(method, self), args, kwargs, method_name)

    # On the class, which this module has for itself: a bound method on the module would keep it alive.
    setattr(cls, method_name, through_engine)


def adopt(module: nn.Module, unit: Unit, group: ShardGroup) -> None:
    """Turn ``module`` into a sharded module around the units inside it."""
    cls = type(module)
    module.__class__ = type(f"Sharded{cls.__name__}", (ShardedModule, cls), {"__module__": cls.__module__})
    module.__dict__[_UNIT] = unit
    module.__dict__[_GROUP] = group
    for name, inner in module.named_modules():
        if is_unit(inner):
            inner.__dict__[_ROOT] = weakref.ref(module)
            if (old := inner.__dict__.pop(_ENGINE, None)) is not None:
                old.close()
            unit_of(inner).name = name
    for name, param in nn.Module.named_parameters(module):
        if (home := home_of(param)) is not None:
            home.param.fqn = _without_wrappers(name)


def _without_wrappers(name: str) -> str:
    """The name that a parameter has without ``torch.compile`` and torch's ``checkpoint_wrapper`` around its module."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def is_unit(module: nn.Module) -> bool:
    """Whether ``fully_shard`` has been applied to the module itself."""
    return _UNIT in module.__dict__


def unit_of(module: nn.Module | ShardedModule) -> Unit:
    """The unit of a sharded module."""
    unit: Unit = module.__dict__[_UNIT]
    return unit


def engine_of(module: nn.Module | ShardedModule) -> Engine:
    """The engine that runs a sharded module; made now if no forward has made it yet (a collective then).

    Raises:
        StateError: the module is not sharded.
        ConfigError: its units were sharded with options that must be the same everywhere.
    """
    if _UNIT not in module.__dict__:
        raise StateError(
            message(
                "module",
                "be sharded",
                type(module).__name__,
                "call overlap.fully_shard or overlap.shard on it",
            )
        )
    root = module.__dict__[_ROOT]()
    engine: Engine | None = root.__dict__.get(_ENGINE)
    if engine is None:
        engine = root.__dict__[_ENGINE] = _make_engine(root)
    return engine


def _recover(module: nn.Module | ShardedModule) -> None:
    root = module.__dict__[_ROOT]()
    engine: Engine | None = root.__dict__.get(_ENGINE) if root is not None else None
    if engine is not None:
        engine.recover()


def _make_engine(root: nn.Module) -> Engine:
    units = [unit_of(module) for module in root.modules() if is_unit(module)]
    options = units[0].options
    for unit in units:
        _check_same(unit, options)
    # Tensors made under inference_mode could never be trained.
    with torch.inference_mode(False), torch.no_grad():
        return Engine(units, root.__dict__[_GROUP], options)


def _check_same(unit: Unit, options: ShardOptions) -> None:
    """What concerns the whole model is taken from the root: refuse another wish, do not ignore it."""
    for field in fields(ShardOptions):
        mine, theirs = getattr(unit.options, field.name), getattr(options, field.name)
        wished = field.name in _SAME_EVERYWHERE or mine != field.default
        if mine != theirs and wished and field.name not in _OF_EACH_UNIT:
            got, cure = f"{mine} in unit {unit.name!r}", "set it on the outermost module"
            raise ConfigError(message(field.name, f"equal the root's, {theirs}", got, cure))
