"""Kinds of findings, and what to do about each."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "structure",
    "initial",
    "edited",
    "order",
    "forward",
    "loss",
    "gradient",
    "parameter",
    "replica",
    "buffer",
    "initial_ranks",
    "buffer_ranks",
    "not_deterministic",
    "rank_dependent",
    "not_finite",
    "deviation",
    "no_gradient",
]

ERRORS: frozenset[Kind] = frozenset(
    {"structure", "initial", "edited", "order", "forward", "loss", "gradient", "parameter", "replica", "buffer"}
)

MEANINGS: dict[Kind, str] = {
    "structure": "the factory builds different models",
    "initial": "sharding changed an initial value",
    "edited": "something other than the optimizer changed a weight of one of the two models",
    "order": "units ran in another order, or other units",
    "forward": "a unit computed something else",
    "loss": "units agree, the loss does not",
    "gradient": "a gradient differs",
    "parameter": "gradients agree, the updated weight does not",
    "replica": "ranks hold different values of what they share",
    "buffer": "a buffer differs from the unsharded model's",
    "initial_ranks": "ranks started with different values; rank 0's were taken",
    "buffer_ranks": "a buffer differs between ranks",
    "not_deterministic": "the unsharded model repeats a forward with another result",
    "rank_dependent": "the same batch gives another loss on another rank",
    "not_finite": "NaN or infinity, sharded and unsharded alike",
    "deviation": "a step departed from the recorded order of units",
    "no_gradient": "a trainable parameter never got a gradient",
}

CURES: dict[Kind, str] = {
    "structure": "build the same parameters and buffers on every rank and in every call of the factory",
    "initial": "sharding must not change weights: please report it as a bug of overlap, with this report",
    "edited": "look for writes to weights in forward or in the loss: sharded, those in forward are lost, those through "
    "param.data need overlap.engine_of(model).mark_changed()",
    "order": "let forward depend on its inputs, its weights and torch's generators only",
    "forward": "let the module read self.weight when it runs: a tensor taken from a parameter earlier (.data, "
    "detach(), a cached copy, a list of weights) goes stale once the parameter is sharded",
    "loss": "let the loss use the model's outputs only: parameters are shards (DTensor) outside of forward",
    "gradient": "check set_gradient_divide_factor(), no_sync() and hooks on parameters; the loss must be the mean over "
    "the rank's own batch",
    "parameter": "build the optimizer from model.parameters() after sharding, and let it treat DTensors as it "
    "treats tensors",
    "replica": "change parameters on all ranks alike, with the same values",
    "buffer": "compute buffers in forward, from activations or from the unit's own parameters",
    "initial_ranks": 'seed the ranks alike before the model is built, or leave it: init="broadcast" makes them equal',
    "buffer_ranks": "expected of running statistics, since each rank sees its own batches: use SyncBatchNorm, or send "
    "rank 0's buffers to all before evaluating or saving",
    "not_deterministic": "no comparison can hold: use deterministic operations, and draw from torch's generators only",
    "rank_dependent": "let the model depend on its batch and not on the rank, unless that is meant",
    "not_finite": "not the sharding: look at the learning rate, the data, and at param_dtype (fp16 overflows at 65504)",
    "deviation": "slower, never wrong: keep the order of units the same in every step, or expect exposed gathers",
    "no_gradient": "use it in forward, freeze it, or remove it",
}
