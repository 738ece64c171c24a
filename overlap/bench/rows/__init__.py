"""The cases of each op. Every function yields them one by one, so that one case's memory goes before the next."""

from collections.abc import Callable, Iterator

import torch

from overlap.bench.case import Case
from overlap.bench.rows import (
    adamw,
    adamw_8bit,
    grad_norm,
    lion,
    pack,
    quantize,
    reduce_sum,
    sgd_momentum,
    unpack,
)

Cases = Callable[[int, torch.dtype, torch.device], Iterator[Case]]
"""Elements (about so many), dtype of the input, device."""

OPS: dict[str, Cases] = {
    "pack": pack.pack,
    "unpack": unpack.unpack,
    "reduce_sum": reduce_sum.reduce_sum,
    "grad_norm": grad_norm.grad_norm,
    "adamw": adamw.adamw,
    "adamw_8bit": adamw_8bit.adamw_8bit,
    "sgd_momentum": sgd_momentum.sgd_momentum,
    "lion": lion.lion,
    "quantize": quantize.quantize,
    "dequantize": quantize.dequantize,
}
