"""Any model, sharded and plain, trained alike: the plain one gets what the engine promises, without an engine.

As ``pair.Pair``, but for models of the caller's own: in fp32 both stay equal to the bit where no weight is used twice.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from support.pair import Loss, add_gradients, assert_same_bits, sgd, whole
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import overlap

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


class Twins:
    """Both models; ``model`` is the sharded one."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        loss: Loss,
        *,
        optimizer: Callable[..., torch.optim.Optimizer] = sgd,
        **options: Any,
    ) -> None:
        self.rank, self.world, self.loss = dist.get_rank(), dist.get_world_size(), loss
        self.model, self.plain = _seeded(build), _seeded(build)
        overlap.shard(self.model, **{"replicate_max_numel": 16, "poison": True, "prefetch": 1, **options})
        self.update = optimizer(self.model.parameters())
        self.plain_update = optimizer(self.plain.parameters())
        self.steps = 0

    @property
    def engine(self) -> overlap.Engine:
        return overlap.engine_of(self.model)

    def step(self) -> None:
        """Forward, backward and update."""
        self.backward()
        self.apply()

    def backward(self) -> None:
        """Of both."""
        self.loss(self.model, self.rank, self.steps).backward()
        self.backward_plain()

    def backward_plain(self) -> None:
        """Of the plain one: the mean over ranks."""
        add_gradients(self.plain, self.world, lambda rank: [self.loss(self.plain, rank, self.steps)])

    def apply(self) -> None:
        """Update both, and forget gradients."""
        for update in (self.update, self.plain_update):
            update.step()
            update.zero_grad()
        self.steps += 1

    def check(self, when: str = "at the end", *, bits: bool = True) -> None:
        """Both have the same parameters."""
        if bits:
            assert_same_bits(whole(self.model), whole(self.plain), when)
        else:
            _assert_close(whole(self.model), whole(self.plain), when)

    def check_gradients(self, when: str = "", *, bits: bool = True) -> None:
        """Both have the same gradients; None where the other has None."""
        mine, theirs = gradients(self.model), gradients(self.plain)
        (assert_same_bits if bits else _assert_close)(mine, theirs, f"in gradients {when}")


def _seeded(build: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return build()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients by name, of those that have one."""
    grads = {name: param.grad for name, param in model.named_parameters()}
    return {
        name: (grad.full_tensor() if isinstance(grad, DTensor) else grad).detach().clone()
        for name, grad in grads.items()
        if grad is not None
    }


def _assert_close(mine: dict[str, Tensor], theirs: dict[str, Tensor], when: str) -> None:
    assert mine.keys() == theirs.keys(), f"names differ {when}: {sorted(mine.keys() ^ theirs.keys())}"
    odd = {
        name: f"{(mine[name] - theirs[name]).abs().max():.3e}"
        for name in mine
        if not torch.allclose(mine[name], theirs[name], **CLOSE)
    }
    assert not odd, f"differences {when}: {odd}"
