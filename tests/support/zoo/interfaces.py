"""What goes into units and comes out of them: containers, keyword arguments, views, objects nobody can look into."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from support.zoo.entry import WIDTH, Entry, Unit, ZooModel, rows, squares
from torch import Tensor, nn


@dataclass
class State:
    """Tensors in a dataclass, one of them in a list."""

    hidden: Tensor
    extras: list[Tensor]
    note: str = "kept"


class Pair(NamedTuple):
    """Tensors in a named tuple."""

    left: Tensor
    right: Tensor


class Mixer(Unit):
    """Dataclass and keywords in, dataclass out; one keyword is no tensor, one is a dict of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, state: State, *, scale: float, context: dict[str, Any]) -> State:
        assert state.note == "kept"
        hidden = torch.tanh(self.linear(state.hidden)) * scale + context["deep"][0]["bias"]
        return State(hidden, [self.side(state.extras[0])], state.note)


class ToPair(Unit):
    """Dataclass in, named tuple out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, state: State) -> Pair:
        return Pair(*self.linear(torch.tanh(state.hidden + state.extras[0])).chunk(2, -1))


class ToDict(Unit):
    """Named tuple in, nested ordered dict out, with values that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, pair: Pair) -> OrderedDict[str, Any]:
        return OrderedDict(inner=[{"out": self.linear(torch.sin(pair.left))}, None], skip=(pair.right, 3))


class Containers(ZooModel):
    """Every unit speaks another language."""

    def __init__(self) -> None:
        super().__init__()
        self.mixers = nn.ModuleList([Mixer(), Mixer()])
        self.to_pair, self.to_dict = ToPair(), ToDict()
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, *, bias: Tensor) -> dict[str, Tensor]:
        state = State(x, [x.flip(0)])
        for mixer in self.mixers:
            state = self.run(mixer, state, scale=0.5, context={"deep": [{"bias": bias}], "name": "none"})
        found = self.run(self.to_dict, self.run(self.to_pair, state))
        return {"logits": self.head(found["inner"][0]["out"] + found["skip"][0])}


def _containers_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    return squares(model(rows(rank, index), bias=rows(rank + 50, index))["logits"])


class Squeezes(Unit):
    """Returns a view of what it computed; its input is edited in place by the caller later."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x.sin()) + 0.0).unsqueeze(1).squeeze(1)


class Splits(Unit):
    """Returns two slices of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = self.linear(x.cos()) + 0.0
        return both[:, :WIDTH], both[:, WIDTH:]


class Views(ZooModel):
    """Outputs of units are views, and the caller writes into them."""

    def __init__(self) -> None:
        super().__init__()
        self.squeezes = nn.ModuleList([Squeezes(), Squeezes()])
        self.splits = Splits()
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.squeezes:
            x = self.run(unit, x)
            x += 1
            x.relu_()
        left, right = self.run(self.splits, x)
        left += right.detach()
        left[0] *= 2
        return self.head(left.mul_(0.5) + right)


def _views_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    """The first unit's input wants a gradient on every other batch."""
    return squares(model(rows(rank, index).requires_grad_(index % 2 == 0)))


class Box:
    """An object that tensors cannot be found in."""

    __slots__ = ("content",)

    def __init__(self, content: Tensor) -> None:
        self.content = content


class Boxing(Unit):
    """Boxed in, boxed out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, box: Box) -> Box:
        return Box(box.content + torch.tanh(self.linear(box.content)))


class Opaque(ZooModel):
    """Units exchange objects; parameters of the root compute in between."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Boxing() for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        box = Box(x)
        for block in self.blocks:
            box = self.run(block, box)
        return self.head(box.content)


def _opaque_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    return squares(model(rows(rank, index)))


# Reentrant checkpointing sees tensors among the arguments only, and gives views that must not be written to.
ENTRIES = (
    Entry("containers", Containers, _containers_loss, recomputes=("none", "non-reentrant")),
    Entry("views", Views, _views_loss, recomputes=("none", "non-reentrant")),
    Entry(
        "opaque",
        Opaque,
        _opaque_loss,
        dtypes=("fp32",),  # inputs that cannot be found cannot be cast
        recomputes=("none", "non-reentrant"),
    ),
)
