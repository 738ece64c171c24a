"""Slots: typed views of one piece of memory."""

from __future__ import annotations

import pytest
import torch

from overlap.shard.slot import ALIGN_BYTES, Slot, aligned_bytes

CPU = torch.device("cpu")


def test_a_slot_starts_as_zeros():
    slot = Slot(1024, CPU)
    assert slot.nbytes == 1024
    assert not slot.buffer.any()


def test_views_share_its_memory_from_a_byte_offset():
    slot = Slot(1024, CPU)
    slot.view(512, 4, torch.float32).fill_(1.0)
    assert slot.buffer.view(torch.float32).nonzero().flatten().tolist() == [128, 129, 130, 131]


def test_writing_through_one_view_does_not_bump_the_version_of_another():
    slot = Slot(1024, CPU)
    saved, written = slot.view(0, 4, torch.float32), slot.view(0, 4, torch.float32)
    before = saved._version
    written.fill_(1.0)
    assert saved._version == before
    assert saved.tolist() == [1.0] * 4


@pytest.mark.parametrize(("nbytes", "room"), [(0, 0), (1, 256), (256, 256), (257, 512), (2**33 + 1, 2**33 + 256)])
def test_starts_are_aligned(nbytes: int, room: int):
    assert aligned_bytes(nbytes) == room
    assert room % ALIGN_BYTES == 0
