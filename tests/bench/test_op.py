"""The command as a user runs it: table, file and exit status."""

import json
import sys

import pytest
import torch

from overlap import ops
from overlap.bench import extension
from overlap.bench import op as bench_op
from overlap.bench.faces import load_face
from overlap.bench.rows import OPS
from overlap.cli import main

KEYS = {
    "op", "variant", "face", "dtype", "elements", "bytes", "ms", "gbps", "bound", "copy_gbps", "triad_gbps",
    "read_gbps", "update_gbps", "fraction_of_copy", "fraction_of_triad", "fraction_of_read", "fraction_of_update",
    "peer", "peer_missing", "peer_ms", "peer_gbps", "speedup_vs_peer", "rounds", "wrong",
}  # fmt: skip
QUICK = ("--threads", "1", "--repeats", "1", "--sizes", "3000")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in this process; returns exit status, file, stdout and stderr."""
    file = tmp_path / "result.json"

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["overlap", "bench", "op", *arguments, "--json", str(file)])
        with pytest.raises(SystemExit) as exited:
            main()
        shown = capsys.readouterr()
        data = json.loads(file.read_text()) if file.exists() else None
        return exited.value.code, data, shown.out, shown.err

    return command


@pytest.fixture
def quick_extension(monkeypatch):
    monkeypatch.setattr(extension, "CALLS", 10)
    monkeypatch.setattr(extension, "BATCHES", 2)


def test_every_op_has_its_rows_and_no_wrong_value(run):
    before = torch.get_num_threads()
    code, data, out, _ = run(*QUICK, "--dtypes", "bf16")
    assert code == 0
    assert torch.get_num_threads() == before
    assert {row["op"] for row in data["rows"]} == set(OPS)
    assert {row["face"] for row in data["rows"]} == {"native"}
    assert all(row.keys() == KEYS and row["wrong"] == 0 and row["rounds"] == 1 for row in data["rows"])
    assert out.endswith("wrong values: 0\n")
    assert all(name in out for name in OPS)


def test_the_file_says_what_the_figures_mean(run):
    _, data, _, _ = run(*QUICK, "--op", "grad_norm", "--dtypes", "fp32", "--faces", "native,reference")
    assert data.keys() == {
        "machine", "copy_gbps", "triad_gbps", "read_gbps", "update_gbps", "rows", "left_out",
    }  # fmt: skip
    assert data["machine"]["threads"] == 1
    assert data["machine"]["torch"] == torch.__version__
    assert data["machine"]["yardsticks"].keys() == {"copy", "triad", "read", "update"}
    assert {row["face"] for row in data["rows"]} == {"native", "reference"}
    for row in data["rows"]:
        assert row["gbps"] == pytest.approx(row["bytes"] / row["ms"] / 1e6)
        assert row["fraction_of_read"] == pytest.approx(row["gbps"] / row["read_gbps"])
        assert row["speedup_vs_peer"] == pytest.approx(row["peer_ms"] / row["ms"])


def test_a_missing_peer_keeps_its_row(run, monkeypatch):
    monkeypatch.setattr("overlap.bench.rows.adamw.cpu_adam", lambda: (None, "not installed"))
    _, data, out, _ = run(*QUICK, "--op", "adamw", "--dtypes", "fp32")
    rows = [row for row in data["rows"] if row["peer"] == "DeepSpeed CPUAdam"]
    assert len(rows) == 4  # a case each: fp32 weights, without a shard, bf16 weights, bf16 averages
    assert {(row["peer_missing"], row["peer_ms"], row["speedup_vs_peer"]) for row in rows} == {
        ("not installed", None, None)
    }
    assert "DeepSpeed CPUAdam: not installed\n" in out


def test_a_torch_without_an_operator_keeps_its_row(run, monkeypatch):
    monkeypatch.delattr(torch, "_chunk_cat")
    _, data, _, _ = run(*QUICK, "--op", "pack", "--dtypes", "fp32")
    assert {row["peer_missing"] for row in data["rows"] if row["peer"] == "torch._chunk_cat"} == {
        f"torch {torch.__version__} has no torch._chunk_cat"
    }


def test_faces_peers_and_yardsticks_share_the_rounds(run, monkeypatch):
    seen = []
    real = bench_op.interleave

    def spy(runs, clock, **options):
        seen.append(len(runs))
        return real(runs, clock, **options)

    monkeypatch.setattr(bench_op, "interleave", spy)
    run(*QUICK, "--op", "grad_norm", "--dtypes", "fp32")
    assert seen == [1 + 3 + 4]


def test_what_there_was_no_time_for_is_named(run):
    code, data, out, _ = run(*QUICK, "--op", "lion", "--dtypes", "fp32", "--time-limit", "1e-9")
    assert code == 0
    assert data["rows"] == []
    assert data["left_out"] == ["lion fp32 3000"]
    assert "not measured, out of time: lion fp32 3000" in out


def test_a_call_has_its_price(run, quick_extension):
    _, data, out, _ = run(*QUICK, "--op", "quantize,grad_norm", "--dtypes", "fp32", "--overhead")
    quantize, grad_norm = data["overhead"]
    assert quantize.keys() == {"op", "face", "elements", "face_ns", "public_ns", "extension_ns"}
    assert (quantize["op"], quantize["face"], quantize["extension_ns"]) == ("quantize", "native", None)
    assert (grad_norm["op"], grad_norm["face"]) == ("grad_norm", "native")
    figures = [quantize["face_ns"], quantize["public_ns"]]
    figures += [grad_norm[key] for key in ("face_ns", "public_ns", "extension_ns")]
    assert min(figures) > 0
    assert "per-call overhead" in out


def test_faces_that_run_are_named_and_priced_whatever_the_package_would_choose(run, monkeypatch, quick_extension):
    monkeypatch.setattr(ops, "face_name", lambda device: "reference")  # as with OVERLAP_NATIVE=off
    _, data, out, _ = run(*QUICK, "--op", "lion", "--dtypes", "fp32", "--faces", "native,reference", "--overhead")
    assert "faces: native, reference\n" in out
    assert data["machine"]["faces"] == "native, reference"
    native, reference = data["overhead"]
    assert (native["face"], native["public_ns"]) == ("native", None)
    assert reference["face"] == "reference"
    assert reference["public_ns"] > 0
    assert native["face_ns"] > 0


def test_a_face_is_priced_for_what_it_brings(run, monkeypatch, quick_extension):
    """What it hands on is another face's."""
    monkeypatch.setattr(load_face("native"), "lion", load_face("reference").lion)
    arguments = ("--op", "pack,lion", "--dtypes", "fp32", "--faces", "native,reference", "--overhead")
    _, data, _, _ = run(*QUICK, *arguments)
    assert [(cost["op"], cost["face"]) for cost in data["overhead"]] == [
        ("pack", "native"), ("pack", "reference"), ("lion", "reference"),
    ]  # fmt: skip


