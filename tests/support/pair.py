"""A sharded model in training; alone, or beside a plain one that gets the same gradients without any engine.

The plain model computes every rank's losses itself, scales and adds their gradients in rank order: what the engine
promises (sums in rank order, in fp32). In fp32 with the same optimizer, both therefore stay equal to the bit.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from support.models import SMALL, Block, Model, loss_of, seeded
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap

Loss = Callable[[nn.Module, int, int], Tensor]
"""Loss of a model on what a rank has in a step."""


def shard_blocks(model: Model, **options: Any) -> Model:
    """Each block a unit, the rest another; matrices sharded, the small parameters of blocks replicated."""
    return overlap.shard(model, unit=Block, **{"replicate_max_numel": SMALL, "prefetch": 1, **options})


def sgd(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


class Sharded:
    """A sharded model in training, on the rank that makes it."""

    def __init__(
        self,
        *,
        traits: dict[str, Any] | None = None,
        prepare: Callable[[Model], None] = lambda model: None,
        optimizer: Callable[..., torch.optim.Optimizer] = sgd,
        **options: Any,
    ) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        model = seeded(**(traits or {}))
        prepare(model)
        self.model = shard_blocks(model, **options)
        self.update = optimizer(self.model.parameters())
        self.steps = 0

    @property
    def engine(self) -> overlap.Engine:
        return overlap.engine_of(self.model)

    def step(self, *losses: Loss) -> None:
        """Forward, backward and update."""
        self.backward(*losses)
        self.apply()

    def backward(self, *losses: Loss) -> None:
        """One backward per loss, as micro-batches that are reduced together."""
        losses = losses or (loss_of,)
        for number, loss in enumerate(losses):
            self.model.set_requires_gradient_sync(number == len(losses) - 1)
            loss(self.model, self.rank, self.steps).backward()

    def apply(self) -> None:
        """Update, and forget gradients."""
        self.update.step()
        self.update.zero_grad()
        self.steps += 1


class Pair(Sharded):
    """Both models, trained alike."""

    def __init__(
        self,
        *,
        traits: dict[str, Any] | None = None,
        prepare: Callable[[Model], None] = lambda model: None,
        optimizer: Callable[..., torch.optim.Optimizer] = sgd,
        **options: Any,
    ) -> None:
        super().__init__(traits=traits, prepare=prepare, optimizer=optimizer, **options)
        self.plain = seeded(tied=bool(traits and traits.get("tied")))
        prepare(self.plain)
        self.plain_update = optimizer(self.plain.parameters())

    def backward(self, *losses: Loss) -> None:
        super().backward(*losses)
        self.backward_plain(*losses)

    def backward_plain(self, *losses: Loss) -> None:
        """What the sharded model has to match."""
        losses = losses or (loss_of,)
        add_gradients(self.plain, self.world, lambda rank: (loss(self.plain, rank, self.steps) for loss in losses))

    def apply(self) -> None:
        super().apply()
        self.plain_update.step()
        self.plain_update.zero_grad()

    def check(self, when: str = "at the end") -> None:
        """Both have the same parameters, to the bit."""
        assert_same_bits(whole(self.model), whole(self.plain), when)


def add_gradients(model: nn.Module, world: int, losses_of: Callable[[int], Iterable[Tensor]]) -> None:
    """Add to ``.grad`` the mean over ranks of the gradients of their losses; what no rank uses stays None."""
    params = [param for param in model.parameters() if param.requires_grad]
    total: list[Tensor | None] = [None] * len(params)
    for rank in range(world):
        mine: list[Tensor | None] = [None] * len(params)
        for loss in losses_of(rank):
            grads = torch.autograd.grad(loss, params, allow_unused=True)
            mine = [
                _sum(old, None if new is None else new * (1.0 / world)) for old, new in zip(mine, grads, strict=True)
            ]
        total = [_sum(old, new) for old, new in zip(total, mine, strict=True)]
    for param, grad in zip(params, total, strict=True):
        param.grad = _sum(param.grad, grad)


def _sum(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    return new if old is None else old if new is None else old + new


def routed(*route: int) -> Loss:
    """The usual loss through other blocks, or in another order."""
    return lambda model, rank, step: loss_of(model, rank, step, route)


def routed_by_rank(*routes: Sequence[int]) -> Loss:
    """The usual loss through blocks that depend on the rank."""
    return lambda model, rank, step: loss_of(model, rank, step, routes[rank])


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Full values of all parameters by name; a collective for sharded ones."""
    return {
        name: (param.full_tensor() if isinstance(param, DTensor) else param).detach().clone()
        for name, param in model.named_parameters()
    }


def assert_same_bits(mine: dict[str, Tensor], theirs: dict[str, Tensor], when: str = "") -> None:
    """Names and bits of all tensors agree."""
    assert mine.keys() == theirs.keys(), f"names differ {when}: {sorted(mine.keys() ^ theirs.keys())}"
    odd = {
        name: f"{(mine[name] - theirs[name]).abs().max():.3e}" for name in mine if not _same(mine[name], theirs[name])
    }
    assert not odd, f"differences {when}: {odd}"


def _same(mine: Tensor, theirs: Tensor) -> bool:
    return mine.dtype == theirs.dtype and torch.equal(mine, theirs)
