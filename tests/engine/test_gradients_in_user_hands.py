"""Users read, edit, replace, drop and detach gradients: training goes on from what they left."""

from collections.abc import Callable

import pytest
import torch
from support.chain import chain, data, sharded_chain, twin_gradients
from support.pair import whole
from support.ranks import Ranks
from support.twins import gradients
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

STAGES = (0, 1, 2, 3)


def _read(param: nn.Parameter) -> None:
    assert param.grad is not None
    grad = param.grad
    full = grad.full_tensor() if isinstance(grad, DTensor) else grad
    assert full.shape == param.shape
    assert torch.isfinite(full).all()
    assert grad.norm() > 0
    assert grad.dtype is torch.float32


def _detach(param: nn.Parameter) -> None:
    param.grad.detach_()


def _edit(param: nn.Parameter) -> None:
    param.grad.mul_(3)


def _zero(param: nn.Parameter) -> None:
    param.grad.zero_()


def _replace(param: nn.Parameter) -> None:
    param.grad = param.grad.clone() * 2


def _replace_by_another_kind(param: nn.Parameter) -> None:
    param.grad = torch.zeros_like(param) + 0.5


def _drop(param: nn.Parameter) -> None:
    param.grad = None


def _drop_by_del(param: nn.Parameter) -> None:
    del param.grad


def _move_aside(param: nn.Parameter) -> None:
    """As accumulation by hand: take it out, put it back."""
    mine = param.grad.clone()
    param.grad = None
    param.grad = mine


def _edit_local(param: nn.Parameter) -> None:
    (param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad).add_(0.25)


DEEDS = (
    _read,
    _detach,
    _edit,
    _zero,
    _replace,
    _replace_by_another_kind,
    _drop,
    _drop_by_del,
    _move_aside,
    _edit_local,
)


def _goes_on(stage: int, deed: Callable[[nn.Parameter], None], backwards: int) -> None:
    """The deed, then more backwards on top of what it left, then the update; twice."""
    model, twin = sharded_chain(stage=stage), chain()
    updates = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (model, twin)]
    for step in range(2):
        for number in range(backwards):
            index = 10 * step + number
            model(data(index)).square().mean().backward()
            twin_gradients(twin, lambda net, rank, index=index: net(data(index, rank)).square().mean())
            if number == 0:
                for param in (*model.parameters(), *twin.parameters()):
                    deed(param)
        _assert_close(gradients(model), gradients(twin))
        for update in updates:
            update.step()
            update.zero_grad()
    _assert_close(whole(model), whole(twin))


def _assert_close(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def _every_deed(stage: int, backwards: int) -> None:
    for deed in DEEDS:
        _goes_on(stage, deed, backwards)


@pytest.mark.parametrize("backwards", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_training_goes_on_from_what_the_user_left(ranks: Ranks, stage: int, backwards: int) -> None:
    ranks(2, _every_deed, stage, backwards)


def _held(stage: int) -> None:
    """A reference to a gradient of an earlier step harms nobody; a clone keeps its values."""
    model, twin = sharded_chain(stage=stage), chain()
    held: list[object] = []
    kept: list[tuple[Tensor, Tensor]] = []
    for step in range(3):
        model.zero_grad()
        twin.zero_grad()
        model(data(step)).square().mean().backward()
        twin_gradients(twin, lambda net, rank, step=step: net(data(step, rank)).square().mean())
        _assert_close(gradients(model), gradients(twin))
        held += [param.grad for param in model.parameters()]
        kept += [
            (mine.grad.clone(), theirs.grad.clone())
            for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True)
        ]
    for mine, theirs in kept:
        torch.testing.assert_close(mine.full_tensor() if isinstance(mine, DTensor) else mine, theirs)
    assert len(held) == len(kept)


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_of_earlier_steps_may_be_held(ranks: Ranks, stage: int) -> None:
    ranks(2, _held, stage)
