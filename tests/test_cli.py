import subprocess
import sys

import pytest

from overlap.cli import main

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def overlap(monkeypatch, capsys):
    """Run the command line in this process; returns exit code and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["overlap", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
        return exited.value.code, capsys.readouterr().err

    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return run


def no_launch(*_):
    pytest.fail("a process was started")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--stage", "4"], "stage must be one of 0, 1, 2, 3, but got 4"),
        (["--size", "smal"], "size must be one of tiny, small, base, but got smal; did you mean small?"),
        (["--dtype", "fp8"], "dtype must be one of fp32, bf16"),
        (["--optimizer", "sgd"], "optimizer must be one of overlap, torch"),
        (["--lanes", "two"], "lanes must be one of auto, inline"),
        (["--prefetch", "0"], "prefetch must be an integer of at least 1, but got 0"),
        (["--bucket-mb", "0"], "bucket_bytes must be an integer of at least 1, but got 0"),
        (["--steps", "0"], "steps must be positive, but got 0"),
        (["--ranks", "-1"], "ranks must be positive, but got -1"),
        (["--ranks", "5"], "batch must be a multiple of the 5 ranks, but got 12"),
        (["--data", "no/such/file"], "data must be readable, but got no/such/file (No such file"),
    ],
)
def test_bad_input_gives_one_line_and_starts_nothing(overlap, monkeypatch, arguments, complaint):
    monkeypatch.setattr("overlap.cli.launch", no_launch)
    code, err = overlap("train", *arguments)
    assert code == 2
    assert err.startswith(f"error: {complaint}")
    assert err.count("\n") == 1


def test_an_output_folder_that_cannot_be_made_is_refused(overlap, monkeypatch, tmp_path):
    monkeypatch.setattr("overlap.cli.launch", no_launch)
    (tmp_path / "taken").write_text("")
    code, err = overlap("train", "--out", str(tmp_path / "taken"))
    assert code == 2
    assert err.startswith(f"error: out must be a folder to write to, but got {tmp_path / 'taken'} (File exists)")


def test_an_unknown_option_is_refused(overlap):
    code, err = overlap("train", "--stag", "3")
    assert code == 2
    assert "No such option: --stag" in err


def test_a_launcher_that_sets_only_some_variables_is_refused(overlap, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    code, err = overlap("train")
    assert code == 2
    assert "launcher variables must be set together" in err
    assert "no WORLD_SIZE, MASTER_ADDR, MASTER_PORT; start with torchrun" in err


def test_another_number_of_ranks_than_the_launchers_is_refused(overlap, monkeypatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "4")
    code, err = overlap("train", "--ranks", "2")
    assert code == 2
    assert err.startswith("error: ranks must be the 4 that the launcher started, but got 2")


def test_the_command_line_needs_no_triton():
    """Nor does it load one: its interpreter is chosen when it is first imported."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from overlap.cli import main; sys.argv = ['overlap', 'doctor']\n"
        "main()"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "No module named" not in finished.stderr
    assert "ops on CPU" in finished.stdout
