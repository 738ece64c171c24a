"""What a user gets by importing: light, complete, and in nobody's way."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_python(code: str) -> str:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_kernels_is_a_link_that_git_keeps():
    link = ROOT / "overlap" / "kernels"
    assert link.is_symlink()
    assert link.readlink() == Path("../kernels")


def test_kernels_has_no_init():
    """With one, a checkout on sys.path would shadow the ``kernels`` package that transformers looks for."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("source", sorted(path.stem for path in (ROOT / "kernels").glob("*.py")))
def test_kernels_are_part_of_the_package(source):
    assert find_spec(f"overlap.kernels.{source}") is not None


def test_package_is_typed():
    assert (ROOT / "overlap" / "py.typed").exists()


def test_import_takes_no_gpu_and_loads_no_compiler():
    code = (
        "import sys, overlap, overlap.ops, torch\n"
        "print(torch.cuda.is_initialized(), 'triton' in sys.modules, 'overlap._native' in sys.modules)"
    )
    assert run_python(code) == "False False False"


def test_extension_is_installed_in_the_package():
    assert run_python("from overlap import _native; print(_native.__name__)") == "overlap._native"
