"""Units and flats in memory: slots, pieces, the two faces, and when a shard is out of date."""

from __future__ import annotations

import gc

import pytest
import torch
from shard.flats import make_flat, make_unit, values

from overlap.errors import StateError
from overlap.shard.flat import Flat, home_of
from overlap.shard.slot import ALIGN_BYTES, Slot, aligned_bytes
from overlap.shard.unit import Unit

SHAPES = [(9, 5), (7,), (12, 3)]


def placed(*flats: Flat) -> Unit:
    unit = make_unit("block", *flats)
    unit.place(Slot(unit.slot_bytes, torch.device("cpu")) if unit.slot_bytes else None)
    return unit


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, 0, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_all_ranks_give_makes_up_the_full_parameters(world: int, dtype: torch.dtype, dims: tuple[int, ...]):
    full = values(*SHAPES)
    ranks = [make_flat(full, world=world, rank=rank, compute_dtype=dtype, dims=dims) for rank in range(world)]
    for flat in ranks:
        flat.refresh_shard()
    units = [placed(flat) for flat in ranks]
    for unit in units:
        for number, piece in enumerate(unit.pieces):
            for theirs, part in zip(units, piece.full.chunk(world), strict=True):
                part.copy_(theirs.pieces[number].local)
        for param, expected in zip(unit.params, full, strict=True):
            assert torch.equal(param.working, expected.to(dtype))


def test_bytes_of_slot_and_gather():
    unit = make_unit("u", make_flat(values((9, 5), (7,)), world=2), make_flat(values((3,)), world=1))
    assert unit.slot_bytes == aligned_bytes(4 * (128 + 128))
    assert unit.gather_bytes == 4 * (25 + 4)
    assert unit.slot_bytes % ALIGN_BYTES == 0


def test_flats_share_a_slot_behind_each_other():
    flats = [make_flat(values((8, 8)), world=2), make_flat(values((8, 8)), world=2, trainable=False)]
    unit = placed(*flats)
    first, second = (piece.full for piece in unit.pieces)
    assert second.data_ptr() - first.data_ptr() == unit.slot_bytes // 2


def test_replicated_parameters_compute_in_their_flat():
    flat = make_flat(values((3,)), world=1)
    unit = placed(flat)
    assert unit.pieces == ()
    assert unit.params[0].working.data_ptr() == flat.shard.data_ptr()


def test_a_working_parameter_survives_a_move():
    unit = placed(make_flat(values((8, 8)), world=2))
    (before,) = (param.working for param in unit.params)
    slot = Slot(unit.slot_bytes, torch.device("cpu"))
    unit.place(slot)
    assert unit.params[0].working is before
    assert before.data_ptr() == slot.buffer.data_ptr()


def test_a_gather_is_no_in_place_change_for_autograd():
    unit = placed(make_flat(values((8, 8)), world=2))
    weight = unit.params[0].working
    before = weight._version
    unit.pieces[0].full.fill_(1)
    assert weight._version == before
    assert weight[0, 0] == 1


def test_faces_are_shown_to_every_owner():
    unit = placed(make_flat(values((8, 8)), world=2))
    (param,) = unit.params
    (owner,) = param.owners
    unit.show_working()
    assert owner.table[owner.attribute] is param.working
    unit.show_public()
    assert owner.table[owner.attribute] is param.public


def test_a_public_parameter_knows_its_home():
    flat = make_flat(values((8, 8)), world=2)
    home = home_of(flat.params[0].public)
    assert (home.flat, home.param) == (flat, flat.params[0])
    assert home_of(torch.nn.Parameter(torch.zeros(1))) is None


def test_a_shard_is_refreshed_when_a_parameter_has_changed_and_only_then():
    flat = make_flat(values((8, 8)), world=2, compute_dtype=torch.bfloat16)
    assert flat.refresh_shard()
    assert not flat.refresh_shard()
    with torch.no_grad():
        flat.params[0].public.add_(1)
    assert flat.refresh_shard()
    assert torch.equal(flat.shard, flat.master.bfloat16())
    assert not flat.refresh_shard()


def test_changes_behind_the_version_counters_are_told():
    flat = make_flat(values((8, 8)), world=2)
    assert flat.changed()
    flat.refresh_shard()
    assert not flat.changed()
    flat.mark_changed()
    assert flat.changed()
    assert flat.refresh_shard()


def test_a_parameter_put_in_place_of_ours_is_refused():
    unit = placed(make_flat(values((8, 8)), world=2))
    unit.check_faces()
    (owner,) = unit.params[0].owners
    owner.table[owner.attribute] = torch.nn.Parameter(torch.zeros(8, 8))
    with pytest.raises(StateError, match="parameter 'p0' must stay the object that sharding made"):
        unit.check_faces()


def test_freezing_reaches_the_working_parameter_and_back():
    unit = placed(make_flat(values((8, 8)), world=2))
    (param,) = unit.params
    for trained in (False, True):
        param.public.requires_grad_(trained)
        unit.check_faces()
        assert param.working.requires_grad is trained


def test_a_flat_of_frozen_parameters_thaws_when_one_is_to_be_trained():
    flat = make_flat(values((8, 8), (8, 8)), world=2, trainable=False)
    unit = placed(flat)
    assert unit.thawing == []
    unit.params[0].public.requires_grad_()
    assert unit.thawing == [flat]
    flat.thaw()
    assert unit.thawing == []
    assert flat.key.trainable
    assert all(param.trainable for param in flat.params)


def test_a_home_goes_with_its_flat():
    flat = make_flat(values((8, 8)), world=2)
    public = flat.params[0].public
    del flat
    gc.collect()
    assert home_of(public) is None


def test_a_fused_update_makes_gathered_parameters_old_once():
    flat = make_flat(values((8, 8)), world=2)
    flat.refresh_shard()
    flat.updated = True
    assert flat.refresh_shard()
    assert not flat.refresh_shard()


def test_in_fp32_the_shard_is_the_master():
    assert (flat := make_flat(values((8, 8)), world=2)).shard is flat.master
