"""The run: build both models, train them side by side, stop at the first step in which they differ.

structure -> initial values -> step 1, 2, ... -> does the model itself repeat? -> report
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import overlap
from overlap.config import ShardOptions
from overlap.engine.mesh import device_type_of
from overlap.verify import across, checks, probes
from overlap.verify.batches import RankBatches
from overlap.verify.build import fill_meta, take_values, unit_names
from overlap.verify.finding import Spot
from overlap.verify.log import Log
from overlap.verify.losses import Loss
from overlap.verify.optimizers import Factory
from overlap.verify.pair import Pair, engine_of, pair_up
from overlap.verify.peers import Peers
from overlap.verify.report import VerifyReport
from overlap.verify.tolerance import Tolerance
from overlap.verify.training import History
from overlap.verify.twin import Twin

SEEDS_PER_STEP = 1_000_003
"""More than there are ranks: each rank and step draws other random numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What the user asked for, checked."""

    options: ShardOptions
    """Of the engine; those among ``arguments``."""
    arguments: Mapping[str, Any]
    """Of ``overlap.shard``."""
    batches: RankBatches
    """This rank's."""
    loss: Loss
    """Of either model and a batch."""
    optimizer: Factory
    """Of either model's parameters."""
    tolerance: Tolerance
    """What passes."""
    seed: int
    """Where random numbers of forward start."""


class Session:
    """One run on one rank."""

    def __init__(self, setup: Setup, first: nn.Module, second: nn.Module) -> None:
        """Open channels. A collective.

        Args:
            setup: what to do.
            first: to be sharded.
            second: to stay as it is.
        """
        self.setup, self._first, self._second = setup, first, second
        self.peers = Peers(device_type_of(first))
        self.log, self.history = Log(self.peers), History()

    def run(self) -> VerifyReport:
        """Do all of it. A collective."""
        start = Spot(0, self.peers.rank)
        frozen = tuple(name for name, param in self._first.named_parameters() if not param.requires_grad)
        if not self.log.note(across.structure(self._first, self._second, self.peers, start)):
            units = unit_names(self._first, self.setup.arguments.get("unit"))
            self.log.note(across.initial_values(self._first, units, self.peers, start))
            pair = self._shard()
            if not self.log.note(checks.initial_values(pair, start)):
                self._train(pair)
        return VerifyReport(
            ranks=self.peers.world,
            stage=self.setup.options.stage,
            options={name: getattr(value, "__name__", str(value)) for name, value in self.setup.arguments.items()},
            steps=len(self.history.losses),
            losses=tuple(self.history.losses),
            tolerance=self.setup.tolerance,
            frozen=frozen,
            findings=self.log.findings(),
        )

    def _shard(self) -> Pair:
        take_values(self._second, self._first, self.peers)
        sharded = overlap.shard(self._first, **self.setup.arguments)
        fill_meta(self._second, sharded)
        twin = Twin(self._second, self.setup.options)
        return pair_up(sharded, twin, self.setup.options, self.peers, self.setup.loss, self.setup.optimizer)

    def _train(self, pair: Pair) -> None:
        steps = range(1, self.setup.batches.steps + 1)
        last = next((step for step in steps if self._differs(pair, step)), steps[-1])
        spot = Spot(last, self.peers.rank)
        self.log.note(self.history.unused(pair, spot))
        self.log.note(self.history.deviations(spot.rank))
        batch, tolerance = self.setup.batches.of(last - 1), self.setup.tolerance
        self.log.note(probes.same_on_all_ranks(pair, batch, self._seed(last, 0), spot, tolerance))
        engine_of(pair).close()

    def _differs(self, pair: Pair, step: int) -> bool:
        """Take one step with both models; whether they went apart in it. A check that fails ends the step."""
        spot, batch, seed = Spot(step, self.peers.rank), self.setup.batches.of(step - 1), self._seed(step)
        tolerance, note = self.setup.tolerance, self.log.note
        pair.twin.refresh()
        mine, theirs = pair.sharded.train(batch, seed), pair.plain.train(batch, seed)
        order = self.peers.gather(pair.twin.arrived)[0]
        pair.average(pair.twin.take_gradients())
        self.history.note(pair, self._mean(mine.loss))
        note(checks.finiteness(pair, mine, spot))
        if note(checks.weights(pair, spot, "edited", tolerance)):
            return True
        if note(checks.forward(mine, theirs, spot, tolerance)):
            note(probes.repeats_itself(pair, batch, seed, spot, tolerance))
            return True
        return note(checks.gradients(pair, spot, order, tolerance)) or self._updates_differ(pair, spot)

    def _updates_differ(self, pair: Pair, spot: Spot) -> bool:
        tolerance, note = self.setup.tolerance, self.log.note
        pair.share_gradients()
        pair.sharded.update()
        pair.plain.update()
        note(across.buffers(pair, spot))
        differs = (
            note(checks.weights(pair, spot, "parameter", tolerance))
            or note(across.replicas(pair, spot))
            or note(checks.buffers(pair, spot, tolerance))
        )
        if not differs:
            pair.share_weights()
        return differs

    def _seed(self, step: int, rank: int | None = None) -> int:
        return self.setup.seed + step * SEEDS_PER_STEP + (self.peers.rank if rank is None else rank)

    def _mean(self, loss: torch.Tensor) -> float:
        losses: list[float] = self.peers.gather(loss.item())
        return sum(losses) / len(losses)
