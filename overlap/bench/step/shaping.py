"""This engine's communicators, kept to a rate: the fallback where the kernel cannot limit the links."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from overlap.comm.collective import Communicator
from overlap.comm.groups import transport
from overlap.comm.shaped import ShapedCommunicator


@contextmanager
def keeping_to(bytes_per_second: float | None) -> Iterator[None]:
    """Let communicators that are opened within the block last as long as their bytes take; None limits nothing."""
    if bytes_per_second is None:
        yield
        return

    def shaped(lane: str, ranks: Sequence[int], usual: Callable[[], Communicator]) -> Communicator:
        return ShapedCommunicator(usual(), bytes_per_second=bytes_per_second)

    with transport(shaped):
        yield
