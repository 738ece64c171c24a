"""Options: what is wrong is refused in one grammar, with the field, the rule, the value and a cure."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch

from overlap.config import (
    LAUNCHER_VARIABLES,
    ShardOptions,
    missing_launcher_variables,
    native_mode_from_env,
    options_from,
)
from overlap.errors import ConfigError

GRAMMAR = re.compile(r"(?P<subject>\S+) must (?P<rule>.+), but got (?P<got>.+); (?P<cure>.+)")

BAD: list[tuple[str, Any]] = [
    ("stage", 4),
    ("stage", -1),
    ("stage", True),
    ("stage", "3"),
    ("stage", 3.0),
    ("timeline", "no"),
    ("cast_forward_inputs", 1),
    ("init_fn", 5),
    ("timeout_s", True),
    ("timeout_s", "5"),
    ("param_dtype", torch.int8),
    ("param_dtype", "bfloat16"),
    ("param_dtype", torch.float64),
    ("output_dtype", torch.int64),
    ("reduce_dtype", None),
    ("reduce_dtype", torch.float64),
    ("grad_dtype", None),
    ("grad_dtype", torch.int32),
    ("prefetch", 0),
    ("prefetch", 1.0),
    ("prefetch", True),
    ("bucket_bytes", 0),
    ("bucket_bytes", 1e6),
    ("replicate_max_numel", -1),
    ("init", "random"),
    ("init", None),
    ("lanes", "threads"),
    ("timeout_s", 0),
    ("timeout_s", -1.0),
    ("timeout_s", float("nan")),
]

GOOD: list[tuple[str, Any]] = [
    *(("stage", stage) for stage in range(4)),
    *(("param_dtype", dtype) for dtype in (None, torch.float32, torch.bfloat16, torch.float16)),
    ("output_dtype", None),
    ("reduce_dtype", torch.bfloat16),
    ("grad_dtype", torch.float16),
    ("prefetch", 7),
    ("bucket_bytes", 1),
    ("replicate_max_numel", 0),
    ("init", "verify"),
    ("lanes", "inline"),
    ("timeout_s", 0.5),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_by_name_with_a_cure(name: str, value: object):
    with pytest.raises(ConfigError) as caught:
        options_from({name: value})
    said = GRAMMAR.fullmatch(str(caught.value))
    assert said is not None
    assert said["subject"] == name
    assert said["got"] == (value if isinstance(value, str) else repr(value))


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_a_good_value_is_taken(name: str, value: object):
    assert getattr(options_from({name: value}), name) == value


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("prefetch_distance", "prefetch"),
        ("reshard", "reshard_after_forward"),
        ("mp_dtype", "param_dtype"),
        ("bucket_size", "bucket_bytes"),
        ("zero_stage", "stage"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_known_one(unknown: str, nearest: str):
    with pytest.raises(ConfigError) as caught:
        options_from({unknown: 1})
    said = GRAMMAR.fullmatch(str(caught.value))
    assert said is not None
    assert (said["subject"], said["got"]) == ("option", unknown)
    assert said["cure"] == f"did you mean {nearest!r}?"
    assert all(field.name in said["rule"] for field in fields(ShardOptions))


def test_a_config_error_is_a_value_error():
    with pytest.raises(ValueError, match="stage must"):
        ShardOptions(stage=9)


def test_options_cannot_be_changed_or_given_by_position():
    with pytest.raises(FrozenInstanceError):
        ShardOptions().stage = 1
    with pytest.raises(TypeError):
        ShardOptions(3)


@pytest.mark.parametrize(
    ("stage", "sharded", "resident"), [(0, False, True), (1, True, True), (2, True, True), (3, True, False)]
)
def test_stages_say_what_is_sharded_and_what_stays(stage: int, sharded: bool, resident: bool):
    options = ShardOptions(stage=stage)
    assert (options.sharded, options.resident) == (sharded, resident)


def test_missing_launcher_variables_are_listed(monkeypatch: pytest.MonkeyPatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert missing_launcher_variables() == list(LAUNCHER_VARIABLES)
    monkeypatch.setenv("RANK", "0")
    assert missing_launcher_variables() == ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]


def test_the_native_mode_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OVERLAP_NATIVE", raising=False)
    assert native_mode_from_env() == "auto"
    monkeypatch.setenv("OVERLAP_NATIVE", "OFF")
    assert native_mode_from_env() == "off"
