"""Run a program under a profiler: Nsight Systems where it is installed, else torch.profiler."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from overlap.errors import ConfigError, StateError, message
from overlap.profiling.nsys_marks import CAPTURE_DOMAIN, CAPTURE_RANGE
from overlap.record.child import run_to_its_end
from overlap.record.settings import VARIABLE, Orders, ProfileSettings

_SITE = Path(__file__).parent / "site"
CAPTURE = (
    "nsys",
    "profile",
    "--trace=cuda,nvtx",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",
    "--capture-range-end=stop",
    "--export=sqlite",
    "--force-overwrite=true",
)
"""Our capture settings: what reports need, and nothing that slows a step (no sampling, no OS calls)."""
BEGUN_BY_CUDA = ("--capture-range=cudaProfilerApi",)
BEGUN_BY_NVTX = ("--capture-range=nvtx", f"--nvtx-capture={CAPTURE_RANGE}@{CAPTURE_DOMAIN}")
"""When to capture: from what one rank says (``nsys_tool``) on."""


def record(command: Sequence[str], settings: ProfileSettings) -> Path:
    """Run ``command`` and record it; returns the folder to report on.

    Raises:
        StateError: if the program fails, or ends before anything was recorded.
    """
    cuda = torch.cuda.is_available()
    tool, out = _tool(settings, cuda), _empty_folder(Path(settings.out))
    orders = Orders.of(settings, tool, cuda)
    nsys = [*CAPTURE, *(BEGUN_BY_CUDA if cuda else BEGUN_BY_NVTX), f"--output={out / 'capture'}"]
    whole = [*(nsys if tool == "nsys" else ()), *command]
    if shutil.which(command[0]) is None:  # nsys would say so in its own words, and with a status like any other
        raise _not_runnable(command[0], "nothing of that name")
    try:
        status = run_to_its_end(whole, _environment(orders))
    except OSError as error:
        raise _not_runnable(command[0], str(error.strerror)) from error
    if status:
        cure = "see its output; without `overlap profile --` it should run through"
        raise StateError(message(f"{command[0]}", "end with status 0", status, cure))
    if not _recorded(out):
        cure = f"let each rank take more than {settings.skip} optimizer steps, or lower --skip"
        raise StateError(message("program", "step an optimizer of torch while it is recorded", "no trace", cure))
    return out


def _not_runnable(program: str, why: str) -> ConfigError:
    return ConfigError(message("command", "be runnable", f"{program} ({why})", "write it behind `--` as in a shell"))


def _tool(settings: ProfileSettings, cuda: bool) -> str:
    there = shutil.which("nsys") is not None
    if settings.tool == "nsys" and not there:
        cure = "install Nsight Systems, or use --tool torch"
        raise ConfigError(message("nsys", "be on the PATH", "nothing of that name", cure))
    if settings.tool == "auto":
        return "nsys" if there and cuda else "torch"
    return settings.tool


def _empty_folder(out: Path) -> Path:
    """The folder, made if need be; traces of an earlier recording would be taken for ranks of this one."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(message("out", "be a folder to write to", f"{out} ({error})", "name another")) from error
    if any(out.iterdir()):
        raise ConfigError(message("out", "be an empty folder", str(out), "name another, or empty it"))
    return out


def _environment(orders: Orders) -> Mapping[str, str]:
    path = os.pathsep.join(filter(None, [str(_SITE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, VARIABLE: orders.to_text()}


def _recorded(out: Path) -> bool:
    return any(file.suffix in (".sqlite", ".gz") for file in out.iterdir())
