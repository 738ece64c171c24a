"""The function that users call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from overlap.config import options_from
from overlap.verify.batches import Batches, share
from overlap.verify.build import build_twice
from overlap.verify.losses import Loss, default_loss
from overlap.verify.optimizers import Factory, factory_of
from overlap.verify.peers import check_process_group
from overlap.verify.report import VerifyReport
from overlap.verify.session import Session, Setup
from overlap.verify.tolerance import tolerance_for

OF_THE_MODEL = ("unit", "mesh")
"""Arguments of ``overlap.shard`` that are no fields of ``ShardOptions``."""


def verify(
    make_model: Callable[[], nn.Module],
    batches: Batches,
    loss: Loss | None = None,
    *,
    steps: int | None = None,
    options: Mapping[str, Any] | None = None,
    optimizer: str | Factory = "sgd",
    lr: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    device: torch.device | None = None,
    seed: int = 0,
) -> VerifyReport:
    """Train a model sharded and unsharded side by side, and name the first thing that differs.

    A collective: every rank calls it with the same arguments and gets the same report. docs/verify.md says what is
    compared, in which order, and how the unsharded model is trained.

    Args:
        make_model: builds the model, unsharded; called twice on each rank. Rank 0's values are taken.
        batches: ``batches(rank, step)``, steps from 0; or batches that ranks take turns with: rank r's of step s is
            number ``s * ranks + r``.
        loss: ``loss(model, batch)``, a scalar: the mean over the rank's own batch. None calls the model (``**`` for a
            dict, ``*`` for a tuple or list) and takes its output's ``loss``; an output of one element itself; of any
            other the first floating tensor, as ``tensor.float().square().mean()``.
        steps: optimizer steps; None takes as many as a sequence gives, else 4. One step shows no stale weights.
        options: as ``overlap.shard`` takes them: ``stage``, ``unit``, ``mesh`` (of all ranks), ``param_dtype``, ...
        optimizer: ``sgd`` (momentum 0.9), ``adamw``, or a function of the parameters. One that makes an
            ``overlap.AdamW`` gives the unsharded model a ``torch.optim.AdamW`` with the same groups.
        lr: of a named optimizer; None is 0.1 for ``sgd`` and 0.001 for ``adamw``.
        rtol: largest error relative to the largest value of a tensor; None takes 1e-5 for fp32, 1.6e-2 for bf16 and
            2e-3 for fp16 (see ``Tolerance``).
        atol: largest absolute error, added to it; None is 1e-8.
        device: where to move what ``make_model`` builds; None leaves it. Batches follow the model.
        seed: of random numbers in forward (dropout): both models draw the same ones, each rank and step others.

    Returns:
        The report; ``report.ok`` is whether both models agree.

    Raises:
        ConfigError: an argument that cannot be, before anything is sharded.
        StateError: torch.distributed is not initialised.
        OverlapError: sharding or training the model raised it.
    """
    arguments = dict(options or {})
    chosen = options_from({name: value for name, value in arguments.items() if name not in OF_THE_MODEL})
    make_optimizer = factory_of(optimizer, lr)
    check_process_group()
    mine = share(batches, steps, dist.get_rank(), dist.get_world_size())
    first, second = build_twice(make_model, device)
    dtypes = {param.dtype for param in first.parameters() if param.is_floating_point()}
    setup = Setup(
        options=chosen,
        arguments=arguments,
        batches=mine,
        loss=loss or default_loss,
        optimizer=make_optimizer,
        tolerance=tolerance_for(chosen, dtypes, rtol, atol),
        seed=seed,
    )
    return Session(setup, first, second).run()
