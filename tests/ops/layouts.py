"""Tensors of every shape and layout that a gradient or a weight may have."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from overlap.ops import PackSlot

LAYOUTS = ("contiguous", "shifted", "permuted", "channels last", "every other", "expanded")


@st.composite
def laid_out(draw: st.DrawFn, device: torch.device, dtype: torch.dtype, *, expanded: bool, most: int) -> Tensor:
    """A tensor of up to four dimensions whose elements lie in memory as one of ``LAYOUTS``."""
    kinds = LAYOUTS if expanded else LAYOUTS[:-1]
    kind = draw(st.sampled_from(kinds))
    rank = 4 if kind == "channels last" else draw(st.integers(0, 4))
    side = max(2, int(most ** (1 / max(rank, 1))))
    shape = [draw(st.integers(1, side) | st.sampled_from([1, 2, side])) for _ in range(rank)]
    if rank and draw(st.integers(0, 19)) == 0:
        shape[0] = 0
    return arranged(kind, shape, device, dtype, draw(st.permutations(range(rank))))


def arranged(kind: str, shape: list[int], device: torch.device, dtype: torch.dtype, order: list[int]) -> Tensor:
    """Normal values in the given shape; ``order`` are the dimensions from outermost to innermost in memory."""
    rank = len(shape)
    if kind == "shifted":
        return _normal([torch.Size(shape).numel() + 3], device, dtype)[3:].view(shape)
    if kind == "permuted":
        inverse = [order.index(dim) for dim in range(rank)]
        return _normal([shape[dim] for dim in order], device, dtype).permute(inverse)
    if kind == "channels last":
        return _normal(shape, device, dtype).contiguous(memory_format=torch.channels_last)
    if kind == "every other" and rank:
        return _normal([*shape[:-1], 2 * shape[-1]], device, dtype)[..., ::2]
    if kind == "expanded" and rank:
        return _normal([1 if dim == order[0] else size for dim, size in enumerate(shape)], device, dtype).expand(shape)
    return _normal(shape, device, dtype)


def _normal(shape: list[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype).to(device)


@st.composite
def slots_for(draw: st.DrawFn, numels: list[int], world: int) -> tuple[tuple[PackSlot, ...], int]:
    """Slots in any order with gaps and spare columns between them, and the width of the bucket."""
    places: dict[int, PackSlot] = {}
    offset = draw(st.integers(0, 5))
    for index in draw(st.permutations(range(len(numels)))):
        chunk = -(-numels[index] // world) + draw(st.sampled_from([0, 0, 0, 1, 5]))
        places[index] = PackSlot(offset, chunk, numels[index])
        offset += chunk + draw(st.sampled_from([0, 0, 1, 3, 8]))
    return tuple(places[index] for index in range(len(numels))), offset


def packed_slots(
    shapes: list[tuple[int, ...]], world: int, *, align: int = 8, gap: int = 0
) -> tuple[tuple[PackSlot, ...], int]:
    """Slots as an engine lays them out: each gradient's rows padded to ``align``; and the width of the bucket."""
    slots, offset = [], gap
    for shape in shapes:
        numel = torch.Size(shape).numel()
        chunk = -(-numel // world)
        slots.append(PackSlot(offset, chunk, numel))
        offset += -(-chunk // align) * align + gap
    return tuple(slots), offset
