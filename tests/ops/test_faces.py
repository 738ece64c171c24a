import ast
import logging
import subprocess
import sys
from importlib import import_module
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
    fake.available = lambda: True
    vars(fake).update(dict.fromkeys(check.__all__, lambda *arguments: None))
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
    with pytest.raises(ConfigError, match=f"^{kind} must be auto, on or off, but got yes"):
        ops.configure(**{kind: "yes"})


@pytest.mark.parametrize(("variable", "device"), [("OVERLAP_NATIVE", CPU), ("OVERLAP_CUDA_KERNELS", CUDA)])
def test_an_unknown_word_of_the_environment_is_blamed_on_it(monkeypatch, variable, device):
    monkeypatch.setenv(variable, "yes")
    forget()
    with pytest.raises(ConfigError, match=f"^{variable} must be auto, on or off, but got yes"):
        ops.face_name(device)


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


def test_cuda_tensors_run_triton_where_the_kernels_cannot(built_for_cuda, caplog):
    built_for_cuda.available, built_for_cuda.why_not = lambda: False, lambda: "no driver"
    ops.configure(cuda="auto")
    with caplog.at_level(logging.INFO, logger="overlap"):
        assert ops.face_name(CUDA) == "triton"
    assert [record.message for record in caplog.records] == [
        "CUDA ops run in Triton, not in the CUDA C++ kernels: no driver"
    ]
    with pytest.raises(ConfigError, match="cuda=on must find kernels and a driver"):
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
    assert loaded_with_ops(modules) == []


def test_import_loads_neither_the_engine_nor_what_it_shards_with():
    """Who wants the kernels alone gets no DTensor, no FSDP, and no hooks on every optimizer of the process."""
    assert loaded_with_ops(("overlap.engine", "overlap.shard", "torch.distributed.tensor")) == []
    hooks = "_global_optimizer_pre_hooks"
    shown = in_a_fresh_process(f"import overlap.ops; from torch.optim.optimizer import {hooks}; print(len({hooks}))")
    assert shown == "0"


def loaded_with_ops(modules):
    code = f"import sys, overlap.ops; print([name for name in {modules} if name in sys.modules])"
    return ast.literal_eval(in_a_fresh_process(code))


def in_a_fresh_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_type_that_an_op_cannot_read_is_explained_by_its_check():
    face = faces.checked(import_module("overlap.ops.native"))
    with pytest.raises(ConfigError, match="block must be a power of two"):
        face.quantize(torch.ones(4), torch.ones(4).to(torch.int8), torch.ones(1), 32.0)


def test_a_type_error_that_no_check_explains_is_kept():
    fake = ModuleType("overlap.ops.fake_face")
    fake.VERIFIES = True
    vars(fake).update(dict.fromkeys(check.__all__, lambda *arguments: arguments[0].nothing))
    with pytest.raises(AttributeError, match="nothing"):
        faces.checked(fake).grad_norm(torch.ones(4), torch.zeros(2, dtype=torch.float64), False)
