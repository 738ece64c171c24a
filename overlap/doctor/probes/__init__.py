"""Reading the system into facts. Nothing here judges, and nothing here changes the system."""

from overlap.config import environment
from overlap.doctor.facts import Facts
from overlap.doctor.probes import gpus, host, io_uring, network, rendezvous, software


def look(ranks: int = 1) -> Facts:
    """Read all facts. A CUDA context is made only where torch sees a GPU.

    Args:
        ranks: of the job on this host.
    """
    variables = environment()
    return Facts(
        environment=variables,
        software=software.look(),
        gpus=gpus.look(),
        network=network.look(),
        cpu=host.look_at_cpu(ranks),
        memory=host.look_at_memory(),
        io_uring=io_uring.why_not(),
        rendezvous=rendezvous.look(variables),
    )
