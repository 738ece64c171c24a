"""Muon over flats: momentum by shards, orthogonalisation by whole matrices.

    momentum m, gradient g          m = lerp(m, g, 1 - momentum);   d = lerp(g, m, momentum), or m without nesterov
    whole matrix of d               o = newton_schulz(d)
    weights w                       w = w * (1 - lr * weight_decay) - lr * factor * o

Source: Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024); formula, defaults and order of
operations as ``torch.optim.Muon``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from overlap.errors import ConfigError, message
from overlap.optim.chosen import comm_of, home, is_inert
from overlap.optim.flat_optimizer import FlatOptimizer, Wanted, check_at_least
from overlap.optim.moments import Moments
from overlap.optim.newton_schulz import QUINTIC, compute_dtype
from overlap.optim.orthogonal import updates_of
from overlap.optim.updates import Group
from overlap.optim.verdict import Verdict
from overlap.optim.whole import Matrix, matrix_shape

_CURE = "check the optimizer's arguments"
_ADJUSTMENTS = (None, "original", "match_rms_adamw")
_DTYPES = (None, torch.bfloat16, torch.float32)


class Muon(FlatOptimizer):
    """``torch.optim.Muon`` for a model sharded by overlap: whole matrices are orthogonalised, never shards of them.

    For the matrices of hidden layers; embeddings, heads, biases and norms go to an ``overlap.AdamW`` beside it. Each
    matrix has an owner among the ranks, to which its rows come and from which they return; a step is a collective. Of
    equal gradients, updates are the same for any number of ranks: on CPU to the bit.

    ``state[p]`` holds ``momentum_buffer`` alone, as torch's does: a DTensor, view of the flat moment, fp32.
    A parameter whose ``.grad`` is None is left alone: weights and momentum. So are all of them when a step is skipped.

    Attributes:
        ns_dtype: what matrices are iterated in; None chooses by device.
        grad_norm: as in ``overlap.AdamW``: of this optimizer's parameters.
        clipped_grad_norm: as in ``overlap.AdamW``.
        skipped: as in ``overlap.AdamW``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = QUINTIC,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        stacked: bool | None = None,
        ns_dtype: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        error_if_nonfinite: bool = False,
    ) -> None:
        """Allocate momentum; of parameters that are frozen, when they get their first gradient.

        Args:
            params: public parameters of one sharded model with two dimensions or more, or groups of them.
            lr: learning rate; per group. A tensor is read on the host at each step.
            weight_decay: decoupled, with ``lr`` before its adjustment; per group.
            momentum: in [0, 1); per group.
            nesterov: look ahead along the momentum; per group.
            ns_coefficients: of the quintic; per group.
            eps: least norm that a matrix is divided by, above 0; per group.
            ns_steps: iterations, from 0 to 99; per group.
            adjust_lr_fn: ``"original"`` (None): ``lr * sqrt(max(1, rows / columns))``; ``"match_rms_adamw"``:
                ``lr * 0.2 * sqrt(max(rows, columns))``, so that a rate for AdamW fits; per group.
            stacked: how to see parameters of more than two dimensions; per group. True: the last two are a matrix,
                those before count matrices (stacked experts). False: ``[out, rest]`` (kernels of convolutions). None:
                False for four and more, refused for three.
            ns_dtype: bf16 or fp32 to iterate in, and to send; None is bf16, and fp32 on CPU.
            max_grad_norm: as in ``overlap.AdamW``; of this optimizer's parameters. Direction and size of an update
                hardly depend on it, momentum does.
            error_if_nonfinite: as in ``overlap.AdamW``.

        Raises:
            ConfigError: a parameter is not from a sharded model or is no matrix, or a value is out of range.

        Source: ``torch.optim.Muon``; Jordan 2024; Liu et al., "Muon is scalable for LLM training" (2025).
        """
        if ns_dtype not in _DTYPES:
            raise ConfigError(message("ns_dtype", "be torch.bfloat16, torch.float32 or None", ns_dtype, _CURE))
        self.ns_dtype = ns_dtype
        defaults: dict[str, Any] = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "stacked": stacked,
        }
        super().__init__(
            params,
            defaults,
            Moments("Muon", "momentum_buffer"),
            max_grad_norm=max_grad_norm,
            error_if_nonfinite=error_if_nonfinite,
        )

    def _update(self, verdict: Verdict, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
        """Launch it; nobody counts steps."""
        matrices = [
            Matrix(group, each.share.flat, behind)
            for each in wanted
            for group, behind in zip(each.groups, each.share.params, strict=True)
        ]
        if not matrices:
            return []
        dtype = self.ns_dtype or compute_dtype(matrices[0].flat.master.device)
        comm = comm_of(matrix.flat for matrix in matrices)
        for run in updates_of(matrices, comm, verdict, dtype):
            first = run.matrices[0].flat  # a round is of several units, under the name of one
            first.in_order("update", sum(matrix.nbytes for matrix in run.matrices), run)
        return []

    def _check_group(self, group: Group) -> None:
        for name in ("lr", "weight_decay"):
            check_at_least(name, group[name], 0.0)
        _check("momentum", "be in [0, 1)", group, kept=0.0 <= group["momentum"] < 1.0)
        _check("eps", "be above 0", group, kept=group["eps"] > 0.0)
        _check("ns_steps", "be from 0 to 99", group, kept=0 <= group["ns_steps"] <= 99)
        _check("ns_coefficients", "be three numbers", group, kept=len(group["ns_coefficients"]) == 3)
        _check("adjust_lr_fn", "be original or match_rms_adamw", group, kept=group["adjust_lr_fn"] in _ADJUSTMENTS)
        for behind in (home(param).param for param in group["params"] if not is_inert(param)):
            matrix_shape(behind.fqn, behind.layout.shape, group["stacked"])


def _check(name: str, rule: str, group: Group, *, kept: bool) -> None:
    if not kept:
        raise ConfigError(message(name, rule, group[name], _CURE))
