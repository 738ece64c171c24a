"""Both models in training, and what is compared between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import overlap
from overlap.config import ShardOptions
from overlap.engine.registry import is_unit
from overlap.verify.batches import fresh
from overlap.verify.build import unit_of
from overlap.verify.losses import Loss, check_loss
from overlap.verify.optimizers import Factory, Update, build_updates
from overlap.verify.peers import Peers, whole
from overlap.verify.randomness import seeded
from overlap.verify.recorder import Event, Recorder
from overlap.verify.twin import Twin, cast_inputs, cast_outputs


@dataclass(frozen=True, slots=True)
class Pass:
    """What one forward of one model left."""

    events: list[Event]
    loss: Tensor


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models."""

    model: nn.Module
    recorder: Recorder
    update: Update
    loss: Loss
    device: torch.device

    def forward(self, batch: Any, seed: int) -> Pass:
        """Forward alone, with random numbers from ``seed``."""
        with seeded(seed), self.recorder.recording() as events:
            return Pass(events, check_loss(self.loss(self.model, fresh(batch, self.device))))

    def train(self, batch: Any, seed: int) -> Pass:
        """Forward and backward."""
        with seeded(seed):
            with self.recorder.recording() as events:
                loss = check_loss(self.loss(self.model, fresh(batch, self.device)))
            loss.backward()  # type: ignore[no-untyped-call]
        return Pass(events, loss.detach().clone())


@dataclass(frozen=True, slots=True)
class Pair:
    """The sharded model and its twin."""

    sharded: Side
    plain: Side
    twin: Twin
    options: ShardOptions
    peers: Peers
    public: Mapping[str, nn.Parameter]
    """Parameters of the sharded model, between passes, by name."""
    units: tuple[str, ...]
    """Names of the units, longest first."""

    def unit_of(self, name: str) -> str:
        """The unit that a parameter or buffer lies in."""
        return unit_of(name, self.units)

    def average(self, mine: Mapping[str, Tensor | None]) -> None:
        """Give the twin's masters the mean of all ranks' gradients; what no rank has used keeps None. A collective."""
        used = self.peers.gather([name for name, gradient in mine.items() if gradient is not None])
        for name, master in self.twin.masters.items():
            gradient = mine[name]
            if any(name in theirs for theirs in used):
                mean = self.peers.mean(torch.zeros_like(master) if gradient is None else gradient, self.options)
                master.grad = mean.to(self.twin.gradient_dtype)

    def share_gradients(self) -> None:
        """Give the twin the sharded model's gradients: what passed must not count again. A collective."""
        for name, master in self.twin.masters.items():
            gradient = self.public[name].grad
            if gradient is not None:
                master.grad = whole(gradient).to(self.twin.gradient_dtype, copy=True)

    def share_weights(self) -> None:
        """Give the twin the sharded model's weights: what passed must not add up. A collective."""
        with torch.no_grad():
            for name, master in self.twin.masters.items():
                master.copy_(whole(self.public[name]))


def pair_up(
    sharded: nn.Module,
    twin: Twin,
    options: ShardOptions,
    peers: Peers,
    loss: Loss,
    make_optimizer: Factory,
) -> Pair:
    """Hook both models and build their optimizers.

    Args:
        sharded: the sharded model.
        twin: with the same weights.
        options: that the model was sharded with.
        peers: all ranks.
        loss: of either model.
        make_optimizer: for either.
    """
    units = {name: module for name, module in sharded.named_modules() if is_unit(module)}
    mine, theirs = build_updates(make_optimizer, sharded, twin.masters)
    if type(mine.optimizer) is type(theirs.optimizer):  # torch's stand-in for the fused one reads fp32 only
        twin.give_gradients_in(options.grad_dtype)
    device = next((param.device for param in sharded.parameters()), torch.device("cpu"))
    return Pair(
        Side(sharded, Recorder(units), mine, loss, device),
        Side(twin.module, _watch_plain(twin.module, units, options), theirs, loss, device),
        twin,
        options,
        peers,
        dict(sharded.named_parameters()),
        tuple(sorted(units, key=len, reverse=True)),
    )


def _watch_plain(module: nn.Module, names: Mapping[str, nn.Module], options: ShardOptions) -> Recorder:
    """Between the casts, as the sharded model's recorder is: hooks run in the order in which they were added."""
    units = {name: module.get_submodule(name) for name in names}
    if options.param_dtype is not None and options.cast_forward_inputs:
        cast_inputs(units.values(), options.param_dtype)
    recorder = Recorder(units)
    if options.output_dtype is not None:
        cast_outputs(units.values(), options.output_dtype)
    return recorder


def engine_of(pair: Pair) -> overlap.Engine:
    """The engine under test."""
    return overlap.engine_of(pair.sharded.model)
