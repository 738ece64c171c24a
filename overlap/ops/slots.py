"""Where each gradient lies inside a rank-major bucket ``[world, width]``, and the gaps between them.

    columns   0      offset_0             offset_1                  width
    row 0     | gap  | grad 0 [0:c)  |pad | grad 1 [0:c')           |
    row 1     | gap  | grad 0 [c:2c) |pad | grad 1 [c':numel) |zero |
              region -1   region 0            region 1

A *region* is a slot plus everything up to the next slot: the regions tile the row, so a kernel that
fills every region has written every element of the bucket.
"""

from functools import lru_cache
from typing import NamedTuple

from overlap.errors import ConfigError, message


class PackSlot(NamedTuple):
    """The place of one gradient: element ``k`` goes to ``bucket[k // chunk, offset + k % chunk]``."""

    offset: int
    """First column of the slot, in elements."""
    chunk: int
    """Elements of this gradient in one row (one rank's rows, padded); ``chunk * world >= numel``."""
    numel: int
    """Elements of the whole gradient; may be 0."""


class Region(NamedTuple):
    """Columns ``[offset, end)`` of every row, and the gradient that fills the front of them."""

    grad: int
    """Index into the gradients, or -1 for the gap before the first slot."""
    offset: int
    end: int
    chunk: int
    numel: int


@lru_cache(maxsize=1024)
def regions(slots: tuple[PackSlot, ...], world: int, width: int) -> tuple[Region, ...]:
    """Tile the row ``[0, width)`` by the slots, in column order. Cached: a bucket is packed every step.

    Raises:
        ConfigError: a slot is no ``PackSlot`` of ints, overlaps its neighbour, leaves the bucket, or is too small for
            its gradient.
    """
    for index, slot in enumerate(slots):
        check_kind(index, slot)
    order = sorted(range(len(slots)), key=lambda index: (slots[index].offset, slots[index].chunk))
    tiled: list[Region] = []
    end = width
    for index in reversed(order):
        slot = slots[index]
        _check_slot(index, slot, world, end)
        tiled.append(Region(index, slot.offset, end, slot.chunk, slot.numel))
        end = slot.offset
    if end > 0:
        tiled.append(Region(-1, 0, end, 0, 0))
    return tuple(reversed(tiled))


def check_kind(index: int, slot: object) -> None:
    """Refuse what is no ``PackSlot`` of ints."""
    if not isinstance(slot, PackSlot) or not all(isinstance(word, int) for word in slot):
        raise ConfigError(
            message(f"slots[{index}]", "be a PackSlot of ints", slot, "pass PackSlot(offset, chunk, numel)")
        )


def _check_slot(index: int, slot: PackSlot, world: int, end: int) -> None:
    if min(slot.offset, slot.chunk, slot.numel) < 0 or slot.offset + slot.chunk > end:
        rule = f"lie in columns [0, {end}), before the next slot or the bucket's end"
        raise ConfigError(message(f"slots[{index}]", rule, slot, "lay the slots out without overlap"))
    if slot.chunk * world < slot.numel:
        rule = f"have chunk * {world} rows >= numel"
        raise ConfigError(message(f"slots[{index}]", rule, slot, "raise chunk to ceil(numel / world)"))
