"""``make bench``: the same steps with communication on lanes and in line, taking turns within one job.

Machines drift, so only what ran side by side is compared: each round times both, in alternating order, and
the answer is the median over rounds of their ratio.
"""

import sys
import time
from dataclasses import replace
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

import overlap
from overlap.demo.data import load_corpus
from overlap.demo.environment import launched
from overlap.demo.launch import launch
from overlap.demo.settings import TrainSettings
from overlap.demo.train import batches, build_model, build_optimizer
from overlap.demo.worker import run
from overlap.profiling.aggregate import summarize

WARM_UP = 1
ROUNDS = 9
STEPS = 4


class Contender:
    """One way to run the steps, with a model of its own."""

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self.lanes = settings.lanes
        self.model = build_model(settings, device)
        self.optimizer, self.update = build_optimizer(self.model, settings)
        corpus = load_corpus(settings.data_path, context=settings.model.context)
        self.batches = list(batches(corpus, settings, device))
        self.seconds: list[float] = []

    def run(self) -> None:
        """Time one round; all ranks start it together."""
        dist.barrier()
        start = time.perf_counter()
        for inputs, targets in self.batches:
            self.model(inputs, targets).backward()
            self.update()
            self.optimizer.zero_grad()
        dist.barrier()  # on CUDA it also waits for the device
        self.seconds.append((time.perf_counter() - start) / len(self.batches))

    def timed(self) -> list[float]:
        """Seconds per step of each round after the warm-up, which records and agrees the plan."""
        return self.seconds[WARM_UP:]

    def describe(self) -> str:
        """Step time and exposed communication, medians."""
        timeline = overlap.engine_of(self.model).timeline
        exposed = summarize(timeline, timeline.steps()[-STEPS:]).exposed_ns / 1e6
        step_ms = 1e3 * median(self.timed())
        return f"lanes {self.lanes:<6} {step_ms:8.1f} ms per step, {exposed:.1f} ms of it exposed"


def compare(settings: TrainSettings, device: torch.device) -> None:
    """Let both take turns; rank 0 prints the outcome."""
    lanes, inline = (Contender(replace(settings, lanes=lanes), device) for lanes in ("auto", "inline"))
    for number in range(WARM_UP + ROUNDS):
        for contender in (lanes, inline) if number % 2 else (inline, lanes):
            contender.run()
    if dist.get_rank() == 0:
        ratios = [ours / other for ours, other in zip(lanes.timed(), inline.timed(), strict=True)]
        spread = f"median of {ROUNDS} rounds, {min(ratios):.3f} to {max(ratios):.3f}"
        print(lanes.describe(), inline.describe(), sep="\n")
        print(f"step time with lanes / in line: {median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    if launched():
        run(partial(compare, TrainSettings.from_json(sys.argv[1])))
    else:
        asked = TrainSettings(ranks=int(sys.argv[1]), steps=STEPS)
        launch("overlap.demo.compare_lanes", asked.to_json(), asked.ranks)
