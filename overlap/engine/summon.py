"""Full parameters of a whole model at once, to read or to change: outside of training, at the price of their memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from overlap.engine.registry import engine_of, is_unit, unit_of
from overlap.errors import ConfigError, StateError, message
from overlap.shard.flat import home_of
from overlap.shard.param import ShardedParam, rows_in


@dataclass(frozen=True, slots=True)
class _Summoned:
    """A parameter whose full value stands in for it."""

    param: ShardedParam
    full: nn.Parameter

    def show(self) -> None:
        for owner in self.param.owners:
            owner.table[owner.attribute] = self.full

    def write_back(self) -> None:
        public = self.param.public
        assert isinstance(public, DTensor)
        local = public.to_local()
        rows = rows_in(self.full.detach(), self.param.layout, _rank_of(self.param))
        local.copy_(rows)


@contextmanager
def summon_full_params(
    module: nn.Module,
    *,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
) -> Iterator[None]:
    """Register full parameters, in master precision, while inside. A collective; between passes.

    Modules may be called inside, without the engine: with no gradient, or functionally (``torch.func``). A ``backward``
    inside would leave its gradients on parameters that are dropped, and is refused at the end. As
    ``FullyShardedDataParallel.summon_full_params``.

    Args:
        module: a sharded module, or one that holds some.
        recurse: also for units inside it.
        writeback: take over what was changed; every rank writes its own rows, so all must change them alike.
        rank0_only: other ranks keep their shards registered, and save the memory; not with ``writeback``.
        offload_to_cpu: full parameters on the CPU.

    Raises:
        ConfigError: ``rank0_only`` with ``writeback``, or nothing is sharded.
        StateError: inside forward or backward, or in another ``summon_full_params``.
    """
    if rank0_only and writeback:
        raise ConfigError(message("writeback", "be False with rank0_only", "True", "write back on all ranks"))
    modules = [each for each in (module.modules() if recurse else [module]) if is_unit(each)]
    if not modules:
        cure = "call overlap.shard on it"
        raise ConfigError(message("module", "be sharded or hold sharded ones", type(module).__name__, cure))
    engines = list({id(engine): engine for engine in map(engine_of, modules)}.values())
    with ExitStack() as ends:
        for engine in engines:
            engine.by_hand.begin_summon()
            ends.callback(engine.by_hand.end_summon)
        summoned = _summon(modules, show=not rank0_only or dist.get_rank() == 0, to_cpu=offload_to_cpu)
        yield
        _finish(summoned, writeback=writeback)


@torch.no_grad()
def _summon(modules: list[nn.Module], *, show: bool, to_cpu: bool) -> list[_Summoned]:
    summoned = []
    for param in (param for module in modules for param in unit_of(module).params):
        assert isinstance(param.public, DTensor)
        full = param.public.full_tensor()  # on all ranks: a collective
        if show:
            # A replica's full tensor is the replica itself: what is changed without writeback must not reach it.
            full = full.cpu() if to_cpu else full.clone()
            summoned.append(_Summoned(param, nn.Parameter(full, requires_grad=param.public.requires_grad)))
    for each in summoned:
        each.show()
    return summoned


@torch.no_grad()
def _finish(summoned: list[_Summoned], *, writeback: bool) -> None:
    for each in summoned:
        if each.full.grad is not None:
            cure = "run backward outside of summon_full_params"
            got = "a gradient, which would be lost"
            raise StateError(message(f"full parameter {each.param.fqn!r}", "not be trained inside", got, cure))
    if writeback:
        for each in summoned:
            each.write_back()


def _rank_of(param: ShardedParam) -> int:
    home = home_of(param.public)
    assert home is not None
    return home.flat.rank
