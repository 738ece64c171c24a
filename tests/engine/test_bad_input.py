"""What cannot work is refused at once: which rule, which value, what to do."""

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.clear_error import GRAMMAR, clear_error
from support.models import Block, Model, loss_of, seeded
from support.pair import shard_blocks
from support.ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import overlap

WRONG_OPTIONS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"stage": 4}, ("stage", "0, 1, 2, 3", "4")),
    ({"stage": True}, ("stage", "True")),
    ({"preftech": 2}, ("option", "preftech", "did you mean 'prefetch'?")),
    ({"prefetch": 0}, ("prefetch", "at least 1", "0")),
    ({"bucket_bytes": 1.5}, ("bucket_bytes", "integer", "1.5")),
    ({"replicate_max_numel": -1}, ("replicate_max_numel", "-1")),
    ({"param_dtype": torch.int8}, ("param_dtype", "torch.int8")),
    ({"reduce_dtype": None}, ("reduce_dtype", "None")),
    ({"init": "copy"}, ("init", "broadcast, verify", "copy")),
    ({"lanes": "thread"}, ("lanes", "auto, inline", "thread")),
    ({"timeout_s": 0}, ("timeout_s", "above 0", "0")),
)


@pytest.mark.parametrize(("options", "words"), WRONG_OPTIONS, ids=lambda value: next(iter(value)))
def test_wrong_options_are_refused_before_anything_else(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with clear_error(overlap.ConfigError, *words):
        overlap.fully_shard(seeded(), **options)


@pytest.mark.parametrize("not_a_module", ["model", None, nn.Linear, torch.zeros(3)])
def test_only_modules_are_sharded(not_a_module: Any) -> None:
    for refuse in (overlap.fully_shard, overlap.shard):
        with clear_error(overlap.ConfigError, "module", "torch.nn.Module", type(not_a_module).__name__):
            refuse(not_a_module)


WRONG_UNITS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (nn.Conv2d, ("unit", "at least one module", "Conv2d", "Block")),
    ("layers.*", ("unit", "layers.*", "Block")),
    (1, ("unit", "at least one module", "1")),
    (0, ("unit", "positive size", "0")),
    ([Block, "layers.*"], ("unit", "at least one module", "layers.*", "Block")),
    ([], ("unit", "module class", "[]")),
    ({Block}, ("unit", "module class", "Block")),
)


@pytest.mark.parametrize(
    ("unit", "words"), WRONG_UNITS, ids=["class", "pattern", "too small", "zero", "one of a list", "empty", "set"]
)
def test_a_unit_rule_that_selects_nothing_is_refused(unit: Any, words: tuple[str, ...]) -> None:
    with clear_error(overlap.ConfigError, *words):
        overlap.shard(seeded(), unit=unit)


def test_a_plain_module_has_no_engine() -> None:
    with clear_error(overlap.StateError, "module", "be sharded", "Model"):
        overlap.engine_of(seeded())


def test_without_launcher_and_process_group_the_missing_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with clear_error(overlap.StateError, "torch.distributed", "RANK, WORLD_SIZE, MASTER_ADDR not set", "torchrun"):
        overlap.fully_shard(seeded())


def _refuses_twice() -> None:
    model = shard_blocks(seeded())
    for again in (model, model.blocks[0]):
        with clear_error(overlap.StateError, "module", "sharded once", type(again).__name__):
            overlap.fully_shard(again)
    outer = nn.Sequential(model)
    with clear_error(overlap.StateError, "sharded once"):
        overlap.shard(outer, unit=Model)


def test_a_module_is_sharded_once(ranks: Ranks) -> None:
    ranks(1, _refuses_twice)


def _refuses_dtensors() -> None:
    model = nn.Sequential(nn.Linear(300, 300))
    torch.distributed.fsdp.fully_shard(model[0])
    with clear_error(overlap.StateError, "'0.weight'", "DTensor", "once"):
        overlap.fully_shard(model)


