import json
import sys

import pytest

from overlap.bench.netlab import lab as labs
from overlap.bench.netlab.namespaces import why_no_namespaces
from overlap.bench.step import plot, session
from overlap.bench.step.session import bench_steps
from overlap.bench.step.settings import StepSettings
from overlap.cli import main
from overlap.errors import ConfigError

obstacle = why_no_namespaces()
TINY = {"size": "tiny", "batch": 1, "rounds": 5, "steps": 1}


@pytest.mark.root
@pytest.mark.skipif(obstacle is not None, reason=f"no namespaces: {obstacle}")
def test_over_links_every_figure_is_there_and_the_kernel_counts_what_the_engine_sends(tmp_path, capsys):
    settings = StepSettings(net="200mbit", contenders=("alone", "ours-3", "fsdp2"), **TINY)
    report = bench_steps(settings, tmp_path / "record.json", None)
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["net"], record["ranks"]) == ("200mbit", 2)
    _, ours, peer = record["rows"]
    assert report.wrong == []
    assert (ours["wire_counted_by"], peer["wire_counted_by"]) == ("engine", "/proc/net/dev")
    assert ours["wire_bytes"] < ours["proc_net_bytes"] < 1.3 * ours["wire_bytes"]
    assert peer["wire_bytes"] > ours["proc_net_bytes"]  # gloo's reduce-scatter is an all-reduce
    assert peer["ours_speedup"] == pytest.approx(peer["step_ms"] / ours["step_ms"])
    assert all(len(row["samples_ms"]) == 5 for row in record["rows"])
    assert all(row["peak_bytes"] > row["start_bytes"] > 2**26 for row in record["rows"])
    assert "ours-3" in capsys.readouterr().out


def test_without_root_only_ours_is_slowed_and_peers_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr(labs, "why_no_namespaces", lambda: "not root")
    settings = StepSettings(
        net="100mbit", contenders=("alone", "ours-3", "ddp"), memory=False, options=("prefetch=2",), **TINY
    )
    _, ours, ddp = bench_steps(settings, None, None).rows
    assert "links cannot be limited (not root)" in capsys.readouterr().err
    assert ours.options == "prefetch=2"
    assert ddp.skipped == "its communication cannot be slowed here"
    # Gathers and reductions may run at once, each at the rate: no step is faster than half its bytes on the link.
    assert ours.step_ms > 1e3 * ours.wire_bytes / settings.link.payload_bytes_per_s / 2


def refuse(*_):
    pytest.fail("ranks were started")


def test_a_plot_without_matplotlib_is_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    monkeypatch.setattr(session, "run_ranks", refuse)
    with pytest.raises(ConfigError, match="plot must have matplotlib"):
        bench_steps(StepSettings(), None, tmp_path / "plot.png")


def test_a_record_that_cannot_be_written_is_refused_before_anything_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(session, "run_ranks", refuse)
    monkeypatch.setattr(sys, "argv", ["overlap", "bench", "step", "--json", str(tmp_path / "no" / "file")])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    assert "json must be a file to write to" in capsys.readouterr().err
