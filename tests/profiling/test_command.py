"""``overlap report`` as a user runs it."""

import json
import sys

import pytest

from overlap.cli import main

from .references import FIXTURES
from .traces import kernel, write

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


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--window", "step"], "window must be one of full, steps, but got step; did you mean steps?"),
        (["--rounding", "hti"], "rounding must be one of none, hta, but got hti; did you mean hta?"),
        (["--memset", "copy"], "memset must be one of compute, other, but got copy; choose one"),
        (["--peer-copies", "com"], "peer_copies must be one of copy, comm, but got com; did you mean comm?"),
        (["--comm-kernels", "none.toml"], "comm_kernels must be a file, but got none.toml"),
        (["--json", "no/such/folder/x.json"], "no/such/folder/x.json must be a file to write to"),
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
