"""What a GPU record needs of the machine, asked before anything runs. Standard library only: torch may be missing."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

MODULES = ("torch", "triton", "numpy", "typer", "rich", "pytest", "hypothesis")
TO_BUILD = ("pip", "scikit_build_core", "nanobind")
ASK_TORCH = """
import json, torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpu": gpu}))
"""


@dataclass(frozen=True)
class Torch:
    """What ``torch`` says about itself."""

    version: str
    cuda: str | None
    """CUDA that it was built with; None for a CPU build."""
    gpu: str | None
    """Name of the device that it sees."""


def missing() -> list[str]:
    """Return what is missing, a line each; empty where the record can be made."""
    lines = [*_python(), *_driver(), *_modules(MODULES)]
    if find_spec("torch") is not None:
        lines += _cuda_torch(ask_torch())
    return lines


def missing_to_build() -> list[str]:
    """Return what is missing to build the native extension: a record can be made without it."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return _modules(TO_BUILD) + ([] if compiler else ["no C++ compiler"])


def ask_torch() -> Torch:
    """Ask in a process of its own, which takes the memory it needs on the device with it."""
    shown = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True)
    if shown.returncode:
        return Torch(f"(does not import: {shown.stderr.strip().splitlines()[-1]})", None, None)
    return Torch(**json.loads(shown.stdout.splitlines()[-1]))


def _python() -> list[str]:
    found = sys.version_info[:2]
    return [] if found >= (3, 11) else [f"Python {found[0]}.{found[1]} is too old: 3.11 is the oldest that will do"]


def _driver() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return ["no NVIDIA driver: there is no nvidia-smi"]
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    devices = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [] if devices else ["no NVIDIA device: nvidia-smi lists none"]


def _modules(names: tuple[str, ...]) -> list[str]:
    return [f"no {name}: {sys.executable} cannot import it" for name in names if find_spec(name) is None]


def _cuda_torch(torch: Torch) -> list[str]:
    if torch.cuda is None:
        return [f"no CUDA torch: torch {torch.version} is a CPU build"]
    return [] if torch.gpu else [f"torch {torch.version} sees no device"]
