"""Compile what the Triton face launches for GPUs that are not here, and print it as one JSON line per kernel.

The face itself is called, on CPU tensors: in place of a launch its kernel is compiled, for the argument types,
constants, alignments and warps that the face chose. Run by test_aot.py in its own process, because the
interpreter's switch is read when a kernel is defined.

Usage: python -m ops.aot_compile ARCH...   (80, 90 or 100; on 90 all dtypes), with tests/ on PYTHONPATH
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import triton
from ops.face_calls import CALLS, Call
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from overlap.ops import triton_face

SIZE = 1 << 15
launched: list[tuple[str, object]] = []
"""Kernels in the order of their launches."""


class NoGPU:
    """The driver of a device that only has an architecture; each has its own cache of kernels."""

    arch = 0

    def get_current_device(self) -> int:
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)


def compile_instead(kernel: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
    """Stand in for ``kernel[grid]``."""

    def launch(*arguments: object, **options: object) -> None:
        compiled = kernel.run(*arguments, grid=grid, warmup=True, **options)
        launched.append((kernel.__name__, compiled))

    return launch


def kernels_of(call: Call, size: int, scalars: int) -> list[tuple[str, object]]:
    launched.clear()
    getattr(triton_face, call.op)(*call.arguments(size, scalars))
    return list(launched)


def resource_usage(cubin: bytes) -> dict[str, int]:
    """Registers per thread, and bytes of stack (where spills go), local and shared memory."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name.lower(): int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", text)}


def accesses(ptx: str, kind: str) -> dict[str, int]:
    """Count global loads or stores of 16 bytes, and all of them."""
    widths = re.findall(rf"{kind}\.global\S*?(?:\.(v\d))?\.b(\d+)\b", ptx)
    sizes = [int((count or "v1")[1:]) * int(bits) // 8 for count, bits in widths]
    return {"wide": sum(size >= 16 for size in sizes), "all": len(sizes)}


def record(call: Call, name: str, compiled: object, recompiled: bool) -> dict[str, object]:
    ptx = compiled.asm["ptx"]
    return {
        "call": call.label,
        "kernel": name,
        "threads": 32 * compiled.metadata.num_warps,
        "loads": accesses(ptx, "ld"),
        "stores": accesses(ptx, "st"),
        "fused": len(re.findall(r"\bfma\.rn\.f(?:32|64)", ptx)),
        "approximate": len(re.findall(r"\b(?:div\.full|div\.approx|sqrt\.approx)\.f32", ptx)),
        "recompiled": recompiled,
        **resource_usage(compiled.asm["cubin"]),
    }


def records_of(call: Call) -> list[dict[str, object]]:
    """Compile one call, and see whether other sizes and numbers (1, multiples of 16, beyond 32 bits) compile again."""
    kernels = kernels_of(call, SIZE, scalars=3)
    others = [kernels_of(call, 1, 1), kernels_of(call, SIZE + 16, 1 << 20), kernels_of(call, 77, 1 << 33)]
    again = [any(other[index][1] is not compiled for other in others) for index, (_, compiled) in enumerate(kernels)]
    return [record(call, *kernel, recompiled) for kernel, recompiled in zip(kernels, again, strict=True)]


if __name__ == "__main__":
    device = NoGPU()
    driver.set_active(device)
    JITFunction.__getitem__ = compile_instead
    for word in sys.argv[1:]:
        device.arch = int(word)
        for call in (call for call in CALLS if device.arch == 90 or not call.variant):
            for found in records_of(call):
                print(json.dumps({"triton": triton.__version__, "arch": device.arch, **found}), flush=True)
