"""Meta modules get memory and values; what nobody fills is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from overlap.errors import ConfigError
from overlap.shard.materialize import materialize

CPU = torch.device("cpu")


class Block(nn.Module):
    """Owns a parameter and a table beside its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.empty(3))
        self.register_buffer("table", torch.empty(4))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))


class Complete(Block):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        self.table.copy_(torch.arange(4))
        self.count.zero_()


class Forgetful(Block):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)


def on_meta(cls: type[nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return cls()


def fill(module: nn.Module, init_fn=None) -> None:
    materialize(list(module.named_modules()), CPU, init_fn)


def test_reset_parameters_fills_each_module_that_owns_meta_tensors():
    module = on_meta(Complete)
    torch.manual_seed(0)
    fill(module)
    torch.manual_seed(0)
    expected = nn.Linear(3, 2)
    assert torch.equal(module.linear.weight, expected.weight)
    assert module.scale.tolist() == [1, 1, 1]
    assert module.table.tolist() == [0, 1, 2, 3]
    assert all(tensor.device == CPU for tensor in (*module.parameters(), *module.buffers()))


def test_init_fn_takes_the_place_of_reset_parameters():
    seen: list[str] = []

    def init(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.fill_(7)

    module = on_meta(Block)
    fill(module, init)
    assert seen == ["Block", "Linear"]
    assert module.linear.weight.unique().tolist() == [7]


def test_a_module_without_initialiser_is_named():
    with pytest.raises(ConfigError, match=r"module '' \(Block\) on the meta device must have reset_parameters\(\)"):
        fill(on_meta(Block))


def test_a_forgotten_buffer_is_noticed():
    with pytest.raises(ConfigError, match="tensor 'table' must be filled by the initialiser"):
        fill(on_meta(Forgetful))


def test_the_name_of_a_forgotten_tensor_is_that_in_the_model():
    with pytest.raises(ConfigError, match=r"tensor 'layers\.0\.table' must be filled"):
        materialize([("layers.0", on_meta(Forgetful))], CPU, None)


def test_a_forgotten_parameter_is_noticed():
    with pytest.raises(ConfigError, match="tensor 'weight' must be filled"):
        fill(on_meta(lambda: nn.Linear(2, 2)), lambda module: nn.init.zeros_(module.bias))


def test_modules_with_memory_are_left_alone():
    module = Complete()
    before = {name: tensor.data_ptr() for name, tensor in module.named_parameters()}
    with torch.no_grad():
        module.scale.fill_(5)
    fill(module, lambda built: pytest.fail("nothing to fill"))
    assert {name: tensor.data_ptr() for name, tensor in module.named_parameters()} == before
    assert module.scale.tolist() == [5, 5, 5]


def test_only_modules_on_meta_are_filled_in_a_mixed_model():
    module = nn.Sequential(nn.Linear(2, 2), on_meta(lambda: nn.Linear(2, 2)))
    before = module[0].weight.clone()
    fill(module, lambda built: [nn.init.ones_(tensor) for tensor in built.parameters()])
    assert torch.equal(module[0].weight, before)
    assert module[1].weight.unique().tolist() == [1]
