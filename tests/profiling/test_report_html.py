"""The page in a headless browser: opens from a file, draws, tells what is under the pointer, asks for nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from overlap.profiling.analysis import analyse
from overlap.profiling.rank_report import report
from overlap.profiling.report_html import page, page_data

from .references import FIXTURES
from .traces import kernel, write

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")

HERE = Path(__file__).parent


def script(name: str) -> str:
    return f"<script>{(HERE / name).read_text(encoding='utf-8')}</script>"


def opened(path: Path) -> dict:
    """What the probe saw in the page at ``path``, opened by a browser as a file."""
    text = path.read_text(encoding="utf-8")
    probed = path.with_name("probed.html")
    text = text.replace('<script id="data"', script("page_watch.js") + '<script id="data"', 1)
    text = text.replace("</body>", script("page_probe.js") + "</body>")
    probed.write_text(text, encoding="utf-8")
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1240,1600"]
    command += [f"--user-data-dir={path.parent / 'browser'}", "--virtual-time-budget=5000", "--dump-dom"]
    finished = subprocess.run([*command, probed.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="seen">(.*?)</pre>', finished.stdout, re.DOTALL)
    assert found, finished.stderr[-2000:]
    assert "CONSOLE" not in finished.stderr
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.fixture(scope="module")
def eight_ranks(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(analyse(report(str(FIXTURES / "dlrm_v100x8")))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def seen(eight_ranks):
    return opened(eight_ranks)


@needs_browser
def test_it_opens_from_a_file_without_errors_or_network(seen):
    assert seen["ready"] == "true"
    assert seen["errors"] == []
    assert seen["blocked"] == []
    assert [name for name in seen["resources"] if not name.startswith("data:")] == []


@needs_browser
def test_the_timeline_is_drawn(seen):
    names = [name for name, _ in seen["lanes"]]
    assert names[0] == "exposed"
    assert names[1] == "stream 7"
    assert names[-1] == "stream 84"
    assert all(count > 0 for _, count in seen["lanes"])
    assert seen["colours"]["76,120,168"] > 500  # communication
    assert seen["colours"]["84,162,75"] > 100  # compute
    assert seen["colours"]["228,87,86"] > 500  # waiting for a straggler


@needs_browser
def test_hovering_tells_the_op_and_the_reason(seen):
    assert seen["tip"].startswith(seen["bar"]["name"])
    assert seen["bar"]["name"].startswith("ncclKernel_SendRecv")
    assert "communication" in seen["tip"]
    assert "exposed: straggler rank" in seen["reason"]
    assert "gain if hidden" in seen["reason"]
    assert seen["hiddenAgain"] is True


@needs_browser
def test_the_wheel_zooms_and_a_double_click_resets(seen):
    assert 0 < seen["zoomed"] < 0.7
    assert seen["reset"] == pytest.approx(1)


@needs_browser
def test_bars_waterfall_curves_and_tables_are_there(seen):
    assert seen["units"] >= 10
    assert seen["waterfall"] >= 20
    assert seen["sizes"] == 8
    assert seen["tables"] == 6


@needs_browser
def test_a_recording_without_communication_is_a_page_too(tmp_path):
    trace = write(tmp_path / "t.json", kernel("gemm </script><b>", 0, 5), kernel("ncclKernel_x", 5, 0))
    path = tmp_path / "report.html"
    path.write_text(page(analyse(report(str(trace)))), encoding="utf-8")
    text = path.read_text()
    assert text.count("</script>") == 3
    assert "no ratio" in text


def test_one_file_holds_everything(eight_ranks):
    text = eight_ranks.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "/*" not in text.split("<body>")[1].partition("<script>")[0]
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv", "", text)


def test_what_is_drawn_is_what_was_measured():
    analysis = analyse(report(str(FIXTURES / "dlrm_v100x8")))
    data = page_data(analysis)
    json.dumps(data)
    for drawn, rank in zip(data["ranks"], analysis.ranks, strict=True):
        assert sum(drawn["parts"].values()) == pytest.approx(drawn["span"])
        assert sum(len(lane["bars"]) for lane in drawn["lanes"]) == len(rank.report.activities)
        assert sum(took for _, took, *_ in drawn["exposed"]) == pytest.approx(drawn["parts"]["exposed"])
        ends = [at + took for lane in drawn["lanes"] for at, took, *_ in lane["bars"]]
        assert max(ends) == pytest.approx(drawn["span"])
