"""What travels between two ranks of a group."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Message:
    """One contiguous tensor to or from group rank `peer`; `index` tells the messages of a pair apart."""

    tensor: Tensor
    peer: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Tagged:
    """A message and its tag: it arrives only where the same tag and size are expected."""

    message: Message
    tag: int
