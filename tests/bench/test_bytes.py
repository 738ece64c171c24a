"""Bytes that are counted, against the formulas of the ops' documentation."""

import pytest
import torch

from overlap.bench.rows import OPS
from overlap.bench.rows.block import WORLD, one_tensor, transformer_block

CPU = torch.device("cpu")
SIZE = 4096
BF16, FP32 = torch.bfloat16, torch.float32


def cases(op, dtype):
    return list(OPS[op](SIZE, dtype, CPU))


@pytest.mark.parametrize(
    ("op", "dtype", "per_element"),
    [
        ("reduce_sum", BF16, [4 * 2 + 2, 4 * 2 + 4, 4 * 2 + 4]),
        ("reduce_sum", FP32, [4 * 4 + 4, 4 * 4 + 4]),
        ("grad_norm", BF16, [2]),
        ("grad_norm", FP32, [4]),
        ("adamw", BF16, [28, 22, 14]),
        ("adamw", FP32, [30, 28, 24, 16]),
        ("adamw_8bit", BF16, [16 + 16 / 256]),
        ("adamw_8bit", FP32, [18 + 16 / 256]),
        ("sgd_momentum", BF16, [20]),
        ("sgd_momentum", FP32, [22]),
        ("lion", BF16, [20]),
        ("lion", FP32, [22]),
        ("quantize", BF16, [3 + 4 / 256] * 2),
        ("quantize", FP32, [5 + 4 / 256] * 2),
        ("dequantize", BF16, [3 + 4 / 256] * 2),
        ("dequantize", FP32, [5 + 4 / 256] * 2),
    ],
)
def test_flat_ops_count_each_input_and_output_once(op, dtype, per_element):
    assert [case.bytes / case.elements for case in cases(op, dtype)] == per_element
    assert all(case.elements == SIZE for case in cases(op, dtype))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_pack_counts_gradients_and_the_whole_bucket(dtype):
    parcels = [transformer_block(SIZE), transformer_block(SIZE), one_tensor(SIZE)]
    buckets = [b for b in dict.fromkeys((dtype, FP32)) for _ in parcels]
    expected = [
        sum(torch.Size(shape).numel() for shape in parcel.shapes) * dtype.itemsize
        + WORLD * parcel.width * bucket.itemsize
        for parcel, bucket in zip(parcels * 2, buckets, strict=False)
    ]
    assert [case.bytes for case in cases("pack", dtype)] == expected


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_unpack_counts_no_padding(dtype):
    assert [case.bytes / case.elements for case in cases("unpack", dtype)] == [2 * dtype.itemsize] * 2


def test_a_block_has_matrices_and_vectors_and_about_the_size_asked_for():
    parcel = transformer_block(32 << 20)
    assert {len(shape) for shape in parcel.shapes} == {1, 2}
    assert abs(parcel.numel / (32 << 20) - 1) < 0.01
    assert parcel.numel == sum(torch.Size(shape).numel() for shape in parcel.shapes)


@pytest.mark.parametrize("op", OPS)
def test_no_peer_that_runs_moves_less_than_the_op(op):
    """Each reads and writes at least what the op does; a smaller count would flatter its GB/s."""
    for case in cases(op, BF16):
        for peer in case.peers:
            assert peer.run is None or peer.bytes >= 0.99 * case.bytes or op == "adamw_8bit", (case.label, peer.name)
