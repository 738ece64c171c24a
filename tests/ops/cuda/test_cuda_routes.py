"""Which route a process takes, and why it may have none."""

import subprocess
import sys

import pytest
import torch
from ops.cuda.fake_cupy import FakeCupy
from ops.cuda.fake_driver import FakeDriver

from overlap.errors import StateError
from overlap.ops import cuda_face
from overlap.ops.cuda_face import routes
from overlap.ops.cuda_face.cupy_route import CupyRoute


@pytest.fixture(autouse=True)
def _asked_anew():
    for question in (routes.why_not, routes.current):
        question.cache_clear()
    yield
    for question in (routes.why_not, routes.current):
        question.cache_clear()


@pytest.fixture
def machine(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A machine with one GPU, a driver, and kernels that were built."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(routes, "DRIVER", str(driver.library))
    monkeypatch.setattr(routes, "image", lambda: driver.image)
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(driver))
    return driver


def installed(monkeypatch, *names):
    monkeypatch.setattr(routes, "find_spec", lambda name: object() if name in names else None)


def test_the_launcher_comes_first(machine, monkeypatch):
    installed(monkeypatch, "overlap._cuda", "cupy")
    assert cuda_face.why_not() is None
    assert cuda_face.available() is True
    assert type(routes.current()).__name__ == "Launcher"


def test_cupy_serves_without_the_launcher(machine, monkeypatch):
    installed(monkeypatch, "cupy")
    assert cuda_face.available() is True
    assert isinstance(routes.current(), CupyRoute)


def test_nothing_to_launch_with(machine, monkeypatch):
    installed(monkeypatch)
    assert cuda_face.why_not() == (
        "overlap._cuda or cupy must be installed, but got neither; "
        "reinstall where a C++ compiler is found, install cupy, or let Triton serve"
    )
    assert cuda_face.available() is False
    with pytest.raises(StateError, match="but got neither"):
        routes.current()


def test_built_without_nvcc(machine, monkeypatch):
    monkeypatch.setattr(routes, "image", lambda: None)
    cure = "reinstall where nvcc is found, or let Triton serve"
    assert cuda_face.why_not() == f"overlap/_kernels.fatbin must be installed, but got no such file; {cure}"


@pytest.mark.parametrize("name", ["overlap._cuda", "cupy"])
def test_kernels_that_this_driver_cannot_load(machine, monkeypatch, name):
    installed(monkeypatch, name)
    machine.fail("cuModuleLoadData", 200)
    assert cuda_face.available() is False
    reason = "200" if name == "cupy" else "CUDA_ERROR_INVALID_IMAGE; update the driver"
    assert reason in cuda_face.why_not()


def test_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda_face.why_not() == "torch sees no CUDA device"


def test_asked_once(machine, monkeypatch):
    installed(monkeypatch, "overlap._cuda")
    assert cuda_face.available() is True
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda_face.available() is True


def test_other_ops_are_tritons():
    from overlap.ops import triton_face

    for name in ("adamw", "adamw_8bit", "sgd_momentum", "lion", "quantize", "dequantize"):
        assert getattr(cuda_face, name) is getattr(triton_face, name)


def test_import_loads_neither_launcher_nor_cupy():
    code = "import sys, overlap.ops.cuda_face; print([n for n in ('cupy', 'overlap._cuda') if n in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
