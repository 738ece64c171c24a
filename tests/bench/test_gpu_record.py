"""``make gpu`` as far as it goes without a GPU: what is missing, the parts and their limits, the record."""

import datetime
import json
import os
import subprocess
import sys

import pytest
from gpu_record import __main__ as command
from gpu_record import needs, parts
from gpu_record.needs import Torch
from gpu_record.parts import Outcome, Part
from gpu_record.record import Record

ROW = {
    "op": "pack", "variant": "transformer block", "face": "triton", "dtype": "bf16 -> fp32", "elements": 100,
    "bytes": 600, "gbps": 3900.4, "bound": "copy", "fraction_of_copy": 0.93, "peer": "torch._chunk_cat",
    "peer_missing": None, "speedup_vs_peer": 1.234, "wrong": 0,
}  # fmt: skip
MISSING = {**ROW, "peer": "DeepSpeed CPUAdam", "peer_missing": "not installed", "speedup_vs_peer": None}
RESULT = {
    "machine": {"device": "NVIDIA H200", "torch": "2.11.0+cu130"}, "copy_gbps": 4200.0, "triad_gbps": 4100.0,
    "read_gbps": 4300.0, "update_gbps": 4000.0, "rows": [ROW, MISSING], "left_out": [],
}  # fmt: skip
DATE = datetime.date(2027, 1, 2)


def python(code, *, name="part", limit_s=60.0):
    return Part(name, (sys.executable, "-c", code), limit_s)


def outcome(*command, code=0, text="== 3 passed in 1.0s ==\n"):
    return Outcome(Part("tests", command, 60), code, 12.4, False, text)


def record(*outcomes, **changes):
    return Record(DATE, "NVIDIA H200", outcomes, {**RESULT, **changes})


class TestNeeds:
    """Each thing that is missing has one line of its own."""

    @pytest.fixture
    def smi(self, monkeypatch):
        """Make nvidia-smi list these devices; None removes it."""

        def install(listed):
            monkeypatch.setattr(needs.shutil, "which", lambda name: None if listed is None else name)
            finished = subprocess.CompletedProcess([], 0, stdout=listed)
            monkeypatch.setattr(needs.subprocess, "run", lambda *_, **__: finished)

        return install

    @pytest.mark.parametrize(
        ("listed", "torch", "lines"),
        [
            (None, Torch("2.13.0+cpu", None, None), ["no NVIDIA driver", "no CUDA torch: torch 2.13.0+cpu is a CPU"]),
            ("No devices found.\n", Torch("2.11", "13.0", None), ["no NVIDIA device", "torch 2.11 sees no device"]),
            ("GPU 0: NVIDIA H200\n", Torch("2.11", "13.0", "NVIDIA H200"), []),
        ],
    )
    def test_driver_device_and_torch(self, smi, monkeypatch, listed, torch, lines):
        smi(listed)
        monkeypatch.setattr(needs, "ask_torch", lambda: torch)
        missing = needs.missing()
        assert [line.startswith(start) for line, start in zip(missing, lines, strict=True)] == [True] * len(lines)

    def test_modules(self, smi, monkeypatch):
        smi("GPU 0: NVIDIA H200\n")
        monkeypatch.setattr(needs, "find_spec", lambda name: None)
        assert needs.missing() == [f"no {name}: {sys.executable} cannot import it" for name in needs.MODULES]
        monkeypatch.setattr(needs.shutil, "which", lambda name: None)
        assert needs.missing_to_build()[-1] == "no C++ compiler"

    def test_torch_is_asked(self):
        assert needs.ask_torch().version

    def test_a_torch_that_does_not_import_says_why(self, monkeypatch):
        monkeypatch.setattr(needs, "ASK_TORCH", "import no_such_module")
        assert "No module named 'no_such_module'" in needs.ask_torch().version


class TestParts:
    """A part is shown, kept, and stopped at its limit with everything it started."""

    def test_output_is_shown_and_kept(self, capfd):
        part = python("import os, sys; print(os.environ['X']); sys.stdout.flush(); sys.exit('bad')")
        result = parts.run(part, {"X": "from here"})
        assert (result.code, result.timed_out, result.passed) == (1, False, False)
        assert result.text == "from here\nbad\n"
        assert "from here\nbad\n" in capfd.readouterr().out

    def test_runs_in_the_root(self):
        result = parts.run(python("import os; print(os.path.exists('pyproject.toml'))"), {})
        assert result.passed
        assert result.text == "True\n"

    def test_the_limit_ends_children_too(self):
        """The child holds the pipe: unless it is ended, reading would go on."""
        child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
        result = parts.run(python(child, limit_s=1.0), {})
        assert (result.timed_out, result.passed) == (True, False)
        assert "stopped at its limit of 1 s" in result.words

    def test_all_parts_together_stay_under_eight_minutes(self, tmp_path):
        whole = [parts.build(tmp_path), *parts.tests(), parts.bench(tmp_path / "r.json")]
        assert sum(part.limit_s for part in whole) < 480

    def test_the_bench_command_is_one_that_overlap_takes(self, tmp_path):
        """But for the device, which is hidden here: the only thing that it complains about."""
        words = parts.bench(tmp_path / "r.json").command
        assert words[:3] == (sys.executable, "-m", "overlap")
        hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        finished = subprocess.run(words, capture_output=True, text=True, env=hidden)
        assert finished.returncode == 2
        assert "device must be there, but got cuda" in finished.stderr


