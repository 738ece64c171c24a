"""Every op test runs once per face, through the public call.

Without a GPU the Triton face runs in Triton's interpreter, on CPU tensors; with one it runs compiled, and so do the
CUDA C++ face and, on CUDA tensors, the reference.
"""

from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import torch
from ops.running import NAMES, face

from overlap import ops


@pytest.fixture(params=NAMES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Run overlap.ops on one face; the device for its tensors."""
    with face(request.param) as chosen:
        yield chosen


@pytest.fixture
def on_reference() -> Callable[..., None]:
    """Call ``op(*args)`` on the reference face, on CPU tensors, whichever face the test is about."""

    def call(op: Callable[..., None], *args: object, **options: object) -> None:
        with face("reference"):
            op(*args, **options)

    return call


@pytest.fixture
def on_threads() -> Iterator[Callable[..., None]]:
    """Call ``op(*args)`` on the native face with so many threads."""

    def call(count: int, op: Callable[..., None], *args: object, **options: object) -> None:
        ops.set_num_threads(count)
        with face("native"):
            op(*args, **options)

    yield call
    ops.set_num_threads(None)


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a Triton kernel a block that takes small inputs whole: nothing may depend on it."""
    launch = import_module("overlap.kernels.launch")
    return lambda name: monkeypatch.setattr(launch, name, launch.Launch(block=16384, num_warps=8))
