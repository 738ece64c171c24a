"""Methods other than forward run with full parameters once they are registered, by our function or by torch's."""

import weakref
from collections.abc import Callable

import pytest
import torch
from support.chain import BLOCKS, WIDTH, Block, close, data, twin_gradients
from support.clear_error import clear_error
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor

import overlap

STAGES = (0, 1, 2, 3)
REGISTER = (overlap.register_forward_method, register_fsdp_forward_method)
Register = Callable[[nn.Module, str], None]


class Coder(nn.Module):
    """Encodes and decodes by methods of its own; forward does both."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def encode(self, x: Tensor) -> Tensor:
        if x.isnan().any():
            raise ValueError("not a number")
        for block in self.blocks[:2]:
            x = block(x)
        return x * self.scale

    def decode(self, x: Tensor, *, times: int = 1) -> Tensor:
        for _ in range(times):
            for block in self.blocks[2:]:
                x = block(x)
        return x / self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


def _coder(register: Register | None, **options: object) -> Coder:
    torch.manual_seed(0)
    coder = Coder()
    if register is not None:
        overlap.shard(coder, unit=Block, replicate_max_numel=0, poison=True, **options)
        register(coder, "encode")
        register(coder, "decode")
    return coder


def _loss(net: Coder, step: int, rank: int | None = None) -> Tensor:
    x = data(step, rank)
    if step % 3 == 0:
        return net(x).square().mean()
    code = net.encode(x)
    return net.decode(code, times=1 + step % 3).square().mean()


def _trains(stage: int, register: Register) -> None:
    model, twin = _coder(register, stage=stage), _coder(None)
    updates = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, twin)]
    for step in range(6):
        with torch.no_grad():  # as generate() does
            torch.testing.assert_close(model.decode(data(step), times=3), twin.decode(data(step), times=3))
        _loss(model, step).backward()
        twin_gradients(twin, lambda net, rank, step=step: _loss(net, step, rank))
        assert close(model.parameters(), twin.parameters()), step
        for update in updates:
            update.step()
            update.zero_grad()


@pytest.mark.parametrize("register", REGISTER)
@pytest.mark.parametrize("stage", STAGES)
def test_they_train_and_generate_as_in_one_process(ranks: Ranks, stage: int, register: Register) -> None:
    ranks(2, _trains, stage, register)


def _recovers(register: Register) -> None:
    model = _coder(register)
    model(data()).sum().backward()
    bad = torch.full((1, WIDTH), float("nan"))
    for _ in range(2):
        with pytest.raises(ValueError, match="not a number"):
            model.encode(bad)
        assert all(isinstance(param, DTensor) for param in model.parameters())
        model(data()).sum().backward()


@pytest.mark.parametrize("register", REGISTER)
def test_an_error_inside_leaves_the_model_usable(ranks: Ranks, register: Register) -> None:
    ranks(2, _recovers, register)


def _refuses() -> None:
    model = _coder(overlap.register_forward_method)
    with clear_error(overlap.ConfigError, "method", "deocde"):
        overlap.register_forward_method(model, "deocde")
    plain = Coder()
    overlap.register_forward_method(plain, "encode")  # one program for both
    plain.encode(data())


def test_a_method_that_is_not_there_is_refused(ranks: Ranks) -> None:
    ranks(1, _refuses)


def _goes() -> None:
    model = _coder(overlap.register_forward_method)
    model.encode(data()).sum().backward()
    gone = weakref.ref(model)
    del model
    assert gone() is None


def test_registering_keeps_nothing_alive(ranks: Ranks) -> None:
    ranks(1, _goes)
