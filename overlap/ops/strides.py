"""How few dimensions a view needs: what every kernel that walks one divides by."""

from functools import lru_cache


@lru_cache(maxsize=4096)
def merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return ``(size, stride)``, outermost first; neighbours that one stride walks are one, size 1 drops out."""
    kept: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if kept and kept[-1][1] == size * stride:
            size *= kept.pop()[0]
        kept.append((size, stride))
    return tuple(kept)
