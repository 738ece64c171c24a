"""Faces of the ops by name: which run on a device, which are there, and which op each one brings itself."""

from importlib import import_module
from types import ModuleType

from overlap.errors import ConfigError, message

MODULES = {
    "native": "overlap.ops.native",
    "triton": "overlap.ops.triton_face",
    "cuda": "overlap.ops.cuda_face",
    "reference": "overlap.ops.reference",
}
DEVICES = {"cpu": ("native", "reference"), "cuda": ("triton", "cuda", "reference")}
"""Faces by device. Triton on CPU is its interpreter, whose speed says nothing."""


def default_faces(device: str) -> tuple[str, ...]:
    """Return the fast faces that are there for ``device``; the reference where there is none."""
    return tuple(name for name in DEVICES[device] if name != "reference" and _missing(name) is None) or ("reference",)


def load_face(name: str) -> ModuleType:
    """Return a face's module, whose functions take the positional arguments of ``overlap.ops.face.Face``.

    Raises:
        ConfigError: it cannot be imported here.
    """
    missing = _missing(name)
    if missing is not None:
        raise ConfigError(message("faces", "be built", f"{name} ({missing})", "leave it out, or install what it needs"))
    return import_module(MODULES[name])


def brings(face: ModuleType, op: str) -> bool:
    """Whether the face's ``op`` is its own, and not handed on from another face."""
    module: str = getattr(face, op).__module__
    others = (other for other in MODULES.values() if other != face.__name__)
    return not any(f"{module}.".startswith(f"{other}.") for other in others)


def _missing(name: str) -> str | None:
    """Why a face is not there."""
    try:
        face = import_module(MODULES[name])
    except ImportError as error:
        return str(error)
    reason: str | None = getattr(face, "why_not", lambda: None)()
    return reason
