"""quantize and dequantize against the same block scaling in plain torch."""

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from overlap import ops
from overlap.bench import memory
from overlap.bench.case import Case, Peer, dtype_name
from overlap.bench.verify import Buffers, wrong_values
from overlap.ops import reference

BLOCK = 256
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def quantize(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield int8 and e4m3 payloads."""
    for payload in LARGEST:
        yield _quantize(_whole_blocks(elements), dtype, payload, device)


def dequantize(elements: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Yield int8 and e4m3 payloads."""
    for payload in LARGEST:
        yield _dequantize(_whole_blocks(elements), dtype, payload, device)


def quantize_bytes(elements: int, value_bytes: int) -> int:
    """Values on one side, a byte per element and a scale per block on the other; the same in both directions."""
    return elements * (value_bytes + 1) + 4 * (elements // BLOCK)


def _whole_blocks(elements: int) -> int:
    """Round to whole blocks, so that the peer can be a plain view."""
    return max(elements // BLOCK, 1) * BLOCK


def _quantize(elements: int, dtype: torch.dtype, payload_dtype: torch.dtype, device: torch.device) -> Case:
    values = memory.randn(elements, dtype, device)
    payload = memory.empty(elements, payload_dtype, device)
    scales = memory.empty(elements // BLOCK, torch.float32, device)
    buffers = [values, payload, scales]

    def apply(face: ModuleType, buffers: Buffers, start: int = 0) -> None:
        face.quantize(*buffers, BLOCK)

    def wrong(face: ModuleType) -> int:
        outputs = [payload, scales]
        return wrong_values(buffers, outputs, partial(apply, face, buffers), partial(apply, reference), block=BLOCK)

    return Case(
        op="quantize",
        variant=f"blocks of {BLOCK}",
        dtype=f"{dtype_name(dtype)} -> {dtype_name(payload_dtype)}",
        elements=elements,
        bytes=quantize_bytes(elements, dtype.itemsize),
        bound="copy",
        call=lambda face: apply(face, buffers),
        public=lambda: ops.quantize(values, payload, scales, block=BLOCK),
        wrong=wrong,
        results=lambda: [payload, scales],
        peers=(_plain_quantize(values, payload_dtype),),
    )


def _plain_quantize(values: Tensor, payload_dtype: torch.dtype) -> Peer:
    blocks, largest = values.view(-1, BLOCK), LARGEST[payload_dtype]
    payload = memory.empty_like(values, payload_dtype)
    scales = memory.empty(len(blocks), torch.float32, values.device)

    def run() -> None:
        scales.copy_(torch.linalg.vector_norm(blocks, torch.inf, dim=1)).div_(largest).clamp_(min=2.0**-126)
        scaled = blocks / scales[:, None]
        if payload_dtype == torch.int8:
            scaled.round_()
        payload.view(-1, BLOCK).copy_(scaled.clamp_(-largest, largest))

    passes = 6 if payload_dtype == torch.int8 else 4  # over the scaled values: div, round_, clamp_, copy_
    moved = 2 * values.nbytes + passes * 4 * values.numel() + payload.nbytes + 7 * scales.nbytes
    return Peer("torch norm, div, clamp", run, moved, lambda: [payload, scales])


def _dequantize(elements: int, dtype: torch.dtype, payload_dtype: torch.dtype, device: torch.device) -> Case:
    payload = memory.copy(torch.randn(elements, device=device).mul_(30).clamp_(-127, 127), payload_dtype)
    scales = memory.empty(elements // BLOCK, torch.float32, device).uniform_()
    out = memory.empty(elements, dtype, device)
    buffers = [payload, scales, out]

    def apply(face: ModuleType, buffers: Buffers, start: int = 0) -> None:
        face.dequantize(*buffers, BLOCK, False)

    def wrong(face: ModuleType) -> int:
        return wrong_values(buffers, [out], partial(apply, face, buffers), partial(apply, reference), block=BLOCK)

    return Case(
        op="dequantize",
        variant=f"blocks of {BLOCK}",
        dtype=f"{dtype_name(payload_dtype)} -> {dtype_name(dtype)}",
        elements=elements,
        bytes=quantize_bytes(elements, dtype.itemsize),
        bound="copy",
        call=lambda face: apply(face, buffers),
        public=lambda: ops.dequantize(payload, scales, out, block=BLOCK),
        wrong=wrong,
        results=lambda: [out],
        peers=(_plain_dequantize(payload, scales, dtype),),
    )


def _plain_dequantize(payload: Tensor, scales: Tensor, dtype: torch.dtype) -> Peer:
    out = memory.empty_like(payload, dtype)

    def run() -> None:
        out.view(-1, BLOCK).copy_(payload.view(-1, BLOCK).float().mul_(scales[:, None]))

    moved = payload.nbytes + 4 * 4 * payload.numel() + out.nbytes + scales.nbytes
    return Peer("torch float, mul, copy", run, moved, lambda: [out])
