"""What the kernels become on GPUs that need not be here, and with the oldest Triton that is supported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ops.face_calls import CALLS

TESTS = Path(__file__).parents[1]
ARCHITECTURES = ("80", "90", "100")
SECOND = Path(os.environ.get("OVERLAP_SECOND_TRITON", Path(sys.prefix) / "triton-3.6")).resolve()
"""Triton 3.6.0, beside the one that is installed; `make test` puts it there."""

# 16-byte loads and stores of a whole block, at least: what a thread moves, in vectors. The kernels of pack and
# unpack have a branch per dtype; the codes of adamw_8bit are 8-byte vectors.
WIDE = {
    "adamw fp32": (7, 7),
    "adamw bf16 moments": (6, 5),
    "adamw bf16": (4, 3),
    "adamw_8bit": (3, 3),
    "sgd_momentum bf16": (3, 2),
    "lion fp32, bf16 average": (4, 4),
    "pack to bf16": (4, 3),
    "pack to fp32, accumulating": (10, 6),
    "unpack from bf16": (3, 4),
    "unpack from fp32, scaled": (6, 4),
    "reduce_sum bf16 to fp32, accumulating": (7, 2),
    "reduce_sum fp32 to bf16, with norm": (10, 1),
    "grad_norm bf16": (4, 0),
    "quantize bf16 to int8": (2, 1),
    "quantize fp32 to e4m3, one block": (8, 2),
    "dequantize int8 to fp32, accumulating": (5, 4),
    "dequantize e4m3 to bf16": (1, 2),
}


def environment(triton: Path | None, **more: str) -> dict[str, str]:
    """Variables of a process that takes Triton from a folder; None takes the installed one."""
    paths = [str(path) for path in (triton, TESTS) if path is not None]
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return inherited | {"PYTHONPATH": os.pathsep.join(paths)} | more


def second_triton() -> Path:
    if not SECOND.is_dir():
        missing = f"no Triton 3.6.0 in {SECOND}: `make test` installs it"
        pytest.fail(missing) if "OVERLAP_SECOND_TRITON" in os.environ else pytest.skip(missing)
    return SECOND


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen, Path]]]:
    """One process per version, side by side, each with a cache of its own that goes with the test."""
    processes = {}
    for version, triton in {"installed": None, "3.6": SECOND}.items():
        if triton is not None and not triton.is_dir():
            continue
        folder = tmp_path_factory.mktemp(f"aot-{version}")
        command = [sys.executable, "-m", "ops.aot_compile", *ARCHITECTURES]
        variables = environment(triton, TRITON_CACHE_DIR=str(folder / "cache"))
        with (folder / "records").open("w") as out, (folder / "errors").open("w") as errors:
            process = subprocess.Popen(command, env=variables, stdout=out, stderr=errors)
        processes[version] = (process, folder)
    yield processes
    for process, _ in processes.values():
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=["installed", "3.6"])
def records(request: pytest.FixtureRequest, compiling) -> list[dict]:
    if request.param == "3.6":
        second_triton()
    process, folder = compiling[request.param]
    assert process.wait() == 0, (folder / "errors").read_text()
    found = [json.loads(line) for line in (folder / "records").read_text().splitlines()]
    assert request.param == "installed" or {record["triton"] for record in found} == {"3.6.0"}
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_to_vectors_and_exact_arithmetic(records, arch):
    records = [record for record in records if record["arch"] == int(arch)]
    expected = {call.label for call in CALLS if arch == "90" or not call.variant}
    assert {record["call"] for record in records} == expected <= set(WIDE)
    for record in records:
        name = f"{record['call']}: {record['kernel']}"
        loads, stores = (0, 0) if record["kernel"] == "finish_kernel" else WIDE[record["call"]]
        assert record["loads"]["wide"] >= loads, name
        assert record["stores"]["wide"] >= stores, name
        assert record["fused"] == 0, f"{name}: a fused multiply-add rounds once where the CPU rounds twice"
        assert record["approximate"] == 0, f"{name}: approximate division or square root"
        assert (record["stack"], record["local"]) == (0, 0), f"{name}: registers spill"


def test_compiles_once_whatever_the_numbers(records):
    again = [record["call"] for record in records if record["recompiled"]]
    assert not again, "other sizes, seeds, steps or coefficients must not compile again"


def test_the_interpreter_of_the_oldest_triton_agrees_with_the_reference():
    variables = environment(second_triton(), TRITON_INTERPRET="1")
    command = [sys.executable, "-m", "ops.interpret_calls"]
    finished = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "triton 3.6.0\n", "these calls differ"
