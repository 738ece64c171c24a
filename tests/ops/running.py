"""The faces that this machine can run, and how to make ops run on one of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest
import torch

from overlap.ops import faces

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are first imported

ON_CPU = {"reference": "reference", "native": "native"} | ({} if GPU else {"triton": "triton_face"})
ON_GPU = {"triton": "triton_face", "cuda": "cuda_face", "reference on cuda": "reference"} if GPU else {}
NAMES = (*ON_CPU, *ON_GPU)

against_the_reference = pytest.mark.parametrize("device", NAMES[1:], indirect=True)
"""For comparisons with the reference, which on the CPU would be with itself."""


@contextmanager
def face(name: str) -> Iterator[torch.device]:
    """Let ops run on one face, on whose device tensors are to be; a missing extension fails, not skips."""
    device, module = ("cpu", ON_CPU[name]) if name in ON_CPU else ("cuda", ON_GPU[name])
    chosen = faces.checked(import_module(f"overlap.ops.{module}"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(faces, f"_{device}_face", lambda: chosen)
        yield torch.device(device)


def interpreted(device: torch.device) -> bool:
    """Whether ops on ``device`` run in Triton's interpreter, which pays for every block."""
    return device.type == "cpu" and faces.face_name(device) == "triton"
