"""One training run, the same for every contender: single process, DDP, FSDP2 or this engine.

The global batch of a step is the same for any number of ranks; each rank takes its slice, and the reported loss is the
mean over ranks, so runs on different numbers of ranks can be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard as fsdp2_shard
from torch.distributed.tensor import DTensor

import overlap
from overlap.demo.model import GPT, Block, GPTConfig

BATCH = 12  # divides by 1, 2, 3 and 4 ranks
CONTEXT = 16
# 257 rows do not divide by 2, 3 or 4: tails are padded, and small norms are replicated.
CONFIG = GPTConfig(context=CONTEXT, layers=3, heads=2, width=64, vocab=257)
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Run:
    """What a run ended with."""

    losses: list[float]
    params: dict[str, Tensor]
    deviations: int = 0
    issued: list[str] = field(default_factory=list)


def train(contender: str | int, *, steps: int, optimizer: str = "torch", seed: int = 0, **options: Any) -> Run:
    """Train the same model on the same batches.

    Args:
        contender: a stage of this engine, or ``single``, ``ddp``, ``fsdp2``.
        steps: optimizer steps.
        optimizer: ``torch`` or ``overlap`` AdamW.
        seed: of the initial weights.
        **options: of the engine.
    """
    torch.manual_seed(seed)
    model = _prepare(GPT(CONFIG), contender, options)
    make = overlap.AdamW if optimizer == "overlap" else torch.optim.AdamW
    update = make(model.parameters(), lr=LEARNING_RATE)
    losses = [_step(model, update, batch, alone=contender == "single") for batch in batches(steps)]
    engine = overlap.engine_of(model) if isinstance(contender, int) else None
    return Run(
        losses,
        whole_params(model.named_parameters()),
        engine.deviations if engine else 0,
        list(engine.executor.issued) if engine else [],
    )


def batches(steps: int) -> Iterable[Tensor]:
    """Global batches of byte sequences, one more byte than the context."""
    source = torch.Generator().manual_seed(1234)
    for _ in range(steps):
        yield torch.randint(0, CONFIG.vocab, (BATCH, CONTEXT + 1), generator=source)


def whole_params(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """Full parameter values by the unsharded model's names. A collective for sharded ones."""
    return {
        name.removeprefix("module."): (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in named
    }


def _prepare(model: GPT, contender: str | int, options: dict[str, Any]) -> nn.Module:
    if isinstance(contender, int):
        return overlap.shard(model, stage=contender, unit=Block, **{"prefetch": 1, **options})
    if contender == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if contender == "fsdp2":
        for block in model.blocks:
            fsdp2_shard(block)
        return fsdp2_shard(model)
    return model


def _step(model: nn.Module, update: torch.optim.Optimizer, batch: Tensor, *, alone: bool) -> float:
    rows = batch if alone else batch.chunk(dist.get_world_size())[dist.get_rank()]
    loss = model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
    loss.backward()
    update.step()
    update.zero_grad()
    total = loss.detach().clone().float()
    if not alone:
        dist.all_reduce(total)
        total /= dist.get_world_size()
    return total.item()


def largest_difference(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest absolute difference over all parameters."""
    assert mine.keys() == theirs.keys()
    return max((mine[name].float() - theirs[name].float()).abs().max().item() for name in mine)


def same_bits(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether all parameters are bitwise equal."""
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
