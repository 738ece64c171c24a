"""What the doctor knows: read once by ``probes``, judged by ``checks``. Plain values: tests make any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Software:
    """What is installed."""

    overlap: str
    """Version."""
    python: tuple[int, int, int]
    """Version."""
    torch: str
    """Version, with the build behind a plus sign."""
    cuda: str | None
    """CUDA version that torch was built for; None for CPU and ROCm builds."""
    nccl: str | None
    """Version of the NCCL in torch."""
    gloo: bool
    """Whether torch brings gloo."""
    triton: str | None
    """Version."""
    native: bool
    """Whether the C++ extension is built."""
    shared: bool
    """Whether the extension for memory between ranks is built."""
    fatbin: bool
    """Whether the CUDA C++ kernels are built."""
    cpu_face: str
    """Who runs ops on CPU tensors: native or reference; else what keeps them from running."""
    cuda_face: str | None
    """Who runs ops on CUDA tensors; None without a device."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device that torch sees."""

    name: str
    """As the driver gives it."""
    memory_bytes: int
    """Of the device."""
    capability: tuple[int, int]
    """Compute capability."""


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """Devices and what joins them."""

    seen: tuple[Gpu, ...] = ()
    """By torch, in its order."""
    installed: int = 0
    """By the driver (``nvidia-smi``); 0 where there is none."""
    no_peer: tuple[tuple[int, int], ...] = ()
    """Pairs of seen devices that cannot read each other's memory."""
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """What joins two installed devices, in the words of ``nvidia-smi topo``: NV18, PIX, NODE, SYS, ..."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """How ranks on other hosts are reached."""

    interfaces: Mapping[str, str]
    """IPv4 address by interface name; empty where it has none."""
    down: tuple[str, ...] = ()
    """Interfaces that are not up."""
    hostname: str = "localhost"
    """Of this host."""
    hostname_address: str | None = None
    """What that resolves to; gloo listens there unless told otherwise."""
    infiniband: tuple[str, ...] = ()
    """Devices of RDMA verbs, RoCE included."""


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """What this process may run on."""

    cores: int
    """Logical processors of the host."""
    allowed: int
    """Those in the affinity mask of this process."""
    quota: float | None
    """Cores' worth of time that the cgroup grants; None for no limit."""
    threads: int
    """Compute threads of torch in this process."""
    ranks: int = 1
    """Ranks of a job on this host."""

    @property
    def usable(self) -> float:
        """Cores' worth of time for this process."""
        return self.allowed if self.quota is None else min(self.allowed, self.quota)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Limits and habits of memory."""

    locked_limit: int | None
    """Bytes a process may lock (``ulimit -l``); None for no limit."""
    shm_bytes: int | None
    """Size of /dev/shm; None where there is none."""
    huge_pages: str | None
    """Transparent huge pages: always, madvise or never; None where unknown."""


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where ranks find each other."""

    in_use: str | None = None
    """Store of the process group that this process is in; None where it is in none."""
    address: str | None = None
    """What MASTER_ADDR resolves to; None where it is not set, or resolves to nothing."""
    unreachable: str | None = None
    """Why the store that a launcher's agent holds does not answer; None where it does, or where no agent holds one."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All of it."""

    environment: Mapping[str, str]
    """Variables of this process."""
    software: Software
    gpus: Gpus
    network: Network
    cpu: Cpu
    memory: Memory
    io_uring: str | None
    """None where a ring can be set up, else why not."""
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
