"""The second route to the kernels: CuPy loads the fatbin and launches, arguments packed here as in csrc/cuda."""

from ctypes import string_at
from importlib import import_module
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import numpy as np

from overlap.ops.cuda_face.sizes import CAPACITY, THREADS, TILE


class CupyRoute:
    """``Route`` through ``cupy.RawModule``; imports cupy, which must be able to reach a driver at the first launch."""

    def __init__(self, image: Path) -> None:
        """Prepare to load ``image``."""
        self._cupy: Any = import_module("cupy")
        self._module = self._cupy.RawModule(path=str(image))
        self._kernels: dict[str, Any] = {}

    def load(self, device: int, /) -> None:
        """See ``Route``."""
        with self._cupy.cuda.Device(device):
            self._module.compile()

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
        """See ``Route``."""
        header = pack("=QQQQqfi", regions, blocks, dims, bucket, width, scale, first)
        self._launch(kernel, device, stream, (block_count, world), header + _table(words, count))

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
        """See ``Route``."""
        table = _table(rows, count)
        aligned = all(address % 16 == 0 for address in (out, *unpack_from(f"={count}Q", table)))
        header = pack("=QQQqifii", out, start, partial, size, count, scale, aligned, accumulate)
        self._launch(kernel, device, stream, (_tiles(size),), header + table)

    def sum_squares(self, kernel: str, device: int, stream: int, grad: int, partial: int, size: int, /) -> None:
        """See ``Route``."""
        self._launch(kernel, device, stream, (_tiles(size),), pack("=QQq", grad, partial, size))

    def finish(self, device: int, stream: int, partial: int, out: int, tiles: int, accumulate: bool, /) -> None:
        """See ``Route``."""
        self._launch("finish", device, stream, (1,), pack("=QQqq", partial, out, tiles, accumulate))

    def _launch(self, kernel: str, device: int, stream: int, grid: tuple[int, ...], arguments: bytes) -> None:
        cuda = self._cupy.cuda
        # An array of one element is passed by value, whatever its size.
        by_value = np.frombuffer(arguments, dtype=np.dtype((np.void, len(arguments))))
        with cuda.Device(device), _stream(cuda, stream):
            if kernel not in self._kernels:
                self._kernels[kernel] = self._module.get_function(kernel)
            self._kernels[kernel](grid, (THREADS,), (by_value,))


class _TorchStream:
    """A raw stream in the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def _stream(cuda: Any, handle: int) -> Any:
    if hasattr(cuda.Stream, "from_external"):  # CuPy 14
        return cuda.Stream.from_external(_TorchStream(handle))
    return cuda.ExternalStream(handle)


def _table(address: int, count: int) -> bytes:
    """Return the table as it lies in the arguments, whose size is that of a full one."""
    return string_at(address, 8 * count).ljust(8 * CAPACITY, b"\0")


def _tiles(size: int) -> int:
    return -(-size // TILE)
