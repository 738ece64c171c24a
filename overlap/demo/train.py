"""The training loop: what a user of the engine writes, and the demo's record of it."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import overlap
from overlap.demo.data import Corpus, load_corpus, rank_slice
from overlap.demo.evaluate import bits_per_byte
from overlap.demo.journal import Journal
from overlap.demo.model import GPT, Block
from overlap.demo.progress import ProgressDisplay
from overlap.demo.report import print_report
from overlap.demo.results import Heldout, collect, write
from overlap.demo.settings import TrainSettings

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0
LR_FLOOR = 0.1


def train(settings: TrainSettings, device: torch.device) -> None:
    """Train as one rank of the default process group; rank 0 shows and writes the results."""
    corpus = load_corpus(settings.data_path, context=settings.model.context)
    model = build_model(settings, device)
    before = bits_per_byte(model, corpus, context=settings.model.context, device=device)
    journal = fit(model, batches(corpus, settings, device), settings)
    after = bits_per_byte(model, corpus, context=settings.model.context, device=device)
    results = collect(settings, model, journal, Heldout(before, after))
    if results is not None:
        write(results, Path(settings.out))
        print_report(results, rank_0_console())


def build_model(settings: TrainSettings, device: torch.device) -> nn.Module:
    """Build the model as for one process, then shard it: one unit per block, and the root."""
    torch.manual_seed(settings.seed)
    model = GPT(settings.model).to(device)
    return overlap.shard(model, unit=Block, **settings.shard_options())


def fit(model: nn.Module, data: Iterable[tuple[Tensor, Tensor]], settings: TrainSettings) -> Journal:
    """Take one optimizer step per batch."""
    optimizer, update = build_optimizer(model, settings)
    schedule = LambdaLR(optimizer, lambda step: lr_factor(step, settings.steps))
    tokens = settings.batch * settings.model.context // settings.ranks
    with ProgressDisplay(rank_0_console(), settings.steps) as display:
        journal = Journal(settings.log_every, tokens, display)
        for step, (inputs, targets) in enumerate(data, start=1):
            loss = model(inputs, targets)
            loss.backward()
            grad_norm = update()
            optimizer.zero_grad()
            journal.note(step, loss, grad_norm, lr=float(schedule.get_last_lr()[0]))
            schedule.step()
    return journal


def build_optimizer(model: nn.Module, settings: TrainSettings) -> tuple[Optimizer, Callable[[], Tensor]]:
    """Return the optimizer, and a function that clips, steps and returns the gradient norm."""
    if settings.optimizer == "torch":
        plain = torch.optim.AdamW(model.parameters(), settings.lr, BETAS, weight_decay=WEIGHT_DECAY)

        def clip_and_step() -> Tensor:
            norm = overlap.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            plain.step()
            return norm

        return plain, clip_and_step
    fused = overlap.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRAD_NORM,
    )

    def step() -> Tensor:
        fused.step()
        assert fused.grad_norm is not None
        return fused.grad_norm

    return fused, step


def batches(corpus: Corpus, settings: TrainSettings, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's slice of each step's global batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(settings.steps):
        rows = corpus.batch(seed=settings.seed, step=step, size=settings.batch, context=settings.model.context)
        inputs, targets = rank_slice(rows, rank, ranks)
        yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def rank_0_console() -> Console:
    """Return a console that prints on rank 0 only."""
    return Console(quiet=dist.get_rank() != 0)


def lr_factor(step: int, steps: int) -> float:
    """A linear warm-up over at most ten steps, then a cosine down to a tenth."""
    warmup = max(1, min(10, steps // 10))
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return LR_FLOOR + (1 - LR_FLOOR) * (1 + math.cos(math.pi * done)) / 2
