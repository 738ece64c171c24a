"""``overlap report`` as a user runs it."""

import json
import sys

import pytest

from overlap.cli import main

from .references import FIXTURES
from .traces import event, kernel, write

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
KEYS = {
    *("rank", "span_us", "compute_us", "comm_us", "exposed_comm_us", "exposed_copy_us", "idle_us"),
    *("overlap_ratio", "no_comm_reason", "per_unit"),
}


@pytest.fixture
def overlap(monkeypatch, capsys):
    """Run the command line in this process; returns exit status, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["overlap", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            main()
        return exited.value.code or 0, *capsys.readouterr()

    return run


def test_json_has_the_documented_schema_and_adds_up(overlap, tmp_path):
    code, out, _ = overlap("report", FIXTURES / "dlrm_v100x8", "--json", tmp_path / "out.json")
    assert code == 0
    assert "where the time went, per rank" in out
    document = json.loads((tmp_path / "out.json").read_text())
    assert set(document) == {"source", "options", "ranks"}
    assert document["source"] == str(FIXTURES / "dlrm_v100x8")
    assert document["options"]["window"] == "full"
    assert [rank["rank"] for rank in document["ranks"]] == list(range(8))
    for rank in document["ranks"]:
        assert set(rank) >= KEYS
        parts = ("compute_us", "exposed_comm_us", "exposed_copy_us", "idle_us")
        assert sum(rank[part] for part in parts) == pytest.approx(rank["span_us"], abs=1e-6)
        exposed = sum(row["exposed_comm_us"] for row in rank["per_unit"])
        assert exposed == pytest.approx(rank["exposed_comm_us"])  # one communicator: nothing counts twice


def test_no_communication_is_null_with_a_reason(overlap, tmp_path):
    path = write(tmp_path / "t.json", kernel("gemm", 0, 5))
    code, out, _ = overlap("report", path, "--json", tmp_path / "out.json")
    assert code == 0
    (rank,) = json.loads((tmp_path / "out.json").read_text())["ranks"]
    assert rank["overlap_ratio"] is None
    assert rank["no_comm_reason"] == "no collective ran in this window"
    assert "no ratio: no collective ran in this window" in out


def test_gates_decide_the_exit_status(overlap):
    path = FIXTURES / "tracelens_mi300x_rank0of8"
    assert overlap("report", path, "--gate", "overlap_ratio>0.2", "--gate", "exposed_share<=0.7")[0] == 0
    code, out, _ = overlap("report", path, "--gate", "exposed_ratio<0.1", "--gate", "idle_share<0.5")
    assert code == 1
    assert "gate: rank 0: exposed_ratio is 0.7778, not < 0.1" in out
    assert "idle_share" not in out.partition("gate:")[2]


def test_details_hold_what_explains_the_figures(overlap, tmp_path):
    code, *_ = overlap("report", FIXTURES / "dlrm_v100x8", "--details", tmp_path / "all.json")
    assert code == 0
    document = json.loads((tmp_path / "all.json").read_text())
    assert len(document["collectives"]) == 8
    for rank in document["ranks"]:
        assert sum(piece["exposed_us"] for piece in rank["exposed"]) == pytest.approx(rank["exposed_comm_us"])
        waits = sum(row["wait_us"] for row in rank["communicators"])
        assert sum(row["comm_us"] for row in rank["communicators"]) >= waits > 0
    assert max(piece["exposed_us"] for piece in document["ranks"][1]["exposed"]) > 1000


def test_markdown_has_the_tables(overlap, tmp_path):
    code, *_ = overlap("report", FIXTURES / "dlrm_v100x8", "--markdown", tmp_path / "out.md")
    assert code == 0
    text = (tmp_path / "out.md").read_text()
    assert "### where the time went, per rank, ms" in text
    assert "| 1 | 18.75 | 1.25 | 11.34 | 11.06 | 0.02 | 6.43 | 0.025 |" in text
    for table in text.split("###")[1:]:
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1


def test_two_runs_are_compared(overlap, tmp_path):
    before = write(tmp_path / "a.json", kernel("gemm", 0, 5), kernel(NCCL, 5, 10, stream=20))
    after = write(tmp_path / "b.json", kernel("gemm", 0, 5), kernel(NCCL, 2, 8, stream=20))
    code, out, _ = overlap("report", before, after, "--json", tmp_path / "out.json", "--gate", "overlap_ratio>0.3")
    assert code == 0  # of the second
    change = json.loads((tmp_path / "out.json").read_text())["change"]
    assert change["span_us"] == -5
    assert change["exposed_communication_us"] == -5
    assert change["overlap_ratio"] == pytest.approx(3 / 8)
    assert "exposed communication" in out
    code, _, err = overlap("report", before, after, after)
    assert code == 2
    assert err.startswith("error: paths must be one run or two, but got 3 of them")


def test_flops_give_mfu(overlap, tmp_path):
    steps = [event("user_annotation", f"ProfilerStep#{step}", step * 10, 10) for step in (0, 1)]
    path = write(tmp_path / "t.json", *steps, kernel("gemm", 0, 20))
    code, out, _ = overlap(
        *("report", path, "--flops", "1e9", "--peak-flops", "4e14", "--details", tmp_path / "out.json")
    )
    assert code == 0
    (rank,) = json.loads((tmp_path / "out.json").read_text())["ranks"]
    assert rank["mfu"] == pytest.approx(2e9 / (20e-6 * 4e14))
    assert "MFU" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--window", "step"], "window must be one of full, steps, but got step; did you mean steps?"),
        (["--rounding", "hti"], "rounding must be one of none, hta, but got hti; did you mean hta?"),
        (["--memset", "copy"], "memset must be one of compute, other, but got copy; choose one"),
        (["--peer-copies", "com"], "peer_copies must be one of copy, comm, but got com; did you mean comm?"),
        (["--comm-kernels", "none.toml"], "comm_kernels must be a file, but got none.toml"),
        (["--flops", "1e9"], "flops and peak_flops must come together, but got one of them"),
        (["--flops", "-1", "--peak-flops", "1"], "flops must be a positive number, but got -1.0"),
        (["--gate", "exposed"], "gate must be a figure, a sign and a number, but got exposed"),
        (["--gate", "exposed_ratio<ten"], "gate must be a figure, a sign and a number"),
        (["--gate", "exposed_ratios<1"], "figure of gate must be one of overlap_ratio, exposed_ratio, exposed_share"),
        (
            ["--json", "no/such/folder/x.json"],
            "json must be a file to write to, but got no/such/folder/x.json (No",
        ),
        (
            ["--html", "no/such/folder/x.html"],
            "html must be a file to write to, but got no/such/folder/x.html (No",
        ),
        (["--details", "."], "details must be a file to write to, but got . (Is a directory); choose another file"),
    ],
)
def test_bad_input_gives_one_line(overlap, arguments, complaint):
    code, _, err = overlap("report", FIXTURES / "dlrm_v100x8", *arguments)
    assert code == 2
    assert err.startswith(f"error: {complaint}")
    assert err.count("\n") == 1


def test_comm_kernels_are_counted_as_the_file_says(overlap, tmp_path):
    path = write(tmp_path / "t.json", kernel("my_exchange", 0, 5))
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\npattern = '^my_exchange'\ncategory = 'communication'\n")
    code, *_ = overlap("report", path, "--comm-kernels", rules, "--json", tmp_path / "out.json")
    assert code == 0
    assert json.loads((tmp_path / "out.json").read_text())["ranks"][0]["comm_us"] == 5
