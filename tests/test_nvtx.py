"""Ranges say phase, unit, category and bytes; off they say nothing; without the package they still import."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from os import environ
from pathlib import Path
from typing import Any

import pytest

from overlap import nvtx
from overlap.errors import ConfigError


class FakeDomain:
    """Stands in for ``nvtx.Domain``; remembers every call."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, str, int]] = []
        self.calls: list[tuple[int, str]] = []

    def get_event_attributes(self, message: str, color: int, category: str, payload: int) -> str:
        self.registered.append((message, category, payload))
        return message

    def push_range(self, attributes: str) -> None:
        self.calls.append((threading.get_ident(), f"push {attributes}"))

    def pop_range(self) -> None:
        self.calls.append((threading.get_ident(), "pop"))

    def said(self) -> list[str]:
        return [call for _, call in self.calls]


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDomain]:
    fake = FakeDomain()
    monkeypatch.setattr(nvtx, "_attached_domain", lambda: fake)
    yield fake
    nvtx.enable(False)


def test_a_scope_pushes_its_name_and_pops(domain: FakeDomain) -> None:
    assert nvtx.enable()
    with nvtx.Scope("gather", "blocks.3", bytes=4096), nvtx.Scope("compute", "blocks.2", phase="forward"):
        pass
    assert domain.said() == ["push gather blocks.3", "push forward blocks.2", "pop", "pop"]
    assert domain.registered == [("gather blocks.3", "gather", 4096), ("forward blocks.2", "compute", 0)]


def test_a_listener_hears_what_nvtx_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvtx, "_attached_domain", lambda: pytest.fail("NVTX was asked"))
    for name in ("_demanded", "_listener", "_domain"):
        monkeypatch.setattr(nvtx, name, getattr(nvtx, name))  # as it was, afterwards
    assert not nvtx.demanded()
    listener = FakeDomain()
    nvtx.demand(listener)
    assert nvtx.demanded()
    assert nvtx.enable()
    with nvtx.Scope("gather", "blocks.3"):
        pass
    assert listener.said() == ["push gather blocks.3", "pop"]


def test_attributes_are_built_once_and_shared_by_equal_scopes(domain: FakeDomain) -> None:
    nvtx.enable()
    scopes = [nvtx.Scope("reduce", "blocks.0", bytes=64) for _ in range(3)]
    for scope in scopes * 4:
        with scope:
            pass
    assert len(domain.registered) == 1
    assert len(domain.calls) == 2 * 12


def test_off_says_nothing_and_on_again_uses_the_new_domain(domain: FakeDomain) -> None:
    scope = nvtx.Scope("update", "blocks.1", bytes=8)
    with scope:
        pass
    assert not nvtx.enabled()
    assert domain.calls == []
    assert nvtx.enable()
    with scope:
        pass
    assert nvtx.enable(False) is False
    with scope:
        pass
    assert domain.said() == ["push update blocks.1", "pop"]


def test_a_range_is_popped_when_the_op_fails(domain: FakeDomain) -> None:
    nvtx.enable()
    with pytest.raises(RuntimeError, match="op failed"), nvtx.Scope("host", "blocks.1"):
        raise RuntimeError("op failed")
    assert domain.said() == ["push host blocks.1", "pop"]


def test_lane_threads_share_a_scope_and_each_balances_its_own(domain: FakeDomain) -> None:
    nvtx.enable()
    scope = nvtx.Scope("disk", "blocks.0")
    together = threading.Barrier(3)

    def lane() -> None:
        together.wait()
        for _ in range(100):
            with scope:
                pass

    threads = [threading.Thread(target=lane) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ident in {ident for ident, _ in domain.calls}:
        assert [call for who, call in domain.calls if who == ident] == ["push disk blocks.0", "pop"] * 100


def test_the_whole_model_has_a_phase_only() -> None:
    assert nvtx.Scope("compute", "", phase="norm").name == "norm"


def test_an_unknown_category_is_refused() -> None:
    with pytest.raises(ConfigError, match="category must be one of gather, reduce, replicate, compute"):
        nvtx.Scope("gathering", "blocks.0")


def test_without_the_package_asking_for_ranges_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert nvtx.enable() is False
    with nvtx.Scope("gather", "blocks.0"):
        pass


def test_without_a_tool_ranges_stay_off() -> None:
    pytest.importorskip("nvtx")
    if "NVTX_INJECTION64_PATH" in environ:
        pytest.skip("a tool is attached to this process")
    assert nvtx.enable() is False


PROGRAM = """
from overlap import nvtx
assert nvtx.enable()
gather = nvtx.Scope("gather", "blocks.3", bytes=4096)
for _ in range(2):
    with gather, nvtx.Scope("compute", "blocks.2", phase="forward"):
        pass
"""


@pytest.fixture(scope="module", params=[[], ["-DDENIES_DOMAINS"]], ids=["willing", "denying"])
def tool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("nvtx")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C++ compiler to build the tool, and Linux to inject it")
    library = tmp_path_factory.mktemp("nvtx") / "libtool.so"
    source = Path(__file__).with_name("nvtx_tool.cpp")
    subprocess.run([compiler, *request.param, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def test_a_real_tool_receives_the_ranges(tool: Path) -> None:
    settings: dict[str, Any] = {
        "cwd": Path(__file__).parents[1],
        "check": True,
        "text": True,
        "capture_output": True,
    }
    heard = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**environ, "NVTX_INJECTION64_PATH": str(tool)}, **settings
    )
    lines = heard.stdout.splitlines()
    assert {"category overlap 1 gather", "category overlap 2 compute"} <= set(lines)
    assert [line for line in lines if not line.startswith("category")] == [
        "push overlap [gather blocks.3] category 1 payload 4096",
        "push overlap [forward blocks.2] category 2 payload 0",
        "pop overlap",
        "pop overlap",
    ] * 2
