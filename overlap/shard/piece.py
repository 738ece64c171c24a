"""What one parameter contributes to a gather."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """One parameter's rows: what this rank gives, and where the rows of all ranks land.

    Filling ``full`` counts as an in-place change of it: hand in an alias with a version counter of its own
    (``.data``) where an autograd graph holds views of the same memory.

    Attributes:
        local: ``[chunk]``, contiguous; may be its own place in ``full``.
        full: ``[world * chunk]``, contiguous; rank r's rows are ``full[r * chunk : (r + 1) * chunk]``.
    """

    local: Tensor
    full: Tensor
