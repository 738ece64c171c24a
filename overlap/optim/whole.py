"""Parameters as whole matrices: how each is seen, what of it is here, and what an update does to the rows that are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.optim.chosen import gradient_of
from overlap.optim.owners import MatrixShape
from overlap.optim.updates import Group
from overlap.shard.flat import Flat
from overlap.shard.layout import ParamLayout
from overlap.shard.param import ShardedParam, as_shaped, local_rows


def matrix_shape(name: str, shape: tuple[int, ...], stacked: bool | None) -> MatrixShape:
    """How a parameter is seen: a matrix as it is, a kernel as ``(out, rest)``, a stack as ``(count, rows, columns)``.

    Args:
        name: of the parameter.
        shape: its own.
        stacked: whether what comes before the last two dimensions counts matrices; None is False, but for three
            dimensions, which are as often a stack of experts as the kernel of a Conv1d.

    Raises:
        ConfigError: it is no matrix, or three dimensions may be either.
    """
    subject, got = f"parameter {name!r}", f"shape {shape}"
    if len(shape) < 2:
        cure = "give it to overlap.AdamW: two optimizers may share a model"
        raise ConfigError(message(subject, "have two dimensions or more for Muon", got, cure))
    if len(shape) == 3 and stacked is None:
        cure = "set stacked=True in its group for a stack of matrices, stacked=False for a kernel, [out, rest]"
        raise ConfigError(message(subject, "be a matrix, or say of how many it consists", got, cure))
    if stacked and len(shape) > 2:
        return math.prod(shape[:-2]), *shape[-2:]
    return shape[0], math.prod(shape[1:])


def rate_factor(adjust: str | None, shape: MatrixShape) -> float:
    """What the learning rate is multiplied with, as ``torch.optim.Muon`` has it.

    Args:
        adjust: ``original`` or None: updates have the same effect on outputs whatever the shape (Jordan 2024);
            ``match_rms_adamw``: they are about as large as AdamW's (Liu et al., "Muon is scalable", 2025).
        shape: of the matrix.
    """
    rows, columns = shape[-2:]
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


@dataclass(frozen=True, slots=True)
class Matrix:
    """One parameter in an update."""

    group: Group
    flat: Flat
    behind: ShardedParam

    @property
    def layout(self) -> ParamLayout:
        """Its place in the flat."""
        return self.behind.layout

    @property
    def shape(self) -> MatrixShape:
        """How it is seen."""
        return matrix_shape(self.behind.fqn, self.layout.shape, self.group["stacked"])

    @property
    def cut(self) -> bool:
        """Whether ranks have parts of matrices; a stack may be split between them."""
        between = bool(self.group["stacked"]) and self.layout.dim < len(self.layout.shape) - 2
        return self.flat.layout.world > 1 and not between

    @property
    def nbytes(self) -> int:
        """Memory of this rank that its update reads and writes: momentum, master, gradient, shard."""
        return self.layout.chunk * (4 * self.flat.master.itemsize + 2 * self.flat.shard.itemsize)

    def rows_in(self, stored: Tensor) -> Tensor:
        """This rank's rows, dimensions as in the parameter, of ``[chunk]`` elements in the order of storage."""
        _, rows = self.layout.rows_of(self.flat.rank)
        return as_shaped(stored[: rows * self.layout.row_numel], self.layout, rows)

    def whole_in(self, stored: Tensor) -> Tensor:
        """All of it likewise, of ``[world * chunk]`` elements."""
        return as_shaped(stored[: self.layout.numel], self.layout, self.layout.rows)

    def direction(self, scale: Tensor | None, skip: Tensor | None) -> Tensor:
        """Take the gradient into the momentum: ``[chunk]`` of what is to be orthogonalised, zero in padding.

        Args:
            scale: fp32 ``[1]``, multiplies the gradient.
            skip: bool ``[1]``; true leaves the momentum as it is.
        """
        assert self.flat.exp_avg is not None
        momentum = float(self.group["momentum"])
        buffer = self.flat.exp_avg.narrow(0, self.layout.offset, self.layout.chunk)
        grad = gradient_of(self.flat).narrow(0, self.layout.offset, self.layout.chunk).to(buffer.dtype)
        grad = grad if scale is None else grad * scale
        fresh = buffer.lerp(grad, 1 - momentum)
        buffer.copy_(fresh if skip is None else torch.where(skip, buffer, fresh))
        return grad.lerp(fresh, momentum) if self.group["nesterov"] else fresh

    def apply(self, update: Tensor, skip: Tensor | None) -> None:
        """Decay this rank's rows and move them, in the master and in what the next gather sends.

        Args:
            update: orthogonalised rows, shaped as the parameter's.
            skip: bool ``[1]``; true leaves weights as they are.
        """
        flat, lr = self.flat, float(self.group["lr"])
        step = -lr * rate_factor(self.group["adjust_lr_fn"], self.shape)
        # Through ``.data``: as for AdamW's kernels, ``flat.updated`` says that weights have changed.
        master = local_rows(flat.master.data, self.layout, flat.rank)
        fresh = (master * (1 - lr * float(self.group["weight_decay"]))).add_(update, alpha=step)
        master.copy_(fresh if skip is None else torch.where(skip, master, fresh))
        if flat.shard is not flat.master:
            local_rows(flat.shard.data, self.layout, flat.rank).copy_(master)
        flat.updated = True
