"""Training, evaluation and generation of changing depth in turn: right, trainable, and gathered ahead of use."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from support.chain import BLOCKS, chain, data
from support.ranks import Ranks
from support.twins import Twins
from torch import Tensor, nn

STAGES = (0, 1, 2, 3)
Mode = Callable[[], AbstractContextManager[object]]


class Deep(nn.Module):
    """A chain that leaves early when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = chain().blocks

    def forward(self, x: Tensor, depth: int = BLOCKS) -> Tensor:
        for block in self.blocks[:depth]:
            x = block(x)
        return x


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(data(step, rank)).square().mean()


def _same(twins: Twins, mode: Mode, depth: int) -> None:
    for net in (twins.model, twins.plain):
        net.eval()
    with mode():
        mine, plain = (net(data(7, twins.rank), depth) for net in (twins.model, twins.plain))
        assert torch.equal(mine, plain), (mode, depth)
    for net in (twins.model, twins.plain):
        net.train()


def _inference_first(stage: int, mode: Mode) -> None:
    """The engine is made in the first forward: what it allocates there must be trainable, and stay so."""
    twins = Twins(Deep, _loss, stage=stage, unit="blocks.*")
    for _ in range(3):
        _same(twins, mode, BLOCKS)
        twins.step()
        _same(twins, mode, 2)
    twins.check()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("stage", STAGES)
def test_a_first_forward_without_gradients_leaves_the_model_trainable(ranks: Ranks, stage: int, mode: Mode) -> None:
    ranks(2, _inference_first, stage, mode)


def _inference_tensors(stage: int) -> None:
    """Tensors made under inference mode may be evaluated on; built under it, a model may still be trained."""
    with torch.inference_mode():
        x = data(7)
    twins = Twins(Deep, _loss, stage=stage, unit="blocks.*")
    with torch.no_grad():
        assert torch.equal(twins.model(x), twins.plain(x))
    for _ in range(2):
        twins.step()
    twins.check()


@pytest.mark.parametrize("stage", STAGES)
def test_inputs_made_under_inference_mode(ranks: Ranks, stage: int) -> None:
    ranks(2, _inference_tensors, stage)


def _hits(issued: list[str]) -> tuple[int, int]:
    """Of the gathers of a pass, how many were under way before the unit before theirs began to compute."""
    names = [event.partition("#")[0] for event in issued]
    ahead = wanted = 0
    for place, name in enumerate(names):
        if name.startswith("gathered:"):
            unit = name.partition(":")[2]
            uses = [n for n in range(place, len(names)) if names[n] in (f"forward:{unit}", f"backward:{unit}")]
            if uses:
                wanted += 1
                between = names[place : uses[0]]
                ahead += any(entry.startswith(("forward:", "backward:")) for entry in between)
    return ahead, wanted


def _mixes(stage: int) -> None:
    """The first unit of a pass cannot be gathered ahead of anything: it does not count."""
    twins = Twins(Deep, _loss, stage=stage, unit="blocks.*")
    counts: dict[str, list[int]] = {"train": [0, 0], "eval": [0, 0], "decode": [0, 0]}

    def note(kind: str, warm: bool) -> None:
        ahead, wanted = _hits(list(twins.engine.executor.issued))
        if warm:
            counts[kind][0] += ahead
            counts[kind][1] += max(wanted - 1, 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for turn in range(6):
            twins.step()
            note("train", turn > 2)
            _same(twins, torch.no_grad, BLOCKS)
            note("eval", turn > 2)
            for depth in (2, 3, 1, BLOCKS):
                _same(twins, torch.no_grad, depth)
                note("decode", turn > 2)
    twins.check()
    if stage == 3:
        assert all(wanted for _, wanted in counts.values())
        assert all(ahead >= 0.9 * wanted for ahead, wanted in counts.values()), counts


@pytest.mark.parametrize("stage", STAGES)
def test_alternating_modes_and_depths_are_right_and_gathered_ahead(ranks: Ranks, stage: int) -> None:
    ranks(2, _mixes, stage)
