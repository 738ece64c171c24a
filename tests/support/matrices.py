"""A model of matrices of all kinds, trained by our Muon, and its parameters in one process, trained by torch's.

Torch's takes two dimensions only: its matrices are views of the plain parameters, a kernel one, a stack several. It is
given the gradients of the sharded model, gathered, so that both stay equal to the bit while ours iterates in bf16.
"""

from typing import Any

import torch
import torch.distributed as dist
from support.pair import assert_same_bits, whole
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

import overlap

BF16 = torch.bfloat16
STACKS = ("experts", "few")


class Matrices(nn.Module):
    """Tall, wide, square; one with three rows, split along its columns over four ranks; kernels; stacks; vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 37), nn.Linear(37, 3, bias=False)
        self.wide, self.square = nn.Linear(3, 16, bias=False), nn.Linear(16, 16)
        self.experts = nn.Parameter(torch.randn(4, 16, 8) * 0.3)
        self.few = nn.Parameter(torch.randn(3, 8, 16) * 0.3)
        self.kernel = nn.Conv2d(4, 6, 3, bias=False)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.square(torch.tanh(self.wide(self.down(torch.tanh(self.up(x))))))
        x = x + torch.einsum("bw,ewh,ehv->bv", torch.tanh(x), self.experts[:3], self.few) + self.experts[3].mean()
        return self.norm(x).sum(-1) + self.kernel(x.view(-1, 4, 2, 2).repeat(1, 1, 2, 2)).sum((1, 2, 3))


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    """On a batch that no other rank or step has."""
    source = torch.Generator().manual_seed(7919 * step + rank)
    return (model(torch.randn(5, 16, generator=source)) - 1.0).square().mean()


def seeded() -> Matrices:
    torch.manual_seed(0)
    return Matrices()


def sharded(**options: Any) -> Matrices:
    """Every child a unit; vectors are replicated, matrices are not."""
    return overlap.shard(seeded(), unit="*", **{"replicate_max_numel": 37, "poison": True, "prefetch": 1, **options})


def groups_of(model: nn.Module, **first: Any) -> list[dict[str, Any]]:
    """What Muon takes: matrices, with options of their own, and stacks."""
    named = [(name, param) for name, param in model.named_parameters() if param.ndim > 1]
    stacks = [param for name, param in named if name in STACKS]
    return [
        {"params": [param for name, param in named if name not in STACKS], **first},
        {"params": stacks, "stacked": True},
    ]


def vectors_of(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.ndim < 2]


class MuonPair:
    """Both models; ``model`` is the sharded one."""

    def __init__(
        self,
        *,
        options: dict[str, Any] | None = None,
        first: dict[str, Any] | None = None,
        ns_dtype: torch.dtype | None = BF16,
        **shard: Any,
    ) -> None:
        self.rank, self.world, self.steps = dist.get_rank(), dist.get_world_size(), 0
        options, first = {"lr": 0.02, **(options or {})}, first or {}
        self.model, self.plain = sharded(**shard), seeded()
        self.update = overlap.Muon(groups_of(self.model, **first), ns_dtype=ns_dtype, **options)
        self.leaves = [_leaves(group) for group in groups_of(self.plain)]
        groups = [{"params": [leaf for leaf, _ in leaves]} for leaves in self.leaves]
        self.plain_update = torch.optim.Muon([{**groups[0], **first}, groups[1]], **options)
        self.others = [torch.optim.SGD(vectors_of(model), lr=0.1) for model in (self.model, self.plain)]

    @property
    def engine(self) -> overlap.Engine:
        return overlap.engine_of(self.model)

    def step(self) -> None:
        self.backward()
        self.apply()

    def backward(self) -> None:
        loss_of(self.model, self.rank, self.steps).backward()
        self.hand_over()

    def hand_over(self) -> None:
        """Give the plain model the gradients that the sharded one has."""
        for mine, theirs in zip(self.model.parameters(), self.plain.parameters(), strict=True):
            assert mine.grad is None or isinstance(mine.grad, DTensor)
            theirs.grad = None if mine.grad is None else mine.grad.full_tensor().to(theirs.dtype, copy=True)

    def apply(self) -> None:
        self.update.step()
        self.plain_step()
        for update in self.others:
            update.step()
        self.forget()

    def forget(self) -> None:
        """Drop gradients, go to the next batch."""
        self.model.zero_grad()
        self.plain.zero_grad()
        self.steps += 1

    def plain_step(self) -> None:
        for leaf, grad_of in (pair for leaves in self.leaves for pair in leaves):
            leaf.grad = grad_of()
        self.plain_update.step()

    def check(self, when: str = "at the end") -> None:
        assert_same_bits(whole(self.model), whole(self.plain), when)


def _leaves(group: dict[str, Any]) -> list[tuple[Tensor, Any]]:
    """Each matrix of a group as torch's Muon takes it, and how to get its gradient."""
    return [
        (_matrix(param.detach(), group, number), _gradient_of(param, group, number))
        for param in group["params"]
        for number in range(len(param) if group.get("stacked") else 1)
    ]


def _gradient_of(param: nn.Parameter, group: dict[str, Any], number: int) -> Any:
    return lambda: None if param.grad is None else _matrix(param.grad, group, number)


def _matrix(values: Tensor, group: dict[str, Any], number: int) -> Tensor:
    return values[number] if group.get("stacked") else values.flatten(1)


def give_gradients(model: nn.Module, step: int) -> None:
    """Gradients that do not depend on the number of ranks, without a backward."""
    source = torch.Generator().manual_seed(step)
    for param in model.parameters():
        value = torch.randn(param.shape, generator=source)
        if isinstance(param, DTensor):
            full = DTensor.from_local(value, param.device_mesh, [Replicate()] * param.device_mesh.ndim)
            value = full.redistribute(placements=param.placements)
        param.grad = value
