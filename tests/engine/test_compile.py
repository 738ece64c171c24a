"""``torch.compile`` per block with sharding around it: the same training, no recompilation from step to step."""

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.chain import Chain, chain, close, data, twin_gradients
from support.ranks import Ranks

import overlap

# Each rank starts the C++ compiler for each graph.
pytestmark = pytest.mark.slow
STAGES = (0, 1, 2, 3)

Update = Callable[..., torch.optim.Optimizer]


def _in_place(net: Chain) -> None:
    for block in net.blocks:
        block.compile()


def _wrapped(net: Chain) -> None:
    for number, block in enumerate(net.blocks):
        net.blocks[number] = torch.compile(block)


def _compiled(how: Callable[[Chain], None], stage: int) -> Chain:
    net = chain()
    how(net)
    return overlap.shard(net, unit="blocks.*", stage=stage, replicate_max_numel=16, poison=True)


def _trains(how: Callable[[Chain], None], stage: int) -> None:
    with warnings.catch_warnings():  # inductor meets deprecated parts of torch itself
        warnings.simplefilter("ignore")
        _trains_without_recompiling(how, stage)


def _trains_without_recompiling(how: Callable[[Chain], None], stage: int) -> None:
    # Here, in a rank: in the process that runs all tests it would load Triton before its interpreter is asked for.
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model, twin = _compiled(how, stage), chain()
    updates = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, twin)]
    graphs = []
    for step in range(5):
        model(data(step)).square().mean().backward()
        twin_gradients(twin, lambda net, rank, step=step: net(data(step, rank)).square().mean())
        assert close(model.parameters(), twin.parameters()), step
        for update in updates:
            update.step()
            update.zero_grad()
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1] > 0  # no recompilation from the second step on
    assert not counters["graph_break"]
    engine = overlap.engine_of(model)
    assert engine.deviations == 0
    names = {param.fqn for unit in engine.units for param in unit.params}
    assert names == {name for name, _ in twin.named_parameters()}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", [_in_place, _wrapped])
def test_compiled_blocks_train_as_in_one_process(ranks: Ranks, how: Callable[[Chain], None], stage: int) -> None:
    # Processes of its own: the compiler leaves tensors without memory behind, which others who count memory would meet.
    ranks.fresh(2, _trains, how, stage, timeout_s=400)


@pytest.mark.parametrize("update", [overlap.AdamW, overlap.Muon])
def test_a_compiled_update_is_the_update(ranks: Ranks, update: Update) -> None:
    """Nothing of it is for the compiler; programs compile their whole step all the same."""
    ranks.fresh(2, _updates_alike, update, timeout_s=200)


def _updates_alike(update: Update) -> None:
    plain, compiled = _trained(update, lambda step: step), _trained(update, partial(torch.compile, backend="eager"))
    assert all(torch.equal(*both) for both in zip(plain, compiled, strict=True))
    assert not torch.equal(plain[0], chain().blocks[0].linear.weight)


def _trained(update: Update, how: Callable[..., Callable[[], None]]) -> list[torch.Tensor]:
    model = overlap.shard(chain(), unit="blocks.*", stage=3, replicate_max_numel=16)
    params = [param for param in model.parameters() if param.ndim == 2]
    optimizer = update(params, lr=0.1)

    def clip_and_step() -> None:
        overlap.clip_grad_norm_(params, 0.1)
        optimizer.step()
        optimizer.zero_grad()

    step = how(clip_and_step)
    for number in range(3):
        model(data(number)).square().mean().backward()
        step()
    assert all(param.grad is None for param in params)
    return [param.full_tensor() for param in params]
