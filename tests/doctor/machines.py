"""Machines to put before the checks."""

from dataclasses import replace

from overlap.doctor.facts import Cpu, Facts, Gpu, Gpus, Memory, Network, Software

GIB = 1 << 30
H100 = Gpu(name="H100", memory_bytes=80 * GIB, capability=(9, 0))


def gpu_host(**environment: str) -> Facts:
    """Eight H100 under NVLink, with everything as it should be."""
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    return Facts(
        environment=environment,
        software=Software(
            overlap="0.1.0",
            python=(3, 12, 1),
            torch="2.13.0+cu130",
            cuda="13.0",
            nccl="2.28.3",
            gloo=True,
            triton="3.7.0",
            native=True,
            shared=True,
            fatbin=True,
            cpu_face="native",
            cuda_face="cuda",
        ),
        gpus=Gpus(seen=(H100,) * 8, installed=8, links=dict.fromkeys(pairs, "NV18")),
        network=Network(
            interfaces={"lo": "127.0.0.1", "eth0": "10.0.0.7", "ib0": "10.1.0.7", "docker0": "172.17.0.1"},
            hostname="node7",
            hostname_address="10.0.0.7",
            infiniband=("mlx5_0",),
        ),
        cpu=Cpu(cores=128, allowed=128, quota=None, threads=8, ranks=8),
        memory=Memory(locked_limit=None, shm_bytes=64 * GIB, huge_pages="always"),
        io_uring=None,
    )


def cpu_host(**environment: str) -> Facts:
    """Four cores, three of them for compute."""
    healthy = gpu_host(**environment)
    return replace(
        healthy,
        software=replace(healthy.software, torch="2.13.0+cpu", cuda=None, nccl=None, cuda_face=None),
        gpus=Gpus(),
        network=replace(healthy.network, infiniband=()),
        cpu=Cpu(cores=4, allowed=4, quota=None, threads=3),
    )
