"""The CUDA C++ face on each of its routes: over the fake driver, which runs the kernels' own code on CPU tensors, and
with a GPU over the real one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from ops.cuda.fake_cupy import FakeCupy
from ops.cuda.fake_driver import FakeDriver

from overlap import _cuda
from overlap.ops.cuda_face import routes
from overlap.ops.cuda_face.cupy_route import CupyRoute
from overlap.ops.cuda_face.tables import tables
from overlap.ops.image import image

ROUTES = ("launcher", "cupy")
GPU_ROUTES = {f"{name} on a GPU": name for name in ROUTES}


@pytest.fixture(scope="session")
def built_driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture
def driver(built_driver: FakeDriver) -> FakeDriver:
    """The fake driver, with nothing launched yet and device 0 current, as torch leaves it."""
    built_driver.reset()
    tables.cache_clear()
    return built_driver


@pytest.fixture
def launcher(driver: FakeDriver) -> _cuda.Launcher:
    return _cuda.Launcher(str(driver.library), str(driver.image))


@pytest.fixture(params=ROUTES)
def on_fake(request: pytest.FixtureRequest, driver: FakeDriver) -> Iterator[FakeDriver]:
    """Run the face over the fake driver, on CPU tensors."""
    with _faked(request.param, driver):
        yield driver


@pytest.fixture(params=[*ROUTES, *(pytest.param(name, marks=pytest.mark.gpu) for name in GPU_ROUTES)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Run the face on one route and driver; the device for its tensors."""
    if request.param in ROUTES:
        with _faked(request.param, request.getfixturevalue("driver")):
            yield torch.device("cpu")
    elif not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    else:
        fatbin = image()
        assert fatbin is not None, "the kernels are not built: reinstall where nvcc is found"
        with _routed(GPU_ROUTES[request.param], routes.DRIVER, fatbin):
            yield torch.device("cuda")


@contextmanager
def _faked(name: str, driver: FakeDriver) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "cupy", FakeCupy(driver))
        with _routed(name, str(driver.library), driver.image):
            yield
    assert driver.depth == 1, "a context was left behind"


@contextmanager
def _routed(name: str, library: str, fatbin: Path) -> Iterator[None]:
    route = CupyRoute(fatbin) if name == "cupy" else _cuda.Launcher(library, str(fatbin))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(routes, "current", lambda: route)
        yield
