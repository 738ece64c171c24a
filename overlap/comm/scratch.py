"""A communicator's persistent receive buffer."""

import torch
from torch import Tensor


class Scratch:
    """Memory that grows to the largest request and is handed out again and again.

    It is kept because a fresh allocation of bucket size costs more in page faults than the copy into it.
    """

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return 0 if self._buffer is None else self._buffer.numel()

    def take(self, numel: int, like: Tensor) -> Tensor:
        """Uninitialised [numel] of `like`'s dtype and device, valid until the next call."""
        nbytes = numel * like.element_size()
        if self._buffer is None or self._buffer.numel() < nbytes:
            self._buffer = None  # let the old one go before the new one comes
            self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=like.device)
        return self._buffer[:nbytes].view(like.dtype)
