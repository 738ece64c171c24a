"""What nvcc made of the kernels on GPUs that need not be here: vectors, separate rounding, no spills."""

from pathlib import Path
from shutil import which

import pytest
from ops.cuda.fatbin_report import architectures, report

from overlap.ops.cuda_face import sizes
from overlap.ops.image import image

ARCHITECTURES = [80, 90, 100]
NAMES = ("fp32", "bf16", "fp16")
MOVES = {f"{stem}_{name}" for stem in ("pack", "pack_add", "unpack") for name in NAMES}
SUMS = {f"reduce_sum_{row}_{out}" for row in NAMES for out in NAMES}
SQUARES = {f"sum_squares_{name}" for name in NAMES}


@pytest.fixture(scope="module")
def fatbin() -> Path:
    built = image()
    if built is None and which("nvcc") is None:
        pytest.skip("needs nvcc")
    assert built is not None, "nvcc is here, the kernels are not built: run make test, or pip install -e ."
    return built


@pytest.fixture(scope="module")
def records(fatbin: Path) -> list[dict]:
    return list(report(fatbin))


def test_machine_code_for_three_generations_and_ptx_for_the_next(fatbin):
    assert architectures(fatbin) == {"elf": ARCHITECTURES, "ptx": [100]}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_kernel_that_python_names_is_there(records, arch):
    assert {record["kernel"] for record in records if record["arch"] == arch} == MOVES | SUMS | SQUARES | {"finish"}


def test_arguments_are_as_large_as_the_host_writes_them(records):
    for record in records:
        full = 48 + 8 * sizes.CAPACITY
        want = 32 if record["kernel"] == "finish" else 24 if record["kernel"] in SQUARES else full
        assert record["argument_bytes"] == want, record


def test_registers_allow_four_blocks_and_never_spill(records):
    for record in records:
        assert (record["stack"], record["local"]) == (0, 0), record
        assert record["registers"] <= 64, record


def test_products_are_rounded_before_they_are_added(records):
    assert not [record for record in records if record["fused"]]


def test_every_access_to_memory_is_known_to_be_global(records):
    assert not [record for record in records if record["generic"]]


def widest(kernel: str) -> tuple[int, int]:
    """Loads and stores of 16 bytes, at least: a batch of four from and to every dtype of the same width or wider."""
    stem, *dtypes = kernel.removeprefix("pack_add").removeprefix("reduce_sum").removeprefix("sum_squares").split("_")
    if kernel == "finish":
        return 0, 0
    if kernel in SQUARES:
        return 2, 0
    if kernel in SUMS:
        row, out = dtypes
        return 4, 0 if (row, out) in {("fp32", "bf16"), ("fp32", "fp16")} else 1
    return (8, 4) if stem == "unpack" else (4, 8)


def test_whole_blocks_move_in_vectors_of_16_bytes(records):
    for record in records:
        loads, stores = widest(record["kernel"])
        assert record["wide_loads"] >= loads, record
        assert record["wide_stores"] >= stores, record
