"""Is the sharded model still the model? ``overlap verify examples/verify.py:make_model --unit Block`` says yes.

``overlap verify examples/verify.py:make_stale_model --unit Block`` names the unit of a common mistake, and its cure.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, LAYERS = 64, 3


class Block(nn.Module):
    """One layer, and one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Add a transformed copy of the input to it."""
        return x + torch.tanh(self.linear(x))


class StaleBlock(Block):
    """Keeps an alias of its weight. Alone it follows every update; sharded it shows the initial weight for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = self.linear.weight.detach()

    def forward(self, x: Tensor) -> Tensor:
        """As the block, with something of the mirrored weight."""
        return super().forward(x) + 0.1 * F.linear(x, self.mirror)


def make_model() -> nn.Module:
    """Build the model; verify builds it twice and shards one of the two."""
    return nn.Sequential(*(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, 1))


def make_stale_model() -> nn.Module:
    """As ``make_model``, with the mistake in its second layer."""
    return nn.Sequential(Block(), StaleBlock(), Block(), nn.Linear(WIDTH, 1))


def batches(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """What a rank learns from in a step."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, WIDTH, generator=source)
    return x, x.mean(1, keepdim=True)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error; verify finds it by its name, as it does ``batches``."""
    inputs, targets = batch
    return F.mse_loss(model(inputs), targets)
