"""DeepSpeed's ZeRO, where it is installed: never a dependency. docs/bench.md says how to install it.

It gets torch's fused AdamW like the others, no clipping (its default clips at 1), communication beside backward, and
buckets that let some of it begin before backward ends: by default one bucket would hold all of this model.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim import AdamW

from overlap.bench.step.contenders.contender import Contender
from overlap.bench.step.workload import Workload

BUCKET_ELEMENTS = 4_000_000
NEVER = 1 << 60


def why_missing() -> str | None:
    """Say why it cannot run here."""
    return None if find_spec("deepspeed") else "not installed"


def deepspeed_zero(workload: Workload, *, stage: int) -> Contender:
    """Build the model under one of its ZeRO stages.

    Args:
        workload: what to train.
        stage: 1, 2 or 3.
    """
    model = workload.model()
    optimizer = AdamW(model.parameters(), fused=True, **workload.adamw())
    engine, *_ = import_module("deepspeed").initialize(
        model=model, optimizer=optimizer, config=_config(workload, stage), dist_init_required=False
    )
    options = f"overlap_comm, buckets of {BUCKET_ELEMENTS / 1e6:.0f}M elements"
    return Contender(engine, engine.step, engine.backward, options=options)


def _config(workload: Workload, stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,  # for its own reports alone
        "gradient_clipping": 0.0,
        "steps_per_print": NEVER,
        "bf16": {"enabled": workload.dtype == torch.bfloat16},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
        },
    }
