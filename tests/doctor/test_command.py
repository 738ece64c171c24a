"""The command as users run it."""

import json
import os
import subprocess
import sys

import pytest

QUIET = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "CUDA_", "NCCL_", "GLOO_"))}


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overlap", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=QUIET | environment, timeout=60)


def test_harmful_variables_are_named_with_their_cure_and_end_in_1(tmp_path):
    file = tmp_path / "findings.json"
    finished = doctor("--json", str(file), CUDA_DEVICE_MAX_CONNECTIONS="1", CUDA_LAUNCH_BLOCKING="1")
    assert finished.returncode == 1, finished.stderr
    assert "unset CUDA_LAUNCH_BLOCKING" in finished.stdout
    told = json.loads(file.read_text())
    errors = [row["subject"] for row in told["findings"] if row["level"] == "error"]
    assert errors == ["CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"]
    assert told["counts"]["error"] == 2
    assert set(told["findings"][0]) == {"family", "level", "subject", "value", "why", "cure"}


def test_warnings_end_in_1_only_if_asked():
    busy = {"OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "ACTIVE"}
    assert doctor(**busy).returncode == 0
    assert doctor("--strict", **busy).returncode == 1


@pytest.mark.parametrize("arguments", [["--ranks", "0"], ["--json", "/no/such/folder/file"]])
def test_bad_input_is_one_line(arguments):
    finished = doctor(*arguments)
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"error: {arguments[0][2:]} must ")
    assert finished.stderr.count("\n") == 1
