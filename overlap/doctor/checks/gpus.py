"""Devices, and whether they can read each other's memory."""

from collections.abc import Iterator

from overlap.doctor.facts import Facts, Gpus
from overlap.doctor.finding import Finding, note, ok, warning


def check(facts: Facts) -> Iterator[Finding]:
    """Devices that torch sees, those it does not, peer access and NVLink."""
    gpus = facts.gpus
    if not gpus.seen:
        yield note("GPUs", "none that torch sees", "lanes are CPU threads here, and collectives go over gloo")
        return
    for index, gpu in enumerate(gpus.seen):
        capability = "{}.{}".format(*gpu.capability)
        yield ok(f"GPU {index}", f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, compute capability {capability}")
    if gpus.installed > len(gpus.seen):
        value = f"{gpus.installed} in the driver, {len(gpus.seen)} seen"
        yield note("GPUs", value, "CUDA_VISIBLE_DEVICES or the container hides the others")
    if len(gpus.seen) > 1:
        yield _peers(gpus)
        yield from _links(gpus)


def _peers(gpus: Gpus) -> Finding:
    if not gpus.no_peer:
        return ok("peer access", "between all GPUs")
    first = "{} -> {}".format(*gpus.no_peer[0])
    value = f"missing for {len(gpus.no_peer)} pair(s), such as {first}"
    why = "NCCL then stages every transfer between them in host memory"
    return warning("peer access", value, why, "switch off ACS and the IOMMU for these devices (nvidia-smi topo -p2p r)")


def _links(gpus: Gpus) -> Iterator[Finding]:
    if not gpus.links:
        return
    kinds = sorted(set(gpus.links.values()))
    if all(kind.startswith("NV") for kind in kinds):
        yield ok("links", ", ".join(kinds))
        return
    why = "over PCIe a gather takes several times as long as over NVLink, and may not fit under compute"
    cure = "run `overlap bench collective` here and choose bucket and prefetch by it"
    yield note("links", ", ".join(kinds), why, cure)
