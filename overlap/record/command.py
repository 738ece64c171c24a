"""Run a program under a profiler: Nsight Systems where it is installed, else torch.profiler."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from overlap.errors import ConfigError, StateError, message
from overlap.record.settings import VARIABLE, Orders, ProfileSettings

_SITE = Path(__file__).parent / "site"
CAPTURE = (
    "nsys",
    "profile",
    "--trace=cuda,nvtx",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=stop",
    "--export=sqlite",
    "--force-overwrite=true",
)
"""Our capture settings: what reports need, and nothing that slows a step (no sampling, no OS calls)."""


def record(command: Sequence[str], settings: ProfileSettings) -> Path:
    """Run ``command`` and record it; returns the folder to report on.

    Raises:
        StateError: if the program fails, or ends before anything was recorded.
    """
    tool, out = _tool(settings), _empty_folder(Path(settings.out))
    orders = Orders.of(settings, tool)
    whole = [*CAPTURE, f"--output={out / 'capture'}", *command] if tool == "nsys" else list(command)
    try:
        status = subprocess.run(whole, env=_environment(orders), check=False).returncode
    except OSError as error:
        cure = "write it behind `--` as in a shell"
        raise ConfigError(message("command", "be runnable", f"{command[0]} ({error.strerror})", cure)) from error
    if status:
        cure = "see its output; without `overlap profile --` it should run through"
        raise StateError(message(f"{command[0]}", "end with status 0", status, cure))
    if not _recorded(out):
        cure = f"let each rank take more than {settings.skip} optimizer steps, or lower --skip"
        raise StateError(message("program", "step an optimizer of torch while it is recorded", "no trace", cure))
    return out


def _tool(settings: ProfileSettings) -> str:
    there = shutil.which("nsys") is not None
    if settings.tool == "nsys" and not there:
        cure = "install Nsight Systems, or use --tool torch"
        raise ConfigError(message("nsys", "be on the PATH", "nothing of that name", cure))
    if settings.tool == "auto":
        return "nsys" if there else "torch"
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
