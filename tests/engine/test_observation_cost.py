"""What recording costs: the same training with timeline and ranges on and off, in turns, on two ranks.

With a number it runs alone, under torchrun and with PYTHONPATH=tests: so was made profiles/2026-11-30_cpu-2core_report.
"""

import json
import sys
import time
from statistics import median

import pytest
import torch
import torch.distributed as dist
from support.ranks import Ranks

import overlap
from overlap.demo.model import GPT, Block, GPTConfig

ROUNDS, STEPS, WARM_UP = 10, 2, 3
CONFIG = GPTConfig(context=128, layers=4, heads=4, width=256)


class Training:
    def __init__(self, **options: bool) -> None:
        torch.manual_seed(0)
        self.model = overlap.shard(GPT(CONFIG), stage=3, unit=Block, **options)
        self.optimizer = overlap.AdamW(self.model.parameters())
        tokens = torch.randint(
            0, 256, (4, CONFIG.context + 1), generator=torch.Generator().manual_seed(dist.get_rank())
        )
        self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.losses: list[float] = []
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> None:
        loss = self.model(self.inputs, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def turn(self) -> None:
        dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            self.step()
        dist.barrier()
        self.seconds.append((time.perf_counter() - start) / STEPS)
        self.cpu_seconds.append((time.process_time() - cpu) / STEPS)


def _in_turns(rounds: int) -> dict[str, object]:
    off, on = Training(), Training(timeline=True, nvtx=True)
    for number in range(rounds):
        for training in (off, on) if number % 2 else (on, off):
            training.turn()
    assert on.losses == off.losses
    assert overlap.engine_of(on.model).executor.issued == overlap.engine_of(off.model).executor.issued
    pairs = [with_it / without for with_it, without in zip(on.seconds, off.seconds, strict=True)]
    return {
        "ratio_of_pairs": median(pairs),
        "ratio_of_medians": median(on.seconds) / median(off.seconds),
        "ratio_of_minima": min(on.seconds) / min(off.seconds),
        "ratio_of_cpu_times": median(on.cpu_seconds) / median(off.cpu_seconds),
        "step_ms_off": 1e3 * median(off.seconds),
        "rounds": rounds,
        "spans": len(overlap.engine_of(on.model).timeline),
    }


@pytest.mark.slow
def test_recording_costs_next_to_nothing_and_changes_nothing(ranks: Ranks) -> None:
    measured = ranks(2, _in_turns, ROUNDS)[0]
    print(measured)
    assert measured["spans"] > 0
    # Measured: within 1 %. A loaded machine moves single rounds by tens of percent, so this only catches a real cost.
    assert min(measured["ratio_of_pairs"], measured["ratio_of_minima"]) < 1.1


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    outcome = _in_turns(int(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(outcome))
    dist.destroy_process_group()
