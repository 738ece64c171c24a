"""Who may import whom, and the habits that a reader of the tree relies on (``docs/design.md``)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.source import ROOT, Module, closure, foreign_privates, package

# From the bottom up. An import goes down this list, never up; inside a line anyone may import anyone.
LAYERS = [
    ("errors", "config", "nvtx", "_compat", "jsonfile"),
    ("kernels",),
    ("ops",),
    ("shard",),
    ("comm",),
    ("schedule",),
    ("profiling",),
    ("optim",),
    ("engine",),
    ("",),  # overlap itself: the public names
    ("demo", "bench", "verify", "doctor", "record"),
    ("cli",),
    ("__main__",),
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
ENDS = ("demo", "bench", "verify", "doctor", "record", "integrations", "cli", "__main__")

# What is planned, proved or measured can be looked at on a machine without torch.
TORCH_FREE = [
    *(f"overlap.schedule.{stem}" for stem in ("op", "plan", "planner", "spec", "validate", "simulate")),
    "overlap.shard.layout",
    "overlap.comm.volume",
    "overlap.comm.cost",
    *(name for name in package() if name.startswith("overlap.profiling.")),
]

# Names that look private and are not, or that have no public equal; everything else belongs into _compat.py.
PRIVATE_ALLOWED = {
    "_fields": "of namedtuples: the underscore keeps it apart from fields, it is documented",
    "_exit": "of os: documented",
}

ENVIRONMENT_ALLOWED = {
    "overlap.config": "the one home of environment variables",
    "overlap.demo.environment": "the ranks that a launcher has started, before there are options",
    "overlap.record.command": "tells the processes it starts what to record",
    "overlap.record.recorder": "reads it there",
    "overlap.record.rank": "the rank that a launcher gave, where torch.distributed is not used",
    "overlap.record.site.sitecustomize": "runs before anything of ours can be imported",
    "overlap.demo.launch": "sets the threads of the ranks it starts",
}

MAX_LINES = 400
MAX_AVERAGE = 150
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc"}

modules = pytest.mark.parametrize("module", package().values(), ids=repr)


def python_files() -> list[Path]:
    folders = ("overlap", "kernels", "tests", "examples")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@modules
def test_every_room_has_its_layer(module: Module):
    assert module.room in RANK


@modules
def test_imports_go_down(module: Module):
    up = [name for name in module.ours if RANK[package()[name].room] > RANK[module.room]]
    assert not up, f"{module} must not import {up}: they are above it"


def test_no_file_imports_itself_however_far_around():
    cycles = {name for name in package() for inner in package()[name].ours if name in closure(inner)}
    assert not cycles


def test_nobody_imports_the_ends_but_those_behind_them():
    for module in package().values():
        ends = {package()[name].room for name in module.ours} & set(ENDS)
        assert not ends or module.room in ENDS, f"{module} imports {ends}"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_plans_layouts_and_reports_do_without_torch(name: str):
    torches = {other for other in closure(name) if any(_is_torch(imported) for imported in package()[other].imports)}
    assert not torches


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch"


def test_profiling_needs_nothing_of_ours_but_errors_files_and_the_volume_of_collectives():
    profiling = [module for module in TORCH_FREE if ".profiling." in module]
    others = {name for module in profiling for name in closure(module) if package()[name].room != "profiling"}
    assert others == {"overlap.errors", "overlap.jsonfile", "overlap.comm.volume"}


@modules
def test_private_names_of_others_are_used_in_compat_only(module: Module):
    if module.room != "_compat":
        assert foreign_privates(module) <= PRIVATE_ALLOWED.keys()


def test_no_allowance_is_left_over():
    used = {name for module in package().values() if module.room != "_compat" for name in foreign_privates(module)}
    assert PRIVATE_ALLOWED.keys() <= used


@modules
def test_only_config_reads_the_environment(module: Module):
    reads = [
        node
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and {"environ", "getenv"} & _names(node))
    ]
    assert bool(reads) is (module.name in ENVIRONMENT_ALLOWED)


def _names(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def test_files_are_small():
    sizes = {path.relative_to(ROOT): lines(path) for path in python_files()}
    average = sum(sizes.values()) / len(sizes)
    print(f"{len(sizes)} files, {average:.0f} lines on average, {max(sizes.values())} at most")
    assert not {path: size for path, size in sizes.items() if size > MAX_LINES}
    assert average <= MAX_AVERAGE


def test_names_of_files_say_what_is_in_them():
    sources = [*python_files(), *(ROOT / "csrc").rglob("*.*")]
    assert not [path for path in sources if path.stem in VAGUE]


def test_importing_the_package_loads_nothing_but_torch():
    code = (
        "import sys, torch, torch.distributed.fsdp, torch.distributed.tensor\n"
        "before = set(sys.modules); import overlap\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)), 'overlap.demo' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "['overlap'] False"


def test_no_file_names_a_path_of_this_machine():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    places = [str(place) for place in (ROOT, ROOT.parent, Path.home()) if len(place.parts) > 1]
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, places))})/")
    files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    assert not [path for path in files if pattern.search(path.read_bytes().decode(errors="ignore"))]
