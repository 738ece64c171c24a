"""What a sharded model shows to optimizers, checkpoints and user code."""

import pytest
import torch
from support.clear_error import clear_error
from support.models import SMALL, VOCAB, WIDTH, Block, Model, loss_of, seeded
from support.pair import Pair, assert_same_bits, sgd, shard_blocks, whole
from support.ranks import Ranks
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

import overlap

STAGES = (0, 1, 2, 3)


def _bottom_up(model: Model) -> Model:
    for block in model.blocks:
        overlap.fully_shard(block, replicate_max_numel=SMALL)
    return overlap.fully_shard(model, replicate_max_numel=SMALL)


def _shows_rows(stage: int) -> None:
    plain, model = seeded(), shard_blocks(seeded(), stage=stage)
    for name, param in model.named_parameters():
        whole_param = plain.get_parameter(name)
        small = whole_param.numel() <= SMALL or stage == 0
        assert isinstance(param, DTensor)
        assert isinstance(param, nn.Parameter)
        assert param.placements == ((Replicate() if small else Shard(0)),), name
        assert param.shape == whole_param.shape
        assert param.dtype is torch.float32
        assert param.is_leaf


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_are_rows_or_replicas(ranks: Ranks, stage: int) -> None:
    ranks(2, _shows_rows, stage)


def _keeps_values(world: int) -> None:
    model = shard_blocks(seeded())
    assert_same_bits(whole(model), whole(seeded()))
    rows = sum(param.to_local().shape[0] for name, param in model.named_parameters() if name == "head.weight")
    assert rows == len(torch.arange(VOCAB).chunk(world)[torch.distributed.get_rank()])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_full_tensors_are_the_initial_weights(ranks: Ranks, world: int) -> None:
    ranks(world, _keeps_values, world)


def _keeps_identities(stage: int) -> None:
    pair = Pair(stage=stage)
    before = dict(pair.model.named_parameters())
    for _ in range(3):
        pair.step()
        with torch.no_grad():
            loss_of(pair.model, pair.rank, 0)
        after = dict(pair.model.named_parameters())
        assert [*map(id, after.values())] == [*map(id, before.values())]


@pytest.mark.parametrize("stage", [1, 3])
def test_parameters_stay_the_same_objects(ranks: Ranks, stage: int) -> None:
    ranks(2, _keeps_identities, stage)


def _shows_whole_ones_inside(stage: int) -> None:
    model = shard_blocks(seeded(), stage=stage)
    met = {}

    def look(module: nn.Module, args: object) -> None:
        met[module] = module.weight

    for module in (model.embedding, model.blocks[1].up, model.head):
        module.register_forward_pre_hook(look)
    loss_of(model, 0, 0).backward()
    assert [type(weight) for weight in met.values()] == [nn.Parameter] * 3
    assert [tuple(weight.shape) for weight in met.values()] == [(VOCAB, WIDTH), (37, WIDTH), (VOCAB, WIDTH)]
    assert all(isinstance(module.weight, DTensor) for module in met)


@pytest.mark.parametrize("stage", [1, 3])
def test_forward_sees_whole_plain_parameters(ranks: Ranks, stage: int) -> None:
    ranks(2, _shows_whole_ones_inside, stage)


def _keeps_attributes() -> None:
    model = seeded()
    model.head.weight.no_decay = True
    model.blocks[0].up.bias.group = "small"
    shard_blocks(model)
    loss_of(model, 0, 0).backward()
    assert model.head.weight.no_decay is True
    assert model.blocks[0].up.bias.group == "small"


def test_user_attributes_of_parameters_survive(ranks: Ranks) -> None:
    ranks(2, _keeps_attributes)


def _keeps_classes() -> None:
    model = shard_blocks(seeded())
    assert isinstance(model, FSDPModule)
    assert isinstance(model, overlap.ShardedModule)
    assert isinstance(model, Model)
    assert all(isinstance(block, FSDPModule) and isinstance(block, Block) for block in model.blocks)
    assert not isinstance(model.head, FSDPModule)


def test_units_are_fsdp_modules_and_keep_their_class(ranks: Ranks) -> None:
    ranks(2, _keeps_classes)


def _keeps_names(tied: bool) -> None:
    names = list(seeded(tied=tied).state_dict())
    params = [name for name, _ in seeded(tied=tied).named_parameters()]
    for model in (shard_blocks(seeded(tied=tied)), _bottom_up(seeded(tied=tied))):
        assert list(model.state_dict()) == names
        assert [name for name, _ in model.named_parameters()] == params
        units = overlap.engine_of(model).units
        assert sorted(param.fqn for unit in units for param in unit.params) == sorted(params)
        assert sorted(unit.name for unit in units) == ["", "blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.parametrize("tied", [False, True])
def test_names_are_those_of_the_plain_model(ranks: Ranks, tied: bool) -> None:
    ranks(2, _keeps_names, tied)


def _loads_a_sharded_state_dict() -> None:
    model, other = shard_blocks(seeded(0)), shard_blocks(seeded(1))
    other.load_state_dict(model.state_dict())
    assert_same_bits(whole(other), whole(model))
    assert torch.equal(loss_of(other, 0, 0), loss_of(model, 0, 0))


def test_a_loaded_state_dict_is_what_forward_uses(ranks: Ranks) -> None:
    ranks(2, _loads_a_sharded_state_dict)


def _both_ways_train_alike() -> None:
    trained = []
    for model in (shard_blocks(seeded()), _bottom_up(seeded())):
        update = sgd(model.parameters())
        for step in range(3):
            loss_of(model, torch.distributed.get_rank(), step).backward()
            update.step()
            update.zero_grad()
        trained.append(whole(model))
    assert_same_bits(*trained)


def test_one_call_and_bottom_up_train_alike(ranks: Ranks) -> None:
    ranks(2, _both_ways_train_alike)


def _trains_tied(stage: int) -> None:
    pair = Pair(stage=stage, traits={"tied": True}, poison=True)
    assert pair.model.head.weight is pair.model.embedding.weight
    for _ in range(4):
        pair.step()
    assert pair.model.head.weight is pair.model.embedding.weight
    pair.check()


@pytest.mark.parametrize("stage", STAGES)
def test_tied_weights_stay_tied_and_train_as_in_one_process(ranks: Ranks, stage: int) -> None:
    ranks(2, _trains_tied, stage)


UNSUPPORTED = ("set_custom_all_gather", "set_all_reduce_hook", "set_unshard_in_backward")


def _refuses_by_name() -> None:
    model = shard_blocks(seeded())
    for name in UNSUPPORTED:
        with clear_error(overlap.StateError, f"{name}()"):
            getattr(model, name)()


def test_methods_that_only_fsdp2_has_are_refused_by_name(ranks: Ranks) -> None:
    ranks(2, _refuses_by_name)


def _no_method_is_inherited() -> None:
    model = shard_blocks(seeded())
    for name in vars(FSDPModule):
        if not name.startswith("_"):
            assert getattr(type(model), name) is not getattr(FSDPModule, name), name


def test_no_public_method_reaches_into_fsdp2s_own_state(ranks: Ranks) -> None:
    ranks(1, _no_method_is_inherited)
