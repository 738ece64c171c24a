"""The command as users run it."""

import json
import os
import re
import subprocess
import sys

import pytest

from overlap.cli import main
from overlap.doctor.checks.variables import RULES

HARMFUL = ("OMP_", "CUDA_", "NCCL_", "GLOO_", "TRITON_")  # tests of ops run Triton's interpreter
QUIET = {name: value for name, value in os.environ.items() if not name.startswith(HARMFUL)}


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


def test_under_torchrun_every_rank_names_the_agents_store():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    finished = subprocess.run(
        [*launcher, "-m", "overlap", "doctor", "--ranks", "2"], capture_output=True, text=True, env=QUIET, timeout=120
    )
    assert len(re.findall(r"rendezvous: TCPStore at \S+:\d+, held by torchrun's agent \(libuv\)", finished.stdout)) == 2


@pytest.fixture
def here(monkeypatch):
    """Run the command in this process, without variables that do harm; returns its exit status."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["overlap", "doctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    for name in (*(rule.name for rule in RULES), "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    return run


def test_warnings_end_in_1_only_if_asked(here, monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert here() == 0, capsys.readouterr().out
    assert here("--strict") == 1


@pytest.mark.parametrize("arguments", [["--ranks", "0"], ["--json", "/no/such/folder/file"]])
def test_bad_input_is_one_line(here, arguments, capsys):
    assert here(*arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {arguments[0][2:]} must ")
    assert told.count("\n") == 1
