"""Flat values to 8 bits with one fp32 scale per block, and back: the wire format of a compressed reduction."""

import triton
import triton.language as tl

from overlap.kernels.convert import narrow, widen
from overlap.kernels.minifloat import decode_signed, encode_nearest, round_even, scaled

INT8_MAX = tl.constexpr(127.0)
E4M3_MAX, E4M3_BIAS, E4M3_LARGEST = tl.constexpr(448.0), tl.constexpr(7), tl.constexpr(126)


@triton.jit(do_not_specialize=["size"])
def quantize_kernel(
    values, payload, scales, size: tl.int64, E4M3: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Write ``ROWS`` blocks of ``BLOCK`` elements per program; one row of the tile has one scale.

        program 0   row 0   values      0 .. BLOCK-1   scales[0]      program 1 ...   last, masked
                    row 1   values BLOCK .. 2*BLOCK-1  scales[1]
                    ...

    Traffic per element: read values (2 or 4 bytes), write payload (1) and scales (4 / BLOCK). The payload is
    int8, or the bits of e4m3 as uint8.
    """
    start = tl.program_id(0).to(tl.int64) * (ROWS * BLOCK)
    left = tl.minimum(size - start, ROWS * BLOCK).to(tl.int32)
    rows = tl.arange(0, ROWS)
    lanes = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    if left == ROWS * BLOCK:  # no mask: 16-byte vectors whatever the size
        code, scale = _encode(widen(tl.load(values + start + lanes)), E4M3)
        tl.store(payload + start + lanes, code)
    else:
        code, scale = _encode(widen(tl.load(values + start + lanes, mask=lanes < left, other=0.0)), E4M3)
        tl.store(payload + start + lanes, code, mask=lanes < left)
    tl.store(scales + start // BLOCK + rows, scale, mask=rows * BLOCK < left)


@triton.jit
def _encode(x, E4M3: tl.constexpr):
    """Return codes and scales of rows of fp32; a row that is not finite is codes of 0, scale NaN."""
    y, scale, _ = scaled(x, E4M3_MAX if E4M3 else INT8_MAX)
    if E4M3:
        sign = (y.to(tl.uint32, bitcast=True) >> 31) << 7
        return (sign | encode_nearest(tl.abs(y), E4M3_BIAS, E4M3_LARGEST)).to(tl.uint8), scale
    else:
        return tl.minimum(tl.maximum(round_even(y), -127), 127).to(tl.int8), scale


@triton.jit(do_not_specialize=["size"])
def dequantize_kernel(
    payload, scales, out, size: tl.int64, E4M3: tl.constexpr, ACCUMULATE: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write ``ROWS * LANES`` elements per program; a row lies inside one block, so it has one scale.

        program 0   row 0   elements     0 .. LANES-1    scales[row 0 * LANES / BLOCK]     LANES = BLOCK, or
                    row 1   elements LANES .. 2*LANES-1  ...                               part of a large one

    Traffic per element: read payload (1 byte) and scales (4 / BLOCK), write out (2 or 4; read it too with
    ACCUMULATE).
    """
    start = tl.program_id(0).to(tl.int64) * (ROWS * LANES)
    left = tl.minimum(size - start, ROWS * LANES).to(tl.int32)
    firsts = tl.arange(0, ROWS) * LANES
    lanes = firsts[:, None] + tl.arange(0, LANES)[None, :]
    scale = tl.load(scales + (start + firsts) // BLOCK, mask=firsts < left)
    if left == ROWS * LANES:  # no mask: 16-byte vectors whatever the size
        _dequantize_tile(payload + start, scale, out + start, lanes, None, E4M3, ACCUMULATE)
    else:
        _dequantize_tile(payload + start, scale, out + start, lanes, lanes < left, E4M3, ACCUMULATE)


@triton.jit
def _dequantize_tile(payload, scale, out, lanes, mask, E4M3: tl.constexpr, ACCUMULATE: tl.constexpr):
    code = tl.load(payload + lanes, mask=mask)
    x = (_from_e4m3(code) if E4M3 else code.to(tl.float32)) * scale[:, None]
    if ACCUMULATE:
        x = widen(tl.load(out + lanes, mask=mask)) + x
    tl.store(out + lanes, narrow(x, out.dtype.element_ty), mask=mask)


@triton.jit
def _from_e4m3(code):
    """Return uint8 bits of e4m3 as fp32; 0x7F and 0xFF are NaN, as torch.float8_e4m3fn has it."""
    wide = code.to(tl.uint32)
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), decode_signed(wide, E4M3_BIAS))
