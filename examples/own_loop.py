"""Your own training loop over any number of ranks: ``torchrun --nproc-per-node 2 examples/own_loop.py``."""

import torch
import torch.distributed as dist
from torch import nn

import overlap

WIDTH, LAYERS, STEPS = 256, 4, 20


class Residual(nn.Module):
    """One layer, and one unit of communication: gathered just before it runs, let go right after."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add a transformed copy of the input to it."""
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


def main() -> None:
    """Learn to reverse vectors."""
    dist.init_process_group()
    torch.manual_seed(0)  # any weights will do: rank 0's are sent to all
    model: nn.Module = nn.Sequential(*(Residual() for _ in range(LAYERS)), nn.Linear(WIDTH, WIDTH))

    model = overlap.shard(model, stage=3, unit=Residual, timeline=True)
    optimizer = overlap.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)

    torch.manual_seed(1 + dist.get_rank())  # every rank trains on its own data
    for step in range(STEPS):
        x = torch.randn(32, WIDTH)
        loss = (model(x) - x.flip(-1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step + 1}/{STEPS}  loss {loss.item():.4f}")

    if dist.get_rank() == 0:
        print(overlap.engine_of(model).plan.table())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
