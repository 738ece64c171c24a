"""``reduce_sum`` and ``grad_norm``."""

from collections.abc import Sequence

from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.ops.check.tensors import FLOATS, check_dtype, check_flat, check_norm, check_sequence
from overlap.ops.scalars import check_finite, check_switch


def reduce_sum(rows: Sequence[Tensor], out: Tensor, scale: float, accumulate: bool, norm: Tensor | None) -> None:
    """Refuse rows and outputs that do not fit together."""
    check_sequence("rows", rows)
    if len(rows) == 0:
        raise ConfigError(message("rows", "hold at least one tensor", "none", "pass one row per rank"))
    check_dtype("rows[0]", rows[0], FLOATS)
    for index, row in enumerate(rows):
        check_flat(f"rows[{index}]", row, rows[0], (rows[0].dtype,))
    check_flat("out", out, rows[0], FLOATS)
    check_finite("scale", scale)
    check_switch("accumulate", accumulate)
    if norm is not None:
        check_norm("norm", norm, out)


def grad_norm(grad: Tensor, out: Tensor, accumulate: bool) -> None:
    """Refuse a gradient that is not flat, and an output that is not fp64 ``[2]``."""
    check_flat("grad", grad, grad, FLOATS)
    check_norm("out", out, grad)
    check_switch("accumulate", accumulate)
