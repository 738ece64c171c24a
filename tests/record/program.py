"""A training program that knows nothing of being recorded: ``program.py fsdp2|overlap`` under torchrun."""

import sys

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(128, 16)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def with_fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = Net(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())


def with_overlap():
    import overlap

    model = overlap.shard(Net(), stage=3, unit=Block)
    return model, overlap.AdamW(model.parameters())


def main(which: str, steps: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = {"fsdp2": with_fsdp2, "overlap": with_overlap}[which]()
    batch = torch.randn(32, 128)
    for _ in range(steps):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", steps, "steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
