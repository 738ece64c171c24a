"""The face of a sharded module: an ``FSDPModule`` whose call goes through the engine.

``fully_shard`` changes a module's class to a subclass of its own class and ``ShardedModule``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from overlap import _compat
from overlap.engine.build import ShardGroup
from overlap.engine.by_hand import UnshardHandle
from overlap.engine.call import register_forward_method, run_through_engine
from overlap.engine.engine import Engine
from overlap.engine.registry import ENGINE, GROUP, ROOT, UNIT, engine_of, is_unit, unit_of
from overlap.errors import ConfigError, StateError, message
from overlap.shard.flat import home_of
from overlap.shard.unit import Unit


class ShardedModule(FSDPModule):
    """Mixin of every sharded module; methods are those of FSDP2's ``FSDPModule``."""

    _orig_cls_mro_index = 3

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with full parameters."""
        return run_through_engine(self, super().__call__, args, kwargs)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        """Torch's ``register_fsdp_forward_method`` sets a wrapper of its own: use ours."""
        if _compat.is_fsdp_forward_method(value):
            register_forward_method(self, name)
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
        """As ``nn.Module``'s; outside of passes the sharded faces, also after a failed backward, but for held units."""
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
        engine.passes.requires_gradient_sync = requires_gradient_sync

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients of backwards that start inside; the next one outside reduces all of them."""
        passes = engine_of(self).passes
        before, passes.requires_gradient_sync = passes.requires_gradient_sync, False
        try:
            yield
        finally:
            passes.requires_gradient_sync = before

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Hybrid sharding: whether the next backwards sum gradients over all copies of the model.

        With False they are summed within this rank's copy only and kept there, in the wider of gradient and reduce
        dtype, until a backward that sums over copies; ``.grad`` appears then. Without copies it changes nothing.

        Args:
            requires_all_reduce: True for the last micro-batch of a step.
            recurse: must be True, as for ``set_requires_gradient_sync``.
        """
        self._of_whole_model(
            "set_requires_all_reduce", recurse=recurse
        ).passes.requires_all_reduce = requires_all_reduce

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Bring this unit's full parameters, in compute dtype, until ``reshard()``. A collective; not recursive.

        They are for reading: what is changed in them is refused or lost (``summon_full_params`` writes back). The unit
        has a slot of its own from the first call on. A pass gathers it again only once weights have changed.

        Args:
            async_op: return a handle at once; its ``wait()``, or the unit's forward, shows full parameters.

        Raises:
            StateError: inside forward or backward, where the plan decides.
        """
        handle = engine_of(self).by_hand.unshard(unit_of(self))
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Let go of what ``unshard()`` has brought.

        Raises:
            StateError: inside forward or backward; or full parameters were edited in place.
        """
        engine_of(self).by_hand.reshard(unit_of(self))

    def reset_iter_state(self) -> None:
        """Leave a forward or backward that has raised. The next pass does it, too."""
        engine_of(self).passes.reset()

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
        modules = self.modules() if recurse else [self]  # type: ignore[attr-defined]
        units = [unit_of(module) for module in modules if UNIT in module.__dict__]
        if all(getattr(unit, name) == value for unit in units):
            return
        engine: Engine | None = self.__dict__[ROOT]().__dict__.get(ENGINE)
        with nullcontext() if engine is None else engine.by_hand.keeping_otherwise(f"set_{name}"):
            for unit in units:
                setattr(unit, name, value)

    def set_modules_to_forward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """Gather at least ``len(modules)`` units ahead, in the whole model. The plan knows which: those that come next.

        Args:
            modules: sharded modules of this model.
        """
        for module in modules:
            if UNIT not in module.__dict__ or module.__dict__[ROOT]() is not self.__dict__[ROOT]():
                cure = "pass modules that fully_shard was applied to"
                raise ConfigError(message("module to prefetch", "be a unit of this model", type(module).__name__, cure))
        engine_of(self).by_hand.gather_ahead(len(modules))

    def set_modules_to_backward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """As ``set_modules_to_forward_prefetch``: one distance serves both ways."""
        self.set_modules_to_forward_prefetch(modules)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Nothing to say: every backward of this engine ends with its reductions done. Here for FSDP2's callers."""

    def _of_whole_model(self, method: str, *, recurse: bool = True) -> Engine:
        if not recurse or self.__dict__[ROOT]() is not self:
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


def adopt(module: nn.Module, unit: Unit, group: ShardGroup) -> None:
    """Turn ``module`` into a sharded module around the units inside it."""
    cls = type(module)
    module.__class__ = type(f"Sharded{cls.__name__}", (ShardedModule, cls), {"__module__": cls.__module__})
    module.__dict__[UNIT] = unit
    module.__dict__[GROUP] = group
    for name, inner in module.named_modules():
        if is_unit(inner):
            inner.__dict__[ROOT] = weakref.ref(module)
            if (old := inner.__dict__.pop(ENGINE, None)) is not None:
                old.close()
            unit_of(inner).name = name
    for name, param in nn.Module.named_parameters(module):
        if (home := home_of(param)) is not None:
            home.param.fqn = _without_wrappers(name)


def _without_wrappers(name: str) -> str:
    """The name that a parameter has without ``torch.compile`` and torch's ``checkpoint_wrapper`` around its module."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _recover(module: nn.Module | ShardedModule) -> None:
    root = module.__dict__[ROOT]()
    engine: Engine | None = root.__dict__.get(ENGINE) if root is not None else None
    if engine is not None:
        engine.passes.recover()
