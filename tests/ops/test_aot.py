"""What the kernels become on GPUs that need not be here: vectors, IEEE arithmetic, no spills."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = Path(__file__).with_name("aot_compile.py")

# 16-byte accesses in the unmasked branch, at least: one per stream that moves a whole block.
WIDE_LOADS = {"adamw": 4, "pack": 1, "reduce_sum": 1, "sum_squares": 1, "finish": 0}
WIDE_STORES = {"adamw": 4, "pack": 1, "reduce_sum": 1, "sum_squares": 0, "finish": 0}


def compiled_records(arch: int) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, COMPILE, str(arch)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines()]


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_compiles_to_vectors_and_exact_arithmetic(arch):
    records = compiled_records(arch)
    assert {record["label"].split()[0] for record in records} == set(WIDE_LOADS)
    for record in records:
        label, name = record["label"], record["label"].split()[0]
        assert record["loads"]["wide"] >= WIDE_LOADS[name], label
        assert record["stores"]["wide"] >= WIDE_STORES[name], label
        assert record["fused"] == 0, f"{label}: a fused multiply-add rounds once where the CPU rounds twice"
        assert record["approximate"] == 0, f"{label}: approximate division or square root"
        assert (record["stack"], record["local"]) == (0, 0), f"{label}: registers spill"
