"""Who takes part, by name."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch

from overlap.bench.step.contenders.alone import alone
from overlap.bench.step.contenders.contender import Spec
from overlap.bench.step.contenders.ddp import ddp, ddp_zero
from overlap.bench.step.contenders.deepspeed import deepspeed_zero, why_missing
from overlap.bench.step.contenders.fsdp1 import fsdp1
from overlap.bench.step.contenders.fsdp2 import fsdp2, fsdp2_best
from overlap.bench.step.contenders.ours import ours, ours_best

FLOOR = "alone"
BF16 = torch.bfloat16

# Gloo's reduce-scatter is an all-reduce, and so it is named.
REDUCED = frozenset({"all_reduce"})
SHARDED = frozenset({"all_gather", "all_reduce"})


def _deepspeed(stage: int) -> Spec:
    return Spec(
        f"deepspeed-{stage}",
        stage,
        partial(deepspeed_zero, stage=stage),
        rival=f"ours-{stage}",
        reduces_in_param_dtype=True,
        collectives=frozenset({"all_gather"}),
        missing=why_missing,
    )


CONTENDERS: Mapping[str, Spec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            Spec(FLOOR, None, alone),
            Spec("ours-1", 1, partial(ours, stage=1), ours=True),
            Spec("ours-2", 2, partial(ours, stage=2), ours=True),
            Spec("ours-3", 3, partial(ours, stage=3), ours=True),
            Spec("ours-3-best", 3, ours_best, ours=True),
            Spec("ours-3-bf16wire", 3, partial(ours, stage=3, reduce_dtype=BF16), ours=True, bf16_reduce=True),
            Spec("ddp", 0, ddp, rival="ours-1", collectives=REDUCED),
            Spec("ddp-zero", 1, ddp_zero, rival="ours-1", collectives=REDUCED | {"broadcast"}),
            Spec("fsdp1", 3, fsdp1, rival="ours-3", collectives=SHARDED),
            Spec("fsdp2", 3, fsdp2, rival="ours-3", collectives=SHARDED),
            Spec("fsdp2-best", 3, fsdp2_best, rival="ours-3", collectives=SHARDED),
            Spec("fsdp2-2", 2, partial(fsdp2_best, keeps=True), rival="ours-2", collectives=SHARDED),
            Spec(
                "fsdp2-best-bf16wire",
                3,
                partial(fsdp2_best, reduce_dtype=BF16),
                rival="ours-3-bf16wire",
                bf16_reduce=True,
                collectives=SHARDED,
            ),
            *(_deepspeed(stage) for stage in (1, 2, 3)),
        )
    }
)
