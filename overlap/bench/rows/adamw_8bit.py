"""adamw_8bit against the fp32 optimizers that it replaces (none of its own kind runs on both CPU and CUDA)."""

from collections.abc import Iterator
from types import ModuleType

import torch

from overlap import ops
from overlap.bench import memory
from overlap.bench.case import Case
from overlap.bench.rows.adamw import COEFFICIENTS, OPTIONS, adam_peers
from overlap.bench.rows.update import SEED, STEP, Shards, fp32_shards, update_case
from overlap.bench.verify import Buffers

BLOCK = 256


def adamw_8bit(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield fp32 weights with a bf16 shard; averages as if one step had been made."""
    wide = fp32_shards(elements, dtype, torch.bfloat16, device, averages=2)
    weights = wide.states[0]
    m, v = (memory.empty(elements, torch.uint8, device).random_(0, 127) for _ in range(2))
    blocks = -(-elements // BLOCK)
    m_scale, v_scale = (memory.empty(blocks, torch.float32, device).uniform_(0, 1e-4) for _ in range(2))
    shards = Shards([weights, m, v, m_scale, v_scale], wide.grad, wide.shard)

    def call(face: ModuleType, buffers: Buffers, start: int) -> None:
        face.adamw_8bit(*buffers, COEFFICIENTS, None, None, False, SEED, start, STEP)

    yield update_case(
        "adamw_8bit",
        "8-bit averages, stochastic",
        shards,
        call=call,
        public=lambda: ops.adamw_8bit(weights, m, v, m_scale, v_scale, wide.grad, wide.shard, **OPTIONS, seed=SEED),
        peers=adam_peers(wide, wide.states[1], wide.states[2]),
        block=BLOCK,
    )
