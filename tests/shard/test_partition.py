"""Which modules become units, and which parameters they own."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from torch import nn

from overlap.errors import ConfigError
from overlap.shard.partition import find_units, own_modules, own_parameters


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x):
        return self.mlp(self.attention(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(x)


@pytest.fixture
def model() -> Model:
    return Model()


def names(model: nn.Module, chosen: Collection[nn.Module]) -> list[str]:
    name_of = {module: name for name, module in model.named_modules()}
    return [name_of[module] for module in chosen]


def test_a_class_selects_its_instances_innermost_first(model: Model):
    assert names(model, find_units(model, Block)) == ["blocks.1", "blocks.0"]
    assert names(model, find_units(model, nn.Linear))[0] == "head"


def test_a_class_selects_subclasses_too(model: Model):
    class Special(Block):
        pass

    model.blocks.append(Special())
    assert names(model, find_units(model, Block)) == ["blocks.2", "blocks.1", "blocks.0"]


def test_the_model_itself_is_never_selected(model: Model):
    assert model not in find_units(model, nn.Module)


def test_nested_units_come_innermost_first(model: Model):
    order = names(model, find_units(model, nn.Module))
    assert all(order.index(name) < order.index(name.rpartition(".")[0]) for name in order if "." in name)


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("blocks.*", ["blocks.1", "blocks.0"]),
        ("blocks.0", ["blocks.0"]),
        ("blocks.*.mlp", ["blocks.1.mlp", "blocks.0.mlp"]),
        ("*.[0]", ["blocks.0"]),
        ("h*", ["head"]),
    ],
)
def test_a_pattern_matches_name_part_by_part(model: Model, pattern: str, selected: list[str]):
    assert names(model, find_units(model, pattern)) == selected


@pytest.mark.parametrize(
    ("size", "selected"),
    [
        (96, ["head", "blocks.1", "blocks.0", "embedding"]),
        (95, ["head", "blocks.1.mlp", "blocks.1.attention", "blocks.0.mlp", "blocks.0.attention", "embedding"]),
        (10**9, ["head", "blocks.1", "blocks.0", "embedding"]),
        (39, ["blocks.1.mlp.2", "blocks.1.attention", "blocks.0.mlp.2", "blocks.0.attention"]),
    ],
)
def test_a_size_selects_the_largest_modules_within_it(model: Model, size: int, selected: list[str]):
    """Containers without a forward are looked into, never selected."""
    assert names(model, find_units(model, size)) == selected


def test_several_rules_select_what_any_of_them_does(model: Model):
    chosen = names(model, find_units(model, (Block, "blocks.0.mlp", "blocks.*")))
    assert chosen == ["blocks.1", "blocks.0.mlp", "blocks.0"]


@pytest.mark.parametrize("rule", [(Block, "nobody"), [nn.Conv2d, Block]])
def test_each_of_several_rules_must_select_something(model: Model, rule: object):
    with pytest.raises(ConfigError, match=r"unit must select at least one module, but got .*(nobody|Conv2d)"):
        find_units(model, rule)


@pytest.mark.parametrize("rule", [nn.Conv2d, "layers.*", "blocks.*.mlp.*.*", 3])
def test_a_rule_that_selects_nothing_is_refused(model: Model, rule: object):
    with pytest.raises(ConfigError, match=r"unit must select at least one module.*classes here are .*Block"):
        find_units(model, rule)


@pytest.mark.parametrize("rule", [0, -1, True, 1.5, None, int])
def test_other_rules_are_refused(model: Model, rule: object):
    with pytest.raises(ConfigError, match="unit must be a module class, a name pattern or a positive size"):
        find_units(model, rule)


def test_own_modules_end_where_another_unit_starts(model: Model):
    blocks = set(model.blocks)
    assert [name for name, _ in own_modules(model, blocks.__contains__)] == ["", "embedding", "blocks", "head"]
    inside = [name for name, _ in own_modules(model.blocks[0], blocks.__contains__)]
    assert inside == ["", "attention", "mlp", "mlp.0", "mlp.1", "mlp.2"]


def test_own_parameters_come_in_registration_order(model: Model):
    block = model.blocks[0]
    found = own_parameters(block, lambda module: False)
    assert list(found) == list(block.parameters())
    assert [name for name, _ in found.values()] == [name for name, _ in block.named_parameters()]


def test_a_tied_parameter_is_found_once_with_all_its_owners(model: Model):
    found = own_parameters(model, set(model.blocks).__contains__)
    assert list(found) == [model.embedding.weight]
    name, owners = found[model.embedding.weight]
    assert name == "embedding.weight"
    assert [owner.attribute for owner in owners] == ["weight", "weight"]
    for owner, module in zip(owners, (model.embedding, model.head), strict=True):
        owner.table["weight"] = replacement = nn.Parameter(model.embedding.weight.detach() + 1)
        assert module.weight is replacement


def test_parameters_that_are_none_have_no_owner(model: Model):
    assert model.head.bias is None
    assert [name for name, _ in own_parameters(model.head, lambda module: False).values()] == ["weight"]
