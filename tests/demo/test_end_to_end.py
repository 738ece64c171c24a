"""The demo as a user starts it: real processes, real text, every file it leaves."""

import json
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest

RANKS, STEPS = 2, 5
TINY = ["-m", "overlap", "train", "--size", "tiny", "--steps", str(STEPS)]


def train(out, *launcher, options=()):
    command = [sys.executable, *launcher, *TINY, "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    return SimpleNamespace(out=out, summary=summary, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run"), options=["--ranks", str(RANKS)])


def test_it_trains(run):
    loss = run.summary["loss"]
    assert loss["first"] == pytest.approx(5.55, abs=0.15)  # ln 256: it knows nothing yet
    assert loss["last"] < loss["first"] - 0.5
    assert loss["heldout_before"] == pytest.approx(8.0, abs=0.2)
    assert loss["heldout_after"] < loss["heldout_before"] - 0.5
    assert run.summary["step_ms"]["median"] > 0
    assert {name: run.summary[name] for name in ("stage", "ranks", "steps")} == {
        "stage": 3,
        "ranks": RANKS,
        "steps": STEPS,
    }


def test_wire_and_memory_are_explained_to_the_byte(run):
    wire, memory = run.summary["wire_bytes"], run.summary["model_state_bytes"]
    assert wire["counted"] == wire["formula"] + sum(wire["other"].values())
    assert memory["allocated"] == memory["predicted"]
    assert memory["allocated"] == pytest.approx(memory["formula"], rel=0.01)


def test_overlap_is_reported_per_unit(run):
    overlap = run.summary["overlap"]
    assert 0 <= overlap["ratio"] <= 1
    assert overlap["comm_ms"] > 0
    units = {row["unit"]: row for row in overlap["per_unit"]}
    assert {f"blocks.{n}" for n in range(4)} <= units.keys()
    assert all(units["blocks.1"][name] >= 0 for name in ("wire_ms", "hidden_ms", "exposed_ms"))


def test_the_plan_was_followed_and_gathers_ahead(run):
    assert run.summary["plan"]["deviations"] == 0
    plan = json.loads((run.out / "plan.json").read_text())
    ops = [(op["kind"], op["index"]) for op in plan["ops"]]
    blocks = [n for n, unit in enumerate(plan["units"]) if unit["name"].startswith("blocks.")]
    for block, following in pairwise(blocks):
        assert ops.index(("gather", following)) < ops.index(("forward", block))


def test_every_step_has_a_row_under_torchtitans_names(run):
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows[0]["loss_metrics/global_avg_loss"] == run.summary["loss"]["first"]
    assert all(row["throughput(tps)"] > 0 and row["grad_norm"] > 0 and row["lr"] > 0 for row in rows)
    assert all(row["loss_metrics/global_max_loss"] >= row["loss_metrics/global_avg_loss"] for row in rows)


def test_the_trace_shows_every_lane_of_every_rank(run):
    events = json.loads((run.out / "timeline.json").read_text())["traceEvents"]
    tracks = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert {(rank, lane) for rank in range(RANKS) for lane in ("compute", "gather", "reduce")} <= tracks


def test_the_terminal_tells_the_same(run):
    for part in ("step 5/5  loss", "overlap ratio", "blocks.3", "memory per rank", "wire per rank and step"):
        assert part in run.stdout
    assert run.summary["plan"]["hash"] in run.stdout
    assert run.stderr == ""


def test_torchrun_and_another_stage_and_optimizer_give_the_same_losses(run, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    other = train(tmp_path, *torchrun, options=["--stage", "1", "--optimizer", "torch", "--lanes", "inline"])
    for name, value in run.summary["loss"].items():
        assert other.summary["loss"][name] == pytest.approx(value, abs=1e-5)
