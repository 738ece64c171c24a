"""One way to train the workload, as the bench sees it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from overlap.bench.step.workload import Workload


def plain_backward(loss: Tensor) -> None:
    """Let autograd do it."""
    loss.backward()  # type: ignore[no-untyped-call]


def update(optimizer: Optimizer) -> None:
    """Step and forget the gradients."""
    optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class Contender:
    """A built model with its optimizer."""

    forward: Callable[[Tensor, Tensor], Tensor]
    """Inputs and targets to this rank's mean loss."""
    update: Callable[[], None]
    """Update the weights and forget the gradients."""
    backward: Callable[[Tensor], None] = plain_backward
    sent: Callable[[], int] | None = None
    """Bytes this rank has sent so far, where it counts them itself."""
    options: str = ""
    """What was chosen for it beyond its defaults."""

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one training step; the loss before it."""
        loss = self.forward(inputs, targets)
        self.backward(loss)
        self.update()
        return loss.detach()


@dataclass(frozen=True)
class Spec:
    """What is known of a contender before it is built."""

    name: str
    stage: int | None
    """What is sharded: 0 nothing .. 3 parameters too. None for the floor, which shares nothing."""
    build: Callable[[Workload], Contender]
    """A collective."""
    ours: bool = False
    rival: str | None = None
    """Which of ours a peer is compared with."""
    bf16_reduce: bool = False
    """Whether its gradients travel in bf16 whatever the compute dtype; else in fp32."""
    reduces_in_param_dtype: bool = False
    """Whether they travel in the compute dtype, as the library has no other way."""
    collectives: frozenset[str] = frozenset()
    """What it must be seen to call, by the names that gloo gives them."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run here."""
