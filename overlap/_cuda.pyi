"""Signatures of csrc/cuda/bind_launcher.cpp; what they mean: ``overlap.ops.cuda_face.routes.Route``."""

THREADS: int
BLOCK: int
TILE: int
CAPACITY: int

class Launcher:
    def __init__(self, library: str, image: str) -> None: ...
    def load(self, device: int) -> None: ...
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
    ) -> None: ...
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
    ) -> None: ...
    def sum_squares(self, kernel: str, device: int, stream: int, grad: int, partial: int, size: int, /) -> None: ...
    def finish(self, device: int, stream: int, partial: int, out: int, tiles: int, accumulate: bool, /) -> None: ...
