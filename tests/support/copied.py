"""A state_dict as it is now: optimizers give views of their live state."""

from typing import Any

from torch import Tensor


def copied(value: Any) -> Any:
    """The same nesting of dictionaries and lists, with tensors of its own."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value.clone() if isinstance(value, Tensor) else value
