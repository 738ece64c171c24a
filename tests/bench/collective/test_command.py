"""The command as users run it: real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.source import ROOT

from overlap.bench.bucket.tables import from_log
from overlap.bench.collective import command
from overlap.bench.collective.settings import CollectiveSettings
from overlap.bench.collective.worker import bench_rank, open_transports
from overlap.bench.netlab.namespaces import why_no_namespaces
from overlap.bench.netlab.net import parse_net
from overlap.cli import main
from overlap.config import LAUNCHER_VARIABLES
from overlap.demo.worker import run

SMALL = ["-b", "64K", "-e", "256K", "-f", "4", "-n", "3"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overlap", "bench", "collective", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=_environment())


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", **more}


def test_all_collectives_over_both_transports(tmp_path: Path):
    file = tmp_path / "run.json"
    asked = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "--transport", "gloo,overlap"]
    finished = bench(*asked, *SMALL, "--json", str(file))
    assert finished.returncode == 0, finished.stderr
    told = json.loads(file.read_text())
    assert told["wrong"] == 0
    assert len(told["rows"]) == 4 * 2 * 2
    for row in told["rows"]:
        assert (row["in_place"] is None) is (row["collective"] == "all_to_all")
        figures = row["out_of_place"]
        assert figures["algbw_gbps"] == pytest.approx(row["size"] / figures["time_us"] / 1e3)
        factor = 1.0 if row["collective"] == "all_reduce" else 0.5
        assert figures["busbw_gbps"] == pytest.approx(factor * figures["algbw_gbps"])
    printed = {(table.op, table.world): table.points for table in from_log(finished.stdout, "")}
    assert {key: [nbytes for nbytes, _ in points] for key, points in printed.items()} == {
        (op, 2): [1 << 16, 1 << 18] for op in asked[:4]
    }
    assert "# Out of bounds values : 0 OK" in finished.stdout


def test_roots_averages_and_coalesced_reductions(tmp_path: Path):
    file = tmp_path / "run.json"
    finished = bench(
        "broadcast", "reduce", "--transport", "gloo", "-r", "all", "-o", "avg", *SMALL, "--json", str(file)
    )
    assert finished.returncode == 0, finished.stderr
    told = json.loads(file.read_text())
    assert [(row["collective"], row["root"], row["size"], row["redop"]) for row in told["rows"]] == [
        (op, root, size, redop)
        for op, redop in (("broadcast", "none"), ("reduce", "avg"))
        for root in (0, 1)
        for size in (1 << 16, 1 << 18)
    ]
    for row in told["rows"]:
        assert (row["out_of_place"]["wrong"], row["in_place"]["wrong"]) == (0, 0)
        assert row["out_of_place"]["busbw_gbps"] == row["out_of_place"]["algbw_gbps"]
    assert [table.label for table in from_log(finished.stdout, "log")] == [
        f"log: {op} float, root {root}" for op in ("broadcast", "reduce") for root in (0, 1)
    ]
    asked = ["reduce_scatter", "all_reduce", "--transport", "gloo", "--layout", "coalesced", "-o", "avg", *SMALL]
    finished = bench(*asked)
    assert finished.returncode == 0, finished.stderr
    assert "# Out of bounds values : 0 OK" in finished.stdout


def test_under_torchrun(tmp_path: Path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", "0"]
    rest = ["-m", "overlap", "bench", "collective", "reduce_scatter", *SMALL, "-d", "bf16", "--out-datatype", "fp32"]
    finished = subprocess.run(
        [*launcher, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *rest],
        capture_output=True, text=True, timeout=120, env=_environment(OMP_NUM_THREADS="1"),
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    (table,) = from_log(finished.stdout, "")
    assert (table.op, table.world, len(table.points)) == ("reduce_scatter", 3, 2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["all_gatherr"], "collective must be one of"),
        (["-b", "1X"], "minbytes must be bytes"),
        (["-r", "first"], "root must be a rank or all"),
        (["--json", "/no/such/folder/f"], "json must be a file to write to"),
        (["--net", "fast"], "net must be none or a rate"),
    ],
)
def test_bad_input_is_one_line_and_starts_nothing(arguments, complaint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["overlap", "bench", "collective", *arguments])
    monkeypatch.setattr("overlap.bench.collective.ranks.run_on", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(SystemExit, match="2"):
        main()
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {complaint}")
    assert errors.count("\n") == 1


def test_links_are_not_for_ranks_that_somebody_else_has_started(monkeypatch, capsys):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "2")
    monkeypatch.setattr(sys, "argv", ["overlap", "bench", "collective", "--net", "1gbit"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith("error: net must be none under a launcher, but got 1gbit")


@pytest.mark.root
@pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))
def test_behind_links_of_a_rate():
    """Each rank sends half of 4 MiB: 168 ms at 100 Mbit/s, less what a link lets pass at once after a rest."""
    finished = bench("all_gather", "-b", "4M", "-n", "3", "--net", "100mbit")
    assert finished.returncode == 0, finished.stderr
    (table,) = from_log(finished.stdout, "")
    ((nbytes, seconds),) = table.points
    assert nbytes == 4 << 20
    assert seconds > 0.08


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks run this file: see its last lines."""
    monkeypatch.setattr(command, "WORKER", "bench.collective.test_command")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.usefixtures("faulty")
def test_a_planted_wrong_value_is_told_by_the_report(capfd: pytest.CaptureFixture[str]):
    settings = CollectiveSettings(collectives=("reduce_scatter",), min_bytes=1 << 16, max_bytes=1 << 16, iters=2)
    report = command.run_local(settings, parse_net("none"))
    assert report.wrong == 4, "one value, on each of 2 ranks, out of place and in place"
    assert "# Out of bounds values : 4 FAILED" in capfd.readouterr().out


def test_ctrl_c_leaves_no_process():
    mark = f"overlap-test-{os.getpid()}-{time.monotonic_ns()}"
    forever = ["-b", "16M", "-n", "1000000", "--transport", "gloo,overlap"]
    process = subprocess.Popen(
        [sys.executable, "-m", "overlap", "bench", "collective", *forever],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(MARK=mark), start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "(us)" in line:  # the header is there: all ranks have met
                break
        assert len(_marked(mark)) >= 3  # a rank may just ask uname who it is
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert errors == ""
        assert _marked(mark) == []
    finally:
        for pid in _marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def _marked(mark: str) -> list[int]:
    """Processes that have a variable of this value."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


class OneOff:
    """Adds one to an element."""

    def __init__(self, inner):
        self.device, self._inner = inner.device, inner

    def reduce_scatter(self, bucket, out):
        self._inner.reduce_scatter(bucket, out)
        out[3] += 1


def _open_faulty(settings: CollectiveSettings):
    return {name: OneOff(inner) for name, inner in open_transports(settings).items()}


def _rank(device: torch.device) -> None:
    bench_rank(CollectiveSettings.from_json(sys.argv[1]), device, _open_faulty)


if __name__ == "__main__":
    run(_rank)