def test_parameters_that_are_dtensors_already_are_refused_by_name(ranks: Ranks) -> None:
    ranks(2, _refuses_dtensors)


def _refuses_meshes() -> None:
    with clear_error(overlap.ConfigError, "mesh", "one dimension", "3 dimensions"):
        overlap.fully_shard(seeded(), mesh=init_device_mesh("cpu", (1, 1, 2)))
    with clear_error(overlap.ConfigError, "mesh", "ascending", "[1, 0]"):
        overlap.fully_shard(seeded(), mesh=DeviceMesh("cpu", [1, 0]))


def test_meshes_that_cannot_be_followed_are_refused(ranks: Ranks) -> None:
    ranks(2, _refuses_meshes)


def _refuses_a_mesh_without_this_rank() -> None:
    mesh = DeviceMesh("cpu", [0])
    if dist.get_rank() == 1:
        with clear_error(overlap.ConfigError, "mesh", "contain this rank", "rank 1"):
            overlap.fully_shard(seeded(), mesh=mesh)


def test_a_mesh_without_this_rank_is_refused(ranks: Ranks) -> None:
    ranks(2, _refuses_a_mesh_without_this_rank)


def _wider_on_rank_1(model: Model) -> None:
    model.head = nn.Linear(16, 257 + dist.get_rank())


def _another_dtype_on_rank_1(model: Model) -> None:
    if dist.get_rank() == 1:
        model.blocks[0].norm.bfloat16()


def _one_more_on_rank_1(model: Model) -> None:
    if dist.get_rank() == 1:
        model.blocks[1].extra = nn.Parameter(torch.zeros(3))


def _refuses_other_models() -> None:
    for change, word in {
        _wider_on_rank_1: "head.weight (25",
        _another_dtype_on_rank_1: "norm.weight (16,)",
        _one_more_on_rank_1: "extra",
    }.items():
        model = seeded()
        change(model)
        with clear_error(overlap.DesyncError, "rank", "parameters and options", word):
            shard_blocks(model)
    with clear_error(overlap.DesyncError, "stage 2", "stage 3"):
        shard_blocks(seeded(), stage=2 + dist.get_rank())


def test_ranks_with_other_models_or_options_are_named(ranks: Ranks) -> None:
    ranks(2, _refuses_other_models)


def _refuses_mixed_options() -> None:
    for name, value in {"stage": 1, "replicate_max_numel": 9}.items():
        model = seeded()
        overlap.fully_shard(model.blocks[1], **{name: value})
        overlap.fully_shard(model)
        with clear_error(overlap.ConfigError, name, "'blocks.1'", str(value)):
            loss_of(model, 0, 0)


def test_options_that_concern_the_whole_model_are_the_same_in_all_units(ranks: Ranks) -> None:
    ranks(1, _refuses_mixed_options)


def _refuses_unrecorded() -> None:
    with clear_error(overlap.StateError, "timeline", "timeline=True"):
        _ = overlap.engine_of(shard_blocks(seeded())).timeline


def test_a_timeline_that_was_not_recorded_is_refused(ranks: Ranks) -> None:
    ranks(1, _refuses_unrecorded)


def _is_out_of_step() -> str:
    """Without a plan yet, rank 1 leaves a block out whose rows rank 0 waits for."""
    model = shard_blocks(seeded())
    with pytest.raises(overlap.DesyncError) as caught:
        loss_of(model, 0, 0, (0, 1, 2) if dist.get_rank() == 0 else (0, 2)).backward()
    return str(caught.value)


def test_ranks_whose_first_passes_differ_get_an_error_instead_of_a_hang(ranks: Ranks) -> None:
    for rank, text in enumerate(ranks.fresh(2, _is_out_of_step, group_timeout_s=2.0)):
        assert re.fullmatch(GRAMMAR, text), text
        assert f"rank {1 - rank} in " in text


def test_a_container_without_forward_is_no_unit() -> None:
    with clear_error(overlap.ConfigError, "forward", "ModuleList"):
        overlap.fully_shard(nn.ModuleList([nn.Linear(4, 4)]))
