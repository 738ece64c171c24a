"""``overlap verify`` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from overlap.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "verify.py"


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run the command line in this process, where it must start nothing; returns its one line."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["overlap", "verify", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])  # the example's folder must not stay in it
        monkeypatch.setattr("overlap.verify.command.launch", lambda *_: pytest.fail("a process was started"))
        with pytest.raises(SystemExit) as exited:
            main()
        assert exited.value.code == 2
        return capsys.readouterr().err

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return run


MODEL = f"{EXAMPLE}:make_model"
WRONG = {
    "no file": (["no.py:f"], "target must name a file that exists, but got no.py"),
    "no colon": ([str(EXAMPLE)], "target must be FILE.py:factory or module:factory"),
    "no such factory": ([f"{EXAMPLE}:make_modle"], f"{EXAMPLE}:make_modle must be an attribute of {EXAMPLE}"),
    "a factory of no module": ([f"{EXAMPLE}:LAYERS"], f"make_model {EXAMPLE}:LAYERS must be callable, but got a int"),
    "no batches": ([MODEL, "--batches", "batchs"], f"{EXAMPLE}:batchs must be an attribute"),
    "no loss": ([MODEL, "--loss", "WIDTH"], "loss WIDTH must be callable"),
    "no optimizer": ([MODEL, "--optimizer", "adamm"], f"{EXAMPLE}:adamm must be an attribute"),
    "no option": ([MODEL, "--set", "preftech=2"], "option must be one of stage"),
    "a wrong value": ([MODEL, "--set", "prefetch=0"], "prefetch must be an integer of at least 1, but got 0"),
    "a wrong stage": ([MODEL, "--stage", "5"], "stage must be one of 0, 1, 2, 3, but got 5"),
    "no unit": ([MODEL, "--unit", "blocks.*"], "unit must select at least one module, but got blocks.*"),
    "no steps": ([MODEL, "--steps", "0"], "steps must be an integer of at least 1, but got 0"),
    "no ranks": ([MODEL, "--ranks", "0"], "ranks must be positive, but got 0"),
    "a negative tolerance": ([MODEL, "--rtol", "-1"], "rtol must be at least 0, but got -1.0"),
    "no folder": ([MODEL, "--json", "no/folder/report.json"], "json must be a file to write to, but got"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_gives_one_line_and_starts_nothing(refused, name):
    arguments, complaint = WRONG[name]
    err = refused(*arguments)
    assert err.startswith(f"error: {complaint}"), err
    assert err.count("\n") == 1


def test_a_factory_that_returns_no_module_is_refused(refused, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def make_model():\n    return 3\n\nbatches = [1, 2]\n")
    err = refused(f"{path}:make_model")
    assert err.startswith("error: make_model() must return a torch.nn.Module, but got int; let it return the model")


def test_an_unknown_flag_is_refused(refused):
    assert "No such option: --stag" in refused(MODEL, "--stag", "3")


def overlap_verify(*arguments: str, launcher: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *launcher, "-m", "overlap", "verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_agreement_on_three_ranks_ends_with_status_0(tmp_path):
    done = overlap_verify(
        MODEL, "--unit", "Block", "--ranks", "3", "--optimizer", "adamw", "--json", str(tmp_path / "r")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stage 3, 3 ranks, 4 steps, unit Block\n")
    assert "\nSAME: " in done.stdout
    assert json.loads((tmp_path / "r").read_text())["ok"]


def test_a_difference_ends_with_status_1_and_names_the_unit():
    done = overlap_verify(
        f"{EXAMPLE}:make_stale_model", "--unit", "Block", "--stage", "2", "--set", "bucket-bytes=4096"
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "\n  first    step 2, unit 1, output[0], ranks 0, 1\n" in done.stdout
    assert "taken from a parameter earlier" in done.stdout


def test_under_torchrun_it_runs_in_place():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = overlap_verify(f"{EXAMPLE}:make_stale_model", "--unit", "Block", launcher=launcher)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("DIFFERENT: a unit computed something else") == 1


def test_a_model_that_fails_on_a_rank_says_so(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\nimport torch.distributed as dist\n\n"
        "def make_model():\n    return torch.nn.Linear(2, 2 // (1 - dist.get_rank()))\n\n"
        "batches = [torch.ones(1, 2), torch.ones(1, 2)]\n"
    )
    done = overlap_verify(f"{path}:make_model")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: rank 1: ZeroDivisionError")
