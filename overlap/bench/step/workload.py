"""What every contender trains: one GPT on the bytes of Python's own library, by AdamW."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from overlap.demo.data import Corpus, load_corpus, rank_slice
from overlap.demo.model import GPT, PRESETS, GPTConfig

SIZES: Mapping[str, GPTConfig] = MappingProxyType(
    {**PRESETS, "large": GPTConfig(layers=8, heads=7, width=448, context=256)}
)
"""Those of the demo, of which "base" has 12.7 million parameters, and one of 19.5 million."""

BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1


@dataclass(frozen=True)
class Workload:
    """Model, data and optimizer of one rank."""

    config: GPTConfig
    dtype: torch.dtype
    """Of forward and backward. Weights that are updated, and their averages, are fp32."""
    lr: float
    seed: int
    rank: int
    ranks: int
    corpus: Corpus
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Of this engine, beside those that a contender's name says."""

    def model(self) -> GPT:
        """Build the fp32 model: the same weights on every rank, whenever asked."""
        torch.manual_seed(self.seed)
        return GPT(self.config)

    def adamw(self) -> dict[str, Any]:
        """Return the optimizer's constants, by the names that torch gives them."""
        return {"lr": self.lr, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}

    def batch(self, step: int, per_rank: int) -> tuple[Tensor, Tensor]:
        """Return this rank's inputs and targets of a step."""
        return rank_slice(self._rows(step, per_rank), self.rank, self.ranks)

    def whole_batch(self, step: int, per_rank: int) -> tuple[Tensor, Tensor]:
        """Return those of all ranks together."""
        return rank_slice(self._rows(step, per_rank), 0, 1)

    def _rows(self, step: int, per_rank: int) -> Tensor:
        size = per_rank * self.ranks
        return self.corpus.batch(seed=self.seed, step=step, size=size, context=self.config.context)


def make_workload(
    size: str,
    dtype: torch.dtype,
    *,
    lr: float,
    seed: int,
    rank: int,
    ranks: int,
    engine_options: Mapping[str, Any] = MappingProxyType({}),
) -> Workload:
    """Read the text and fix everything else.

    Args:
        size: name in ``SIZES``.
        dtype: of forward and backward.
        lr: constant learning rate.
        seed: of weights and batches.
        rank: of this process.
        ranks: in all.
        engine_options: fields of ``overlap.ShardOptions``.
    """
    config = SIZES[size]
    corpus = load_corpus(None, context=config.context)
    return Workload(config, dtype, lr, seed, rank, ranks, corpus, engine_options)
