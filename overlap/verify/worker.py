"""One rank of ``overlap verify``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from overlap.demo.worker import run
from overlap.verify.api import verify
from overlap.verify.command import arguments_of
from overlap.verify.randomness import seed_all
from overlap.verify.settings import VerifySettings


def verify_rank(settings: VerifySettings, device: torch.device) -> int:
    """Verify as one rank of the default process group; rank 0 prints and writes the report.

    Returns:
        The exit status: 0 if both models agree, else 1.
    """
    seed_all(settings.seed)  # on all ranks alike: what still differs between them depends on the rank
    report = verify(**arguments_of(settings), device=device)
    if dist.get_rank() == 0:
        print(report.text(), flush=True)
        if settings.json is not None:
            Path(settings.json).write_text(report.to_json() + "\n", encoding="utf-8")
    return 0 if report.ok else 1


def _verify_local(settings: VerifySettings, device: torch.device) -> None:
    """As ``verify_rank`` for ranks that ``run_local`` has started: it reads the outcome from the file."""
    verify_rank(settings, device)


if __name__ == "__main__":
    chosen = VerifySettings.from_json(sys.argv[1])
    run(lambda device: _verify_local(chosen, device))
