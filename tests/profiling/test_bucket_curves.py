"""Files of ``overlap bench bucket`` on the page: read, refused, drawn, hovered."""

import json
import sys

import pytest

from overlap.bench.bucket.advice import Advice
from overlap.bench.bucket.report import advice_of
from overlap.bench.bucket.results import Sweep, SweepRow
from overlap.bench.bucket.tables import Table
from overlap.cli import main
from overlap.errors import ConfigError
from overlap.profiling.analysis import analyse
from overlap.profiling.bucket_curves import bucket_curves
from overlap.profiling.rank_report import report
from overlap.profiling.report_html import page

from .references import FIXTURES
from .test_report_html import needs_browser, opened

SIZES = [64 << (10 + power) for power in range(8)]


def row(nbytes, in_flight):
    call_us = 100 + nbytes / 1000
    return SweepRow(
        bucket_bytes=nbytes, in_flight=in_flight, buckets=(8 << 20) // nbytes, call_us=call_us,
        busbw_alone_gbps=0.25, busbw_beside_gbps=0.125 * in_flight, alone_ms=20.0, compute_ms=15.0,
        step_ms=30.0 + in_flight + nbytes / 1e6, exposed_ms=4.0 * in_flight, slowdown=1.5,
    )  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    """What a sweep writes, by the code that writes it."""
    settings = {"collective": "reduce_scatter", "datatype": "float", "transport": "gloo", "ranks": 2, "share": 0.8}
    found = Sweep({"cpu": "Some CPU"}, settings, tuple(row(nbytes, count) for nbytes in SIZES for count in (1, 2)))
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({**found.to_dict(), "advice": advice_of(found).to_dict()}))
    return path


@pytest.fixture
def fit(tmp_path):
    """What a fit of tables writes: two of them."""
    points = tuple((nbytes, 20e-6 + nbytes / 1e9) for nbytes in SIZES)
    tables = [Table(label=label, op="all_reduce", world=8, points=points) for label in ("a.log", "b.log")]
    path = tmp_path / "fit.json"
    path.write_text(json.dumps([Advice.of(table, 0.5).to_dict() for table in tables]))
    return path


def test_a_sweep_has_the_calls_with_their_fit_and_the_rows_beside_compute(sweep):
    (curve,) = bucket_curves(sweep)
    assert (curve["label"], curve["machine"]) == ("reduce_scatter float over gloo, 2 ranks", "Some CPU")
    assert [call["bytes"] for call in curve["calls"]] == SIZES
    for call in curve["calls"]:  # the times are exactly latency + bytes / bandwidth, so fit and figure agree
        assert call["fit"] == pytest.approx(call["busbw"], rel=1e-6)
    assert (len(curve["rows"]), curve["fastest"]["bucket_bytes"], curve["fastest"]["in_flight"]) == (16, SIZES[0], 1)
    assert curve["bucket"] == pytest.approx(400_000, rel=0.01)


def test_a_fit_of_tables_has_a_curve_for_each(fit):
    curves = bucket_curves(fit)
    assert [curve["label"] for curve in curves] == ["a.log, 8 ranks", "b.log, 8 ranks"]
    assert all(not curve["rows"] and curve["fastest"] is None for curve in curves)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("# log", "something else"),
        ("[]", "no sizes"),
        ("[1]", "something else"),
        ('{"machine": {}, "settings": {}, "rows": []}', "no 'advice'"),
    ],
)
def test_other_files_are_refused(tmp_path, text, why):
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        bucket_curves(path)
    assert str(caught.value) == (
        f"buckets must be figures of a sweep or a fit, but got {path} ({why}); "
        "name a file that `overlap bench bucket --json FILE` has written"
    )


def overlap(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["overlap", "report", str(FIXTURES / "gloo_fsdp2"), *map(str, arguments)])
    with pytest.raises(SystemExit) as exited:
        main()
    return exited.value.code or 0


def test_curves_need_a_page(monkeypatch, capsys, sweep):
    assert overlap(monkeypatch, "--buckets", sweep) == 2
    told = capsys.readouterr().err
    assert told == "error: buckets must come with a page that draws them, but got no html; add --html FILE\n"


@needs_browser
def test_the_page_draws_them_and_tells_what_is_under_the_pointer(monkeypatch, tmp_path, sweep, fit):
    file = tmp_path / "report.html"
    assert overlap(monkeypatch, "--html", file, "--buckets", sweep, "--buckets", fit) == 0
    seen = opened(file)
    assert (seen["errors"], seen["blocked"], seen["bucketsHidden"]) == ([], [], False)
    assert [name for name in seen["resources"] if not name.startswith("data:")] == []
    assert seen["panels"] == 3 + 1 + 1
    tips = seen["bucketTips"]
    assert len(tips) == (8 + 16) + 16 + 16 + 8 + 8
    assert tips[0] == "64 KiB alone\n165.5 µs a call, busbw 0.198 GB/s\nfit 0.198 GB/s"
    assert (
        "8 MiB, 2 in flight, 1 a step\nstep 40.39 ms; alone 20.00, compute 15.00\nexposed 8.00 ms, compute 1.50x"
        in tips[23]
    )
    assert "recommended: 391 KiB, the smallest bucket that reaches 80 % of 0.5 GB/s" in seen["bucketsText"]
    assert "shortest step: 64 KiB x 1, 31.1 ms" in seen["bucketsText"]


@needs_browser
def test_a_page_without_them_does_not_speak_of_them(tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page(analyse(report(str(FIXTURES / "gloo_fsdp2")))), encoding="utf-8")
    seen = opened(file)
    assert (seen["errors"], seen["bucketsHidden"], seen["panels"]) == ([], True, 0)
