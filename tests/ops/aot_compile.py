"""Compile every kernel for GPUs that are not here, and print what came out as one JSON line per kernel.

Run by test_aot.py in its own process: the interpreter's switch is read when a kernel is defined.
Usage: python aot_compile.py ARCH   (80, 90 or 100)
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from overlap.kernels import launch
from overlap.kernels.adamw import adamw_kernel
from overlap.kernels.grad_norm import finish_kernel, sum_squares_kernel
from overlap.kernels.pack import pack_kernel
from overlap.kernels.reduce_sum import reduce_sum_kernel


class Variant(NamedTuple):
    """One specialisation: argument types in order, constants, and warps."""

    label: str
    kernel: triton.JITFunction
    types: dict[str, str]
    constants: dict[str, object]
    num_warps: int


def adamw(grad: str, shard: str) -> Variant:
    flat = dict.fromkeys(("master", "exp_avg", "exp_avg_sq"), "*fp32")
    flat |= {"grad": f"*{grad}", "shard": f"*{shard}"}
    scalars = ("decay", "blend1", "beta2", "blend2", "root_correction2", "eps", "step_size")
    types = flat | {"grad_scale": "*fp32", "skip": "*i32", "size": "i32"} | dict.fromkeys(scalars, "fp32")
    flags = {"HAS_SHARD": True, "HAS_SCALE": True, "HAS_SKIP": True, "MAXIMIZE": False}
    constants = flags | {"BLOCK": launch.ADAMW.block}
    return Variant(f"adamw {grad} {shard}", adamw_kernel, types, constants, launch.ADAMW.num_warps)


def pack(bucket: str, *, accumulate: bool) -> Variant:
    tables = {"sources": "*i64", "regions": "*i64", "blocks": "*i64"}
    types = tables | {"bucket": f"*{bucket}", "width": "i32", "scale": "fp32"}
    constants = {"ACCUMULATE": accumulate, "BLOCK": launch.PACK.block}
    return Variant(f"pack {bucket} {accumulate}", pack_kernel, types, constants, launch.PACK.num_warps)


def reduce_sum(row: str, out: str, *, accumulate: bool) -> Variant:
    table = {"rows": "*i64", "count": "i32", "like": f"*{row}"}
    types = table | {"out": f"*{out}", "size": "i32", "scale": "fp32"}
    constants = {"ALIGNED": True, "ACCUMULATE": accumulate, "BLOCK": launch.REDUCE_SUM.block}
    label = f"reduce_sum {row} {out} {accumulate}"
    return Variant(label, reduce_sum_kernel, types, constants, launch.REDUCE_SUM.num_warps)


def sum_squares(grad: str) -> Variant:
    types = {"grad": f"*{grad}", "partial": "*fp64", "size": "i32"}
    constants = {"ROWS": launch.NORM_ROWS, "LANES": launch.NORM_LANES}
    return Variant(f"sum_squares {grad}", sum_squares_kernel, types, constants, launch.NORM_WARPS)


def finish() -> Variant:
    types = {"partial": "*fp64", "out": "*fp64", "tiles": "i32"}
    constants = {"ACCUMULATE": True, "LANES": launch.FINISH_LANES}
    return Variant("finish", finish_kernel, types, constants, launch.NORM_WARPS)


VARIANTS = (
    adamw("fp32", "bf16"),
    adamw("bf16", "bf16"),
    adamw("fp16", "fp16"),
    pack("fp32", accumulate=False),
    pack("fp32", accumulate=True),
    pack("bf16", accumulate=False),
    pack("fp16", accumulate=False),
    reduce_sum("fp32", "fp32", accumulate=True),
    reduce_sum("bf16", "bf16", accumulate=False),
    reduce_sum("bf16", "fp32", accumulate=True),
    sum_squares("fp32"),
    sum_squares("bf16"),
    finish(),
)


def compile_for(arch: int, variant: Variant) -> triton.compiler.CompiledKernel:
    """Compile as for 16-byte aligned pointers and sizes that nothing is known about."""
    aligned = [["tt.divisibility", 16]]
    kinds = enumerate(variant.types.values())
    attributes = {(index,): aligned for index, kind in kinds if kind.startswith("*")}
    signature = variant.types | dict.fromkeys(variant.constants, "constexpr")
    source = ASTSource(variant.kernel, signature, constexprs=variant.constants, attrs=attributes)
    options = {"num_warps": variant.num_warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def resource_usage(cubin: bytes) -> dict[str, int]:
    """Registers per thread and bytes of stack (where spills go), as the bundled disassembler reports them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name.lower(): int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}


def accesses(ptx: str, kind: str) -> dict[str, int]:
    """Count global loads or stores of 16 bytes or more, and all of them."""
    widths = re.findall(rf"{kind}\.global\S*?(?:\.(v\d))?\.b(\d+)\b", ptx)
    sizes = [int((count or "v1")[1:]) * int(bits) // 8 for count, bits in widths]
    return {"wide": sum(size >= 16 for size in sizes), "all": len(sizes)}


def record(arch: int, variant: Variant) -> dict[str, object]:
    compiled = compile_for(arch, variant)
    ptx = compiled.asm["ptx"]
    return {
        "label": variant.label,
        "loads": accesses(ptx, "ld"),
        "stores": accesses(ptx, "st"),
        "fused": len(re.findall(r"\bfma\.rn\.f(?:32|64)", ptx)),
        "approximate": len(re.findall(r"\b(?:div\.full|div\.approx|sqrt\.approx)\.f32", ptx)),
        **resource_usage(compiled.asm["cubin"]),
    }


if __name__ == "__main__":
    for variant in VARIANTS:
        print(json.dumps(record(int(sys.argv[1]), variant)))
