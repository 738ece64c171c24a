"""From a model and a batch to the scalar that is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from overlap.engine.tree import tensors_in
from overlap.errors import ConfigError, message

Loss = Callable[[nn.Module, Any], Tensor]


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """The model's own loss if it has one, else a stand-in through which every output value gets a gradient.

    The model is called as ``model(**batch)`` for a dict, ``model(*batch)`` for a tuple or list, else ``model(batch)``.
    Its output's ``loss`` (attribute or key) is taken if it is a tensor; an output of one element is the loss itself;
    of anything else the first floating tensor, as ``tensor.float().square().mean()``.

    Raises:
        ConfigError: the output holds no floating tensor.
    """
    output = _call(model, batch)
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    first = next((tensor for tensor in tensors_in(output) if tensor.is_floating_point()), None)
    if first is None:
        got, cure = type(output).__name__, "pass loss(model, batch)"
        raise ConfigError(message("output of the model", "hold a floating tensor", got, cure))
    return first.reshape(()) if first.numel() == 1 else first.float().square().mean()


def check_loss(value: object) -> Tensor:
    """Return a loss that backward can start from.

    Raises:
        ConfigError: it is no scalar tensor, or nothing in it is trained.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            message("loss(model, batch)", "return a scalar tensor", got, "return the mean over the batch")
        )
    if not value.requires_grad:
        cure = "train at least one parameter, and do not detach the loss"
        raise ConfigError(message("loss(model, batch)", "depend on a trainable parameter", "one that does not", cure))
    return value


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    return model(batch)
