"""How the compiled kernels are reached: the package's own launcher, else CuPy."""

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor

from overlap.errors import StateError, message
from overlap.ops.image import IMAGE, image

DRIVER = "libcuda.so.1"


class Route(Protocol):
    """Launches kernels by name. Addresses are of memory on the device, but for ``words`` and ``rows``: host tables."""

    def load(self, device: int, /) -> None:
        """Load the kernels on a device, so that what may fail fails now."""

    def move(
        self,
        kernel: str,
        device: int,
        stream: int,
        words: int,
        count: int,
        first: int,
        regions: int,
        dims: int,
        blocks: int,
        block_count: int,
        world: int,
        bucket: int,
        width: int,
        scale: float,
        /,
    ) -> None:
        """Run a ``pack`` or ``unpack`` kernel on ``count`` regions from ``first`` on."""

    def reduce_sum(
        self,
        kernel: str,
        device: int,
        stream: int,
        rows: int,
        count: int,
        start: int,
        out: int,
        partial: int,
        size: int,
        scale: float,
        accumulate: bool,
        /,
    ) -> None:
        """Sum ``count`` rows after ``start`` (0: from nothing); sums of squares go to ``partial`` (0: none)."""

    def sum_squares(self, kernel: str, device: int, stream: int, grad: int, partial: int, size: int, /) -> None:
        """Write one sum of squares per tile."""

    def finish(self, device: int, stream: int, partial: int, out: int, tiles: int, accumulate: bool, /) -> None:
        """Add the tiles' sums."""


def available() -> bool:
    """Return whether these kernels run on torch's current device. Asked once."""
    return why_not() is None


@lru_cache(maxsize=1)
def why_not() -> str | None:
    """Return what keeps these kernels from running, or None."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        current().load(torch.cuda.current_device())
    except (RuntimeError, ImportError) as error:
        return str(error)
    return None


@lru_cache(maxsize=1)
def current() -> Route:
    """Return the route of this process.

    Raises:
        StateError: the package was built without nvcc, or there is nothing to launch with.
        RuntimeError: no driver, or one that cannot be used.
    """
    fatbin = image()
    if fatbin is None:
        cure = "reinstall where nvcc is found, or let Triton serve"
        raise StateError(message(f"overlap/{IMAGE}", "be installed", "no such file", cure))
    if find_spec("overlap._cuda") is not None:
        return cast(Route, import_module("overlap._cuda").Launcher(DRIVER, str(fatbin)))
    if find_spec("cupy") is not None:
        return cast(Route, import_module("overlap.ops.cuda_face.cupy_route").CupyRoute(fatbin))
    cure = "reinstall where a C++ compiler is found, install cupy, or let Triton serve"
    raise StateError(message("overlap._cuda or cupy", "be installed", "neither", cure))


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Return device index and stream of a launch on ``tensor``; (0, 0) on the CPU, where tests run a driver."""
    if not tensor.is_cuda:
        return 0, 0
    device = tensor.get_device()
    return device, torch.cuda.current_stream(device).cuda_stream
