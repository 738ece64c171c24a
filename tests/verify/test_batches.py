"""Which batch a rank gets, and the loss of it."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from support.clear_error import clear_error
from torch import Tensor, nn

from overlap import ConfigError
from overlap.verify.batches import DEFAULT_STEPS, fresh, share
from overlap.verify.losses import check_loss, default_loss


def all_of(batches, steps, rank, world):
    mine = share(batches, steps, rank, world)
    return [mine.of(step) for step in range(mine.steps)]


def test_a_function_is_asked_for_rank_and_step():
    assert all_of(lambda rank, step: (rank, step), 3, 1, 2) == [(1, 0), (1, 1), (1, 2)]
    assert share(lambda rank, step: None, None, 0, 2).steps == DEFAULT_STEPS


@pytest.mark.parametrize("kind", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_ranks_take_turns(kind):
    assert all_of(kind(range(6)), 3, 0, 2) == [0, 2, 4]
    assert all_of(kind(range(6)), 3, 1, 2) == [1, 3, 5]
    assert all_of(kind(range(7)), 2, 2, 3) == [2, 5]


def test_a_sequence_says_how_many_steps_there_are():
    assert all_of([0, 1, 2, 3, 4], None, 1, 2) == [1, 3]
    assert [batch.tolist() for batch in all_of(torch.arange(4).view(4, 1), None, 0, 2)] == [[0], [2]]


@pytest.mark.parametrize(
    ("batches", "steps", "words"),
    [
        ([1], None, ("batches", "2 ranks", "1 steps", "2 in all", "got 1")),
        (range(5), 3, ("batches", "6 in all", "got 5")),
        (iter(range(3)), None, ("batches", "8 in all", "fewer")),
        ("abc", None, ("batches", "function of rank and step", "str")),
        ({"x": 1}, None, ("batches", "dict")),
        (None, None, ("batches", "NoneType")),
        (lambda rank: [rank], None, ("batches", "rank and a step", "batches(rank, step)")),
        ([1, 2], 0, ("steps", "at least 1", "0")),
        ([1, 2], True, ("steps", "True")),
    ],
)
def test_batches_that_cannot_be(batches, steps, words):
    with clear_error(ConfigError, *words):
        share(batches, steps, 1, 2)


def test_each_model_gets_tensors_of_its_own():
    batch = {"x": torch.ones(2, requires_grad=True), "rest": [torch.zeros(1), "name"]}
    copy = fresh(batch, torch.device("cpu"))
    copy["rest"][0].add_(1)
    assert batch["rest"][0].item() == 0
    assert copy["x"].requires_grad
    assert copy["x"].is_leaf
    assert copy["rest"][1] == "name"


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


Pair = namedtuple("Pair", ["number", "logits"])
ONES = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("output", "loss"),
    [
        (Output(torch.tensor(3.0), ONES), 3.0),
        ({"loss": torch.tensor(3.0)}, 3.0),
        (Output(None, 2 * ONES), 4.0),
        (torch.tensor([5.0]), 5.0),
        (2 * ONES, 4.0),
        (Pair(torch.tensor(1), (2 * ONES).bfloat16()), 4.0),
    ],
    ids=["attribute", "key", "no loss yet", "scalar", "tensor", "first floating"],
)
def test_the_loss_of_an_output(output, loss):
    value = default_loss(lambda _: output, ONES)
    assert value.shape == ()
    assert value.item() == loss


def test_the_loss_calls_the_model_as_the_batch_asks():
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor | float = 0.0) -> Tensor:
            return (x + y).sum()

    for batch, total in ((ONES, 4.0), ((ONES, ONES), 8.0), ([ONES], 4.0), ({"y": ONES, "x": ONES}, 8.0)):
        assert default_loss(Sum(), batch).item() == total


def test_outputs_and_losses_that_cannot_be():
    with clear_error(ConfigError, "output of the model", "floating tensor", "str"):
        default_loss(lambda _: "text", ONES)
    with clear_error(ConfigError, "loss(model, batch)", "scalar", "[2, 2]"):
        check_loss(ONES)
    with clear_error(ConfigError, "loss(model, batch)", "scalar", "float"):
        check_loss(1.0)
    with clear_error(ConfigError, "loss(model, batch)", "trainable parameter"):
        check_loss(torch.tensor(1.0))
