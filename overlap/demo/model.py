"""A byte-level GPT in plain PyTorch. It knows nothing of ranks, shards or lanes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256
INIT_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Shape of the model. Width must be a multiple of heads."""

    context: int = 128
    layers: int = 6
    heads: int = 4
    width: int = 256
    vocab: int = BYTES
    tied: bool = False
    """Whether the head shares the token embedding's weight."""


PRESETS: Mapping[str, GPTConfig] = MappingProxyType(
    {
        "tiny": GPTConfig(layers=4, heads=4, width=128),
        "small": GPTConfig(layers=6, heads=4, width=256),
        "base": GPTConfig(layers=7, heads=6, width=384, context=256),
    }
)
"""About 0.9, 4.9 and 12.7 million parameters."""


class Linear(nn.Linear):
    """A linear map without bias whose weights start normal with a given deviation."""

    def __init__(self, fan_in: int, fan_out: int, std: float = INIT_STD) -> None:
        self.std = std  # before super(): its constructor calls reset_parameters
        super().__init__(fan_in, fan_out, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights from torch's current generator."""
        nn.init.normal_(self.weight, std=self.std)


class Embedding(nn.Embedding):
    """A lookup table that starts normal with the deviation of the linear maps."""

    def reset_parameters(self) -> None:
        """Draw the table from torch's current generator."""
        nn.init.normal_(self.weight, std=INIT_STD)


class Attention(nn.Module):
    """Causal self-attention over all heads at once."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.width, 3 * config.width)
        self.out = Linear(config.width, config.width, std=residual_std(config))

    def forward(self, x: Tensor) -> Tensor:
        """Mix positions; the shape ``[batch, time, width]`` is kept."""
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = Linear(config.width, 4 * config.width)
        self.down = Linear(4 * config.width, config.width, std=residual_std(config))

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position on its own."""
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """One transformer layer, and the unit in which the demo shards the model."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the feed-forward part, to the residual stream."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class GPT(nn.Module):
    """Predicts the next byte at every position."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = Embedding(config.vocab, config.width)
        self.positions = Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = Linear(config.width, config.vocab)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return logits ``[batch, time, vocab]``, or the mean loss in nats when targets are given."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def residual_std(config: GPTConfig) -> float:
    """Deviation of the maps that write into the residual stream, so that depth does not inflate it."""
    return INIT_STD / math.sqrt(2 * config.layers)
