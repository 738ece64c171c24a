"""What became of a step: decided on the device, needed on the host one step later, and read there without a stall.

    update k     ... norm, update | copy of 4 numbers to the host
    step k + 1   forward, backward are launched | the host reads the numbers: long there | update k + 1 is launched

A step that was skipped must not count in the bias correction, whose coefficients the host computes. So they are read
before those of the next update are made; while the host waits for them, if it must, the device has a backward to do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overlap.errors import message
from overlap.optim.chosen import comm_of
from overlap.optim.loss_scale import LossScaler
from overlap.optim.nonfinite import first_nonfinite
from overlap.optim.norm import place_of
from overlap.shard.flat import Flat


class Numbers(NamedTuple):
    """Of one step, on the host."""

    skipped: bool
    norm: float
    place: int
    """0, or the number of the place that was not finite (``GradientNorm.bad``)."""
    loss_scale: float
    """That the gradients had; 0.0 without a scaler."""


class Outcome:
    """Numbers of one step, on their way."""

    def __init__(self, skip: Tensor, norm: Tensor | None = None, loss_scale: Tensor | None = None) -> None:
        """Start the copy, in the order of the current stream.

        Args:
            skip: ``[1]``; nonzero where the step was skipped.
            norm: fp64 ``[2]``, as ``GradientNorm.values``.
            loss_scale: fp32 ``[1]``.
        """
        norm = norm if norm is not None else skip.new_zeros(2, dtype=torch.float64)
        scale = loss_scale if loss_scale is not None else skip.new_zeros(1, dtype=torch.float64)
        numbers = torch.cat(((skip != 0).double(), norm.double(), scale.double()))
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._host = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._host = numbers

    def read(self) -> Numbers:
        """The numbers; waits until they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        skipped, norm, place, scale = self._host.tolist()
        return Numbers(bool(skipped), norm, int(place), scale)


def known_at_once(device: torch.device) -> bool:
    """Whether reading an outcome right after its step costs nothing."""
    return device.type == "cpu"


@dataclass(frozen=True, slots=True)
class Pending:
    """A step that may have been skipped.

    Attributes:
        outcome: its numbers.
        states: of the parameters that it concerned.
        params: all parameters of the optimizer.
        places: where gradients were measured.
        scaler: whose scale they had.
        quiet: the caller decides about steps, and wants no warning.
    """

    outcome: Outcome
    states: list[dict[str, Any]]
    params: list[Tensor]
    places: tuple[Flat | None, ...]
    scaler: LossScaler | None
    quiet: bool

    def count(self) -> Numbers:
        """Count the step if it was taken."""
        numbers = self.outcome.read()
        if not numbers.skipped:
            for state in self.states:
                state["step"] += 1
        return numbers

    def explain(self, numbers: Numbers, update: Callable[[], int]) -> None:
        """Tell scaler and user how it went.

        Args:
            numbers: what ``count`` gave.
            update: gives the number of the update that was tried, for messages.

        Raises:
            StateError: gradients overflowed at the minimum of a scaler that raises then.
        """
        if self.scaler is not None:
            self.scaler.observe(numbers.loss_scale)
        if numbers.place:
            self._complain(numbers, f"a norm of {numbers.norm} at update {update()}")

    def _complain(self, numbers: Numbers, what: str) -> None:
        first_rank = comm_of(flat for flat in self.places if flat is not None).rank == 0
        if self.scaler is not None:
            self.scaler.overflowed(
                numbers.loss_scale,
                lambda: f"{what}, first in {first_nonfinite(self.params)}",
                first_rank=first_rank,
            )
        elif first_rank and not self.quiet:
            cure = "see overlap.nonfinite_gradients(model); the step was skipped on all ranks"
            text = message("gradients", "be finite", f"{what}, {place_of(self.places[numbers.place - 1])}", cure)
            warnings.warn(text, RuntimeWarning, stacklevel=2)
