"""Environment variables that end overlap, or cost some of it. They are judged on any machine: jobs inherit them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding, Level, ok

_SPINNING = "threads of an OpenMP region that is over spin on the cores that CPU lanes need"
_ON = ("1", "true", "yes", "on", "y", "t")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A variable, values of it that do harm, and why."""

    name: str
    values: tuple[str, ...] = _ON
    """Compared in lower case."""
    level: Level
    why: str
    cure: str = ""
    """Empty: unset it."""

    def met(self, environment: Mapping[str, str]) -> Finding | None:
        """What to say where it applies."""
        value = environment.get(self.name)
        if value is None or value.strip().lower() not in self.values:
            return None
        return Finding(
            level=self.level, subject=self.name, value=value, why=self.why, cure=self.cure or f"unset {self.name}"
        )


RULES = (
    Rule(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        values=("1",),
        level="error",
        why="all streams share one hardware queue: a collective starts only when the kernels launched before it have "
        "started, and compute launched after it waits behind it (set for Megatron's tensor parallelism; it needs "
        "no such order from Overlap, whose lanes wait for events)",
        cure="unset CUDA_DEVICE_MAX_CONNECTIONS, or give each lane a queue with 8",
    ),
    Rule(
        name="CUDA_LAUNCH_BLOCKING",
        level="error",
        why="the host waits for every kernel before it launches the next: nothing runs beside anything",
    ),
    *(
        Rule(
            name=name,
            level="error",
            why="the host waits for every collective where it is issued, so no compute is launched to hide it",
        )
        for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    ),
    Rule(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        level="error",
        why="every allocation is a cudaMalloc, every release a cudaFree, which waits for all streams",
    ),
    Rule(
        name="TORCH_DISTRIBUTED_DEBUG",
        values=("detail",),
        level="warning",
        why="before each collective all hosts meet and compare it: the host cannot run ahead of the device",
        cure="set TORCH_DISTRIBUTED_DEBUG=OFF; Overlap names ranks that fall out of step by itself",
    ),
    Rule(
        name="NCCL_LAUNCH_MODE",
        values=("group",),
        level="warning",
        why="launches of one process's GPUs are held until all are there, so collectives start late",
    ),
    Rule(
        name="NCCL_P2P_DISABLE",
        level="warning",
        why="GPUs of a host talk through host memory, not over NVLink or PCIe",
    ),
    Rule(
        name="NCCL_P2P_LEVEL",
        values=("loc", "0"),
        level="warning",
        why="GPUs of a host talk through host memory, not over NVLink or PCIe",
    ),
    Rule(
        name="NCCL_SHM_DISABLE",
        level="warning",
        why="GPUs of a host without peer access talk over the network",
    ),
    Rule(
        name="NCCL_NET_GDR_LEVEL",
        values=("loc", "0"),
        level="warning",
        why="data for the network is copied through host memory (no GPUDirect RDMA)",
    ),
    Rule(
        name="NCCL_DEBUG",
        values=("trace",),
        level="warning",
        why="every call is logged by the thread that issues it",
        cure="set NCCL_DEBUG=WARN",
    ),
    Rule(
        name="OMP_WAIT_POLICY",
        values=("active",),
        level="warning",
        why=_SPINNING,
        cure="set OMP_WAIT_POLICY=PASSIVE, or leave a core free for each lane",
    ),
    Rule(
        name="KMP_BLOCKTIME",
        values=("infinite",),
        level="warning",
        why=_SPINNING,
        cure="set KMP_BLOCKTIME=0",
    ),
    *(
        Rule(
            name=name,
            values=values,
            level="note",
            why="it overrides NCCL's own choice by message size, for every lane and every size of bucket",
        )
        for name, values in (
            ("NCCL_PROTO", ("simple", "ll", "ll128")),
            ("NCCL_ALGO", ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")),
        )
    ),
)
"""In order of the harm they do."""


def check(facts: Facts) -> Iterator[Finding]:
    """Every rule that applies; one line where none does."""
    findings = [finding for rule in RULES if (finding := rule.met(facts.environment)) is not None]
    yield from findings or [ok("variables", f"none of {len(RULES)} that are known to harm overlap")]