def test_the_extension_takes_the_arguments_it_is_priced_with():
    """A refused call returns early: its price would be another one."""
    calls = extension.empty_calls()
    assert calls.keys() == {"adamw", "reduce_sum", "grad_norm"}
    assert [call() for call in calls.values()] == [True] * 3


def test_the_best_batch_is_the_price(monkeypatch):
    batches = [3.0, 1.0, 2.0]
    monkeypatch.setattr(extension, "repeat", lambda call, **options: batches)
    assert extension.extension_cost("adamw") == 1.0 / extension.CALLS
    assert extension.extension_cost("lion") is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--op", "adam"], "error: op must be one of "),
        (["--sizes", "many"], "error: sizes must be positive numbers"),
        (["--faces", "triton"], "error: faces must be one of native, reference, but got triton"),
    ],
)
def test_bad_input_gives_one_line_and_measures_nothing(run, monkeypatch, arguments, complaint):
    monkeypatch.setattr("overlap.bench.session.run", lambda *_: pytest.fail("it was measured"))
    code, data, _, err = run(*arguments)
    assert code == 2
    assert data is None
    assert err.startswith(complaint)
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_refused_before_the_first_round(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("overlap.bench.session.run", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr(sys, "argv", ["overlap", "bench", "op", "--json", str(tmp_path)])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: json must be a file to write to, but got {tmp_path} (Is a dir")


def test_an_op_that_no_face_brings_is_refused(run, monkeypatch):
    """As the CUDA C++ face hands its updates on from Triton's: they would be measured under a wrong name."""
    monkeypatch.setattr(load_face("native"), "lion", load_face("reference").lion)
    code, _, _, err = run(*QUICK, "--op", "pack", "--op", "lion")
    assert code == 2
    assert err == "error: faces must bring lion of their own, but got native; add triton, or leave out the op\n"
