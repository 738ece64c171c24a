"""A mixture of experts: some stacked in one parameter, some units of their own that run only where they get rows."""

import torch
from support.zoo.entry import WIDTH, Entry, Unit, ZooModel, rows, squares
from torch import Tensor, nn

EXPERTS, HIDDEN = 3, 20  # three experts over four ranks: split along another dimension


class Stacked(Unit):
    """All experts in two parameters; rows choose theirs, so that an expert may get none."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.2)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * 0.2)

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        inner = torch.tanh(torch.einsum("bw,bwh->bh", x, self.up[choice]))
        return x + torch.einsum("bh,bhw->bw", inner, self.down[choice])


class Expert(Unit):
    """One expert."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.linear(x))


class Mixture(ZooModel):
    """Stacked experts, then separate ones that are skipped without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.stacked = Stacked()
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        weights = torch.softmax(self.router(x), -1)
        x = self.run(self.stacked, x, choice)
        parts = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if (mine := choice == number).any():
                parts[mine] = self.run(expert, x[mine]) * weights[mine, number, None]
        return self.head(x + parts)


def _routed_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    """Every expert at first, so that the plan has them; then which goes without depends on rank and batch."""
    choice = torch.tensor([rank + index, rank + 2 * index, rank + index] if index else [0, 1, 2]) % EXPERTS
    return squares(model(rows(rank, index), choice))


ENTRIES = (Entry("experts", Mixture, _routed_loss),)
