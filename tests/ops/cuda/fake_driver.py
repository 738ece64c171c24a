"""A CUDA driver for machines without one: fake_libcuda.cpp, built once, and what a test reads from it."""

import struct
import subprocess
from ctypes import CDLL, POINTER, byref, c_char_p, c_int, c_size_t, c_void_p, string_at
from pathlib import Path
from shutil import which
from typing import NamedTuple

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "csrc" / "cuda"

PRIMARY = 0x1000
"""The primary context of device 0; that of device 1 is the next number."""


class Launch(NamedTuple):
    """What cuLaunchKernel was called with."""

    kernel: str
    grid: tuple[int, int]
    threads: int
    stream: int
    context: int
    arguments: bytes


class FakeDriver:
    """The built library; its state is the process's, so a test begins with ``reset``."""

    def __init__(self, folder: Path) -> None:
        self.library = folder / "libcuda_fake.so"
        _build(self.library)
        self.image = folder / "kernels.fatbin"
        self.image.write_bytes(fatbin(b"kernels"))
        self.functions = CDLL(str(self.library))
        self.functions.fake_reset.argtypes = [c_size_t]
        self.functions.fake_fail.argtypes = [c_char_p, c_int]
        self.functions.fake_launch.argtypes = [c_size_t, POINTER(c_size_t), POINTER(c_void_p)]
        self.functions.fake_launch.restype = c_char_p

    def reset(self, context: int = PRIMARY) -> None:
        """Forget all launches; make ``context`` the current one (0: none)."""
        self.functions.fake_reset(context)

    def fail(self, function: str, result: int) -> None:
        """Let the next call of ``function`` return ``result``."""
        self.functions.fake_fail(function.encode(), result)

    def relaunch(self, index: int, arguments: bytes) -> int:
        """Run a kernel once more, with other arguments; the driver's result."""
        return self.functions.fake_relaunch(c_size_t(index), arguments)

    @property
    def depth(self) -> int:
        """Contexts on the stack of current ones."""
        return self.functions.fake_depth()

    @property
    def launches(self) -> list[Launch]:
        """Everything launched since ``reset``."""
        return [self._launch(index) for index in range(self.functions.fake_launches())]

    def _launch(self, index: int) -> Launch:
        numbers, arguments = (c_size_t * 6)(), c_void_p()
        name = self.functions.fake_launch(index, numbers, byref(arguments))
        grid_x, grid_y, threads, stream, context, size = numbers
        assert arguments.value is not None
        return Launch(name.decode(), (grid_x, grid_y), threads, stream, context, string_at(arguments.value, size))


def fatbin(payload: bytes) -> bytes:
    """Something that looks whole to the launcher and to the fake driver."""
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(payload)) + payload


def _build(library: Path) -> None:
    compiler = which("g++") or which("c++")
    assert compiler is not None, "the kernels' own code runs here through a C++ compiler: install g++"
    flags = [
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-Wno-unknown-pragmas",
        "-fsanitize=alignment",
    ]
    folders = [f"-I{HERE / 'on_cpu'}", f"-I{KERNELS}"]
    compiled = library.with_suffix(".o")
    _run([compiler, *flags, *folders, "-c", str(HERE / "fake_libcuda.cpp"), "-o", str(compiled)])
    # Apart from compiling: the library has its own answer to a failed check, and links no sanitizer.
    _run([compiler, "-shared", str(compiled), "-o", str(library)])


def _run(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
