import logging
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from overlap import ops
from overlap.config import cuda_mode_from_env
from overlap.errors import ConfigError
from overlap.ops import check, faces

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _default_faces(monkeypatch):
    """Each test chooses anew, and leaves what it found."""
    monkeypatch.setattr(faces, "_native_mode", None)
    monkeypatch.setattr(faces, "_cuda_mode", None)
    yield
    monkeypatch.undo()
    forget()


def forget():
    for chosen in (faces._cpu_face, faces._cuda_face, faces._reference):
        chosen.cache_clear()


@pytest.fixture
def unbuilt(monkeypatch):
    """A package whose extension was not built."""
    monkeypatch.setattr(faces, "_native_built", lambda: False)


@pytest.fixture
def built_for_cuda(monkeypatch):
    """A machine on which the CUDA C++ kernels run, or so they say."""
    fake = ModuleType("overlap.ops.cuda_face")
    fake.available, fake.VERIFIES = (lambda: True), True
    monkeypatch.setitem(sys.modules, "overlap.ops.cuda_face", fake)
    monkeypatch.setattr(faces, "_triton_installed", lambda: True)
    return fake


def test_cpu_tensors_run_natively():
    ops.configure("auto")
    assert ops.face_name(CPU) == "native", "the extension is not built: run make test, or pip install -e ."


def test_off_runs_the_reference():
    ops.configure("off")
    assert ops.face_name(CPU) == "reference"


def test_auto_without_the_extension_says_so_once(unbuilt, caplog):
    ops.configure("auto")
    with caplog.at_level(logging.WARNING, logger="overlap"):
        assert [ops.face_name(CPU) for _ in range(3)] == ["reference"] * 3
    assert [record.message for record in caplog.records] == [
        "overlap._native is not built: CPU ops run in plain torch (slower, same results)"
    ]


def test_on_without_the_extension_raises(unbuilt):
    with pytest.raises(ConfigError, match=r"must find overlap\._native"):
        ops.configure("on")


@pytest.mark.parametrize("kind", ["native", "cuda"])
def test_unknown_word_raises(kind):
    with pytest.raises(ConfigError, match="must be auto, on or off, but got yes"):
        ops.configure(**{kind: "yes"})


def test_environment_decides_until_configured(monkeypatch):
    monkeypatch.setenv("OVERLAP_NATIVE", "OFF")
    forget()
    assert ops.face_name(CPU) == "reference"
    ops.configure(native="auto")
    assert ops.face_name(CPU) == "native"


def test_other_devices_run_the_reference():
    assert ops.face_name(torch.device("meta")) == "reference"


def test_cuda_tensors_run_the_cuda_kernels_where_they_can(built_for_cuda):
    ops.configure(cuda="auto")
    assert ops.face_name(CUDA) == "cuda"
    ops.configure(cuda="off")
    assert ops.face_name(CUDA) == "triton"


def test_cuda_tensors_run_triton_where_the_kernels_cannot(built_for_cuda):
    built_for_cuda.available = lambda: False
    ops.configure(cuda="auto")
    assert ops.face_name(CUDA) == "triton"
    with pytest.raises(ConfigError, match="OVERLAP_CUDA_KERNELS=on must find kernels and a driver"):
        ops.configure(cuda="on")
    assert ops.face_name(CUDA) == "triton"


def test_cuda_tensors_without_triton_run_the_reference_and_say_so_once(monkeypatch, caplog):
    monkeypatch.setattr(faces, "_triton_installed", lambda: False)
    ops.configure(cuda="auto")
    with caplog.at_level(logging.WARNING, logger="overlap"):
        assert [ops.face_name(CUDA) for _ in range(3)] == ["reference"] * 3
    assert [record.message for record in caplog.records] == [
        "triton is not installed: CUDA ops run in plain torch (slower, same results)"
    ]


def test_the_environment_decides_about_cuda_too(monkeypatch, built_for_cuda):
    assert cuda_mode_from_env() == "auto"
    monkeypatch.setenv("OVERLAP_CUDA_KERNELS", "OFF")
    assert cuda_mode_from_env() == "off"
    forget()
    assert ops.face_name(CUDA) == "triton"


def test_configuring_one_leaves_the_other(built_for_cuda):
    ops.configure(native="off")
    ops.configure(cuda="off")
    assert (ops.face_name(CPU), ops.face_name(CUDA)) == ("reference", "triton")


def test_every_face_has_every_op():
    names = set(check.__all__)
    assert {name for name in vars(faces.Face) if not name.startswith("_")} == names
    for name in ("reference", "native", "triton_face", "cuda_face"):
        module = __import__(f"overlap.ops.{name}", fromlist=["ops"])
        assert names <= set(vars(module)), name


def test_import_loads_neither_triton_nor_the_extension():
    modules = ("triton", "overlap._native", "overlap.ops.reference")
    code = f"import sys, overlap.ops; print([name for name in {modules} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
