"""What nvcc made of the kernels, without a GPU, as Triton's bundled disassembler reports it: one JSON document.

Usage: python fatbin_report.py FATBIN
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import triton

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
ARGUMENTS_AT = {80: 0x160, 90: 0x210, 100: 0x380}
"""Where the arguments begin in a kernel's bank of constants, which ends behind them."""

ARCH = re.compile(r"arch = sm_(\d+)")
FUNCTION = re.compile(r"Function\s*:?\s*(\w+)\s*:?$")
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def dump(path: Path, *options: str) -> list[str]:
    command = [str(TOOL), *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def architectures(path: Path) -> dict[str, list[int]]:
    """Which machine code (elf) and which intermediate code (ptx) the file holds."""
    found = {kind: re.findall(r"sm_(\d+)", "\n".join(dump(path, f"--list-{kind}"))) for kind in ("elf", "ptx")}
    return {kind: sorted(map(int, names)) for kind, names in found.items()}


def blocks(lines: list[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Architecture, kernel and the lines about it."""
    arch, kernel, own = 0, "", list[str]()
    for line in [*lines, "arch = sm_0"]:
        new_arch, new_kernel = ARCH.search(line), FUNCTION.search(line.strip())
        if (new_arch or new_kernel) and kernel:
            yield arch, kernel, own
            kernel = ""
        if new_arch:
            arch = int(new_arch[1])
        elif new_kernel:
            kernel, own = new_kernel[1], []
        own.append(line)


def report(path: Path) -> Iterator[dict[str, object]]:
    resources = {(arch, kernel): " ".join(lines) for arch, kernel, lines in blocks(dump(path, "--dump-resource-usage"))}
    for arch, kernel, lines in blocks(dump(path, "--dump-sass")):
        used = dict(re.findall(r"\b(REG|STACK|LOCAL|CONSTANT\[0\]):(\d+)", resources[arch, kernel]))
        opcodes = [match[1] for match in map(OPCODE.match, lines) if match]
        yield {
            "arch": arch,
            "kernel": kernel,
            "registers": int(used["REG"]),
            "stack": int(used["STACK"]),
            "local": int(used["LOCAL"]),
            "argument_bytes": int(used["CONSTANT[0]"]) - ARGUMENTS_AT[arch],
            "wide_loads": sum(is_wide(name, "LDG") for name in opcodes),
            "wide_stores": sum(is_wide(name, "STG") for name in opcodes),
            "generic": sum(name.split(".")[0] in ("LD", "ST") for name in opcodes),
            "fused": sum(name.split(".")[0] in ("FFMA", "FFMA2", "DFMA") for name in opcodes),
            "instructions": len(opcodes),
        }


def is_wide(opcode: str, kind: str) -> bool:
    """Whether it moves 16 bytes or more."""
    first, *rest = opcode.split(".")
    return first == kind and not {"128", "256"}.isdisjoint(rest)


if __name__ == "__main__":
    fatbin = Path(sys.argv[1])
    found = {"bytes": fatbin.stat().st_size, **architectures(fatbin), "kernels": list(report(fatbin))}
    print(json.dumps(found, indent=1))