class TestRecord:
    """The folder holds all that profiles/README.md asks of an entry."""

    def test_files(self, tmp_path):
        tests = outcome("python3", "-m", "pytest", "-m", "gpu")
        folder = record(tests, outcome("overlap", text="table")).write(tmp_path)
        assert folder == tmp_path / "2027-01-02_nvidia-h200_ops"
        assert {path.name for path in folder.iterdir()} == {"README.md", "command", "env", "result.json", "pytest.txt"}
        assert json.loads((folder / "result.json").read_text()) == RESULT
        assert (folder / "pytest.txt").read_text() == tests.text
        assert (folder / "command").read_text() == "make gpu\npython3 -m pytest -m gpu\noverlap\n"
        assert "torch: 2.11.0+cu130\n" in (folder / "env").read_text()

    def test_readme(self):
        text = record(outcome("python3", "pytest")).readme()
        assert "| tests | passed after 12 s; last line: `== 3 passed in 1.0s ==` |" in text
        assert "| copy | 4,200 |" in text
        assert (
            "| pack | transformer block | bf16 -> fp32 | triton | 3,900 | 93 % of copy | torch._chunk_cat | 1.23 |"
            in text
        )
        assert "| DeepSpeed CPUAdam | - |" in text
        assert "Wrong values: 0." in text

    def test_a_wrong_value_counts_once_and_fails_with_the_bench(self):
        wrong = [{**row, "wrong": 7} for row in RESULT["rows"]]
        failed = record(outcome("overlap", code=1), rows=wrong, left_out=["lion bf16 128"])
        assert not failed.passed
        assert "Wrong values: 7." in failed.readme()
        assert "Not measured, out of time: lion bf16 128." in failed.readme()

    def test_without_rows_nothing_passed(self, tmp_path):
        empty = Record(DATE, "NVIDIA H200", [outcome("overlap")], {}, ["Not built."])
        assert not empty.passed
        folder = empty.write(tmp_path)
        text = (folder / "README.md").read_text()
        assert "Wrong values: nothing was measured." in text
        assert "Not built." in text

    def test_a_second_record_of_the_day_replaces_the_first(self, tmp_path):
        record(outcome("overlap", code=1)).write(tmp_path)
        folder = record(outcome("overlap")).write(tmp_path)
        assert "passed after" in (folder / "README.md").read_text()


class TestCommand:
    """From beginning to end, with parts that stand in for the real ones."""

    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "argv", ["make gpu", "--into", str(tmp_path / "profiles")])
        monkeypatch.setattr(command, "SITE", tmp_path / "site")
        monkeypatch.setattr(command, "RESULT", tmp_path / "build" / "result.json")
        monkeypatch.setattr(needs, "missing", list)
        monkeypatch.setattr(needs, "missing_to_build", list)
        monkeypatch.setattr(needs, "ask_torch", lambda: Torch("2.11", "13.0", "NVIDIA H200"))
        monkeypatch.setattr(parts, "build", lambda site: python(f"import os; os.mkdir({str(site)!r})", name="build"))
        monkeypatch.setattr(parts, "tests", lambda: [python("import os; print(os.environ['PYTHONPATH'])")])
        bench = f"open({str(tmp_path / 'build' / 'result.json')!r}, 'w').write({json.dumps(RESULT)!r})"
        monkeypatch.setattr(parts, "bench", lambda result: python(bench, name="bench"))

        def whole():
            code = command.main()
            return code, next((tmp_path / "profiles").glob("*/"), None)

        return whole

    def test_all_passes(self, run, tmp_path, capfd):
        code, folder = run()
        assert code == 0
        assert json.loads((folder / "result.json").read_text()) == RESULT
        shown = capfd.readouterr().out
        assert f"{tmp_path / 'site'}\n" in shown  # what was built is what is tested
        assert shown.endswith("passed\n")

    def test_what_is_missing_ends_it(self, run, monkeypatch, capfd):
        monkeypatch.setattr(needs, "missing", lambda: ["no NVIDIA driver", "no CUDA torch"])
        code, folder = run()
        assert (code, folder) == (1, None)
        assert capfd.readouterr().out.splitlines()[1:] == ["  no NVIDIA driver", "  no CUDA torch"]

    @pytest.mark.parametrize("broken", ["tests", "bench"])
    def test_a_part_that_fails_is_recorded_and_fails_it(self, run, monkeypatch, broken):
        failing = python("raise SystemExit(3)", name=broken)
        monkeypatch.setattr(parts, broken, lambda *_: [failing] if broken == "tests" else failing)
        code, folder = run()
        assert code == 1
        assert f"| {broken} | exit status 3 after" in (folder / "README.md").read_text()

    def test_without_a_compiler_the_sources_run(self, run, monkeypatch, capfd):
        monkeypatch.setattr(needs, "missing_to_build", lambda: ["no C++ compiler"])
        code, folder = run()
        assert code == 0
        assert f"{parts.ROOT}\n" in capfd.readouterr().out
        assert "Without the compiled extensions (no C++ compiler)" in (folder / "README.md").read_text()

    def test_a_build_that_fails_is_recorded_and_the_sources_run(self, run, monkeypatch):
        monkeypatch.setattr(parts, "build", lambda site: python("raise SystemExit(1)", name="build"))
        code, folder = run()
        assert code == 1
        text = (folder / "README.md").read_text()
        assert "| build | exit status 1 after" in text
        assert "Without the compiled extensions (the build failed)" in text
