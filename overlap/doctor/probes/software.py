"""Versions, and who runs the ops."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
import torch.distributed as dist

from overlap.doctor.facts import Software
from overlap.errors import OverlapError
from overlap.ops.faces import face_name
from overlap.ops.image import image


def look() -> Software:
    """Read versions and faces."""
    return Software(
        overlap=_version("overlap-engine") or "not installed",
        python=sys.version_info[:3],
        torch=torch.__version__,
        cuda=torch.version.cuda,
        nccl=_nccl(),
        gloo=dist.is_gloo_available(),
        triton=_version("triton"),
        native=find_spec("overlap._native") is not None,
        shared=find_spec("overlap._shared") is not None,
        fatbin=image() is not None,
        cpu_face=_face("cpu"),
        cuda_face=_face("cuda") if torch.cuda.is_available() else None,
    )


def _face(device_type: str) -> str:
    try:
        return face_name(torch.device(device_type))
    except OverlapError as error:  # a mode that insists on what is not there
        return str(error)


def _nccl() -> str | None:
    if not dist.is_nccl_available():
        return None
    found = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
