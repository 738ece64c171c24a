"""Facts that ranks settle on the host: small, rare, on a gloo group of their own beside the bulk traffic."""

import pickle
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from overlap.comm.collective import Communicator
from overlap.comm.label import labelled
from overlap.errors import DesyncError, message
from overlap.shard.piece import Piece

_KIND = "control"


class ControlChannel:
    """Agreement between ranks. Every method is a collective and blocks until all ranks have called it.

    Args:
        communicator: one for CPU tensors; its counter has the bytes under kind "control".
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator

    def agree(self, name: str, digest: str) -> None:
        """Make sure that all ranks are at the same question and give the same answer.

        Raises:
            DesyncError: on every rank, naming the ranks that differ from most others, and both values.
        """
        # Not matched by name: ranks at different questions are told so at once, and need not wait for the timeout.
        with labelled(f"agree({name!r})", "agree"):
            answers = self._gather_object((name, digest))
        usual, _ = Counter(answers).most_common(1)[0]
        odd = [rank for rank, answer in enumerate(answers) if answer != usual]
        if odd:
            subject = f"{answers[odd[0]][0]} of rank {', '.join(map(str, odd))}"
            rule = f"equal that of rank {answers.index(usual)}, {usual[0]} {usual[1]}"
            got = ", ".join(dict.fromkeys(answers[rank][1] for rank in odd))
            cure = "give every rank the same model, options and order of calls"
            raise DesyncError(message(subject, rule, got, cure))

    def all_max(self, facts: Tensor) -> Tensor:
        """Elementwise maximum over the ranks of a uint8 [n] (say: which parameters received a gradient)."""
        with labelled("all_max"):
            return self._gather_rows(facts).amax(0)

    def gather_object(self, value: Any) -> list[Any]:
        """Every rank's picklable `value`, by rank. For small things."""
        with labelled("gather_object"):
            return self._gather_object(value)

    def _gather_object(self, value: Any) -> list[Any]:
        payload = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = self._gather_rows(torch.tensor([payload.numel()])).flatten().tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: payload.numel()] = payload
        rows = self._gather_rows(padded)
        return [pickle.loads(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def _gather_rows(self, local: Tensor) -> Tensor:
        full = local.new_empty(self.communicator.world * local.numel())
        self.communicator.all_gather([Piece(local, full)], _KIND)
        return full.view(self.communicator.world, -1)
