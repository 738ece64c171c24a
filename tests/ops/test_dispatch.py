import logging
import re
import subprocess
import sys

import pytest
import torch

from overlap import ops
from overlap.errors import ConfigError
from overlap.ops import PackSlot, faces

CPU = torch.device("cpu")
OPTIONS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "step": 1}


@pytest.fixture(autouse=True)
def _default_faces():
    yield
    ops.configure("auto")


@pytest.fixture
def unbuilt(monkeypatch):
    """A package whose extension was not built."""
    monkeypatch.setattr(faces, "_native_built", lambda: False)


def test_cpu_tensors_run_natively():
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


def test_unknown_word_raises():
    with pytest.raises(ConfigError, match="must be auto, on or off, but got yes"):
        ops.configure("yes")


def test_environment_decides_until_configured(monkeypatch):
    monkeypatch.setattr(faces, "_native_mode", None)
    monkeypatch.setenv("OVERLAP_NATIVE", "OFF")
    faces._cpu_face.cache_clear()
    assert ops.face_name(CPU) == "reference"


def test_other_devices_run_the_reference():
    assert ops.face_name(torch.device("meta")) == "reference"


def test_import_loads_neither_triton_nor_the_extension():
    code = "import sys, overlap.ops; print([n for n in ('triton', 'overlap._native') if n in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def fp32(*shape):
    return torch.zeros(shape)


def run_pack(grads, bucket, *slots):
    ops.pack(grads, bucket, slots)


def run_adamw(changes):
    arguments = {name: fp32(4) for name in ("master", "exp_avg", "exp_avg_sq", "grad")}
    ops.adamw(**(arguments | {"shard": None} | OPTIONS | changes))


SLOT = PackSlot(0, 2, 4)

WRONG = {
    "grads must have one entry per slot (1)": lambda: run_pack([], fp32(2, 4), SLOT),
    "grads[0] must have its slot's 4 elements": lambda: run_pack([fp32(5)], fp32(2, 4), SLOT),
    "grads[0] must have dtype": lambda: run_pack([fp32(4).double()], fp32(2, 4), SLOT),
    "grads[0] must be on cpu": lambda: run_pack([fp32(4).to("meta")], fp32(2, 4), SLOT),
    "bucket must be contiguous [world, width]": lambda: run_pack([None], fp32(4, 2).t(), SLOT),
    "bucket must have dtype": lambda: run_pack([None], fp32(2, 4).double(), SLOT),
    "slots[0] must have chunk * 1 rows >= numel": lambda: run_pack([None], fp32(1, 4), SLOT),
    "slots[0] must lie in columns [0, 1)": lambda: run_pack([None] * 2, fp32(2, 4), SLOT, PackSlot(1, 2, 3)),
    "slots[0] must lie in columns [0, 4)": lambda: run_pack([None], fp32(2, 4), PackSlot(3, 2, 4)),
    "master must have dtype float32": lambda: run_adamw({"master": fp32(4).bfloat16()}),
    "exp_avg must be a contiguous 1-D tensor of 4": lambda: run_adamw({"exp_avg": fp32(8)[::2]}),
    "grad must be a contiguous 1-D tensor of 4": lambda: run_adamw({"grad": fp32(5)}),
    "shard must be a contiguous 1-D tensor of 4": lambda: run_adamw({"shard": fp32(2, 2)}),
    "grad_scale must have one element": lambda: run_adamw({"grad_scale": fp32(2)}),
    "skip must have dtype": lambda: run_adamw({"skip": torch.zeros(1, dtype=torch.bool)}),
    "step must count from 1": lambda: run_adamw({"step": 0}),
    "out must have dtype float64": lambda: ops.grad_norm(fp32(4), fp32(2)),
    "out must be a contiguous [2] tensor": lambda: ops.grad_norm(fp32(4), fp32(3).double()),
    "grad must be a contiguous 1-D tensor": lambda: ops.grad_norm(fp32(2, 2), fp32(2).double()),
    "rows must hold at least one tensor": lambda: ops.reduce_sum([], fp32(4)),
    "rows[1] must have dtype float32": lambda: ops.reduce_sum([fp32(4), fp32(4).half()], fp32(4)),
    "rows[1] must be a contiguous 1-D tensor of 4": lambda: ops.reduce_sum([fp32(4), fp32(3)], fp32(4)),
    "out must be a contiguous 1-D tensor of 4": lambda: ops.reduce_sum([fp32(4)], fp32(3)),
}


@pytest.mark.parametrize("text", WRONG)
def test_refuses(text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        WRONG[text]()


def test_extension_refuses_what_the_dispatcher_would_not_send():
    from overlap import _native

    grad, out = torch.zeros(1).data_ptr(), torch.zeros(2, dtype=torch.float64).data_ptr()
    with pytest.raises(ValueError, match=r"dtype code must be 0 .* or 2 \(fp16\), but got 9"):
        _native.grad_norm(9, grad, 1, out, False, 1)
    with pytest.raises(ValueError, match="size must be 0 or more, but got -1"):
        _native.grad_norm(0, grad, -1, out, False, 1)
    with pytest.raises(ValueError, match="pointer must be set"):
        _native.grad_norm(0, 0, 1, out, False, 1)
