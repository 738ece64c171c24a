"""Every op test runs once per face, through the public call.

Without a GPU the Triton face runs in Triton's interpreter, on CPU tensors; with one it runs compiled.
"""

import os
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import torch

from overlap import ops

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are first imported

MODULES = {"reference": "reference", "native": "native", "triton": "triton_ops"}


@pytest.fixture(params=MODULES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Run overlap.ops on one face (a missing extension fails, not skips); the device for its tensors."""
    face = import_module(f"overlap.ops.{MODULES[request.param]}")
    monkeypatch.setattr("overlap.ops.dispatch.face_of", lambda device: face)
    return torch.device("cuda" if request.param == "triton" and torch.cuda.is_available() else "cpu")


@pytest.fixture
def on_reference(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call ``op(*args)`` on the reference face, whichever face the test is about."""

    reference = import_module("overlap.ops.reference")

    def call(op: Callable[..., None], *args: object, **options: object) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("overlap.ops.dispatch.face_of", lambda device: reference)
            op(*args, **options)

    return call


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Let native ops use this many threads."""
    ops.set_num_threads(request.param)
    yield request.param
    ops.set_num_threads(None)


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a Triton kernel a block that takes small inputs whole: nothing may depend on it."""
    launch = import_module("overlap.kernels.launch")
    return lambda name: monkeypatch.setattr(launch, name, launch.Launch(block=16384, num_warps=8))
