"""How far two tensors are apart, and how far they may be."""

import math

import pytest
import torch
from support.clear_error import clear_error

from overlap import ConfigError, ShardOptions
from overlap.verify.compare import difference
from overlap.verify.tolerance import Tolerance, nothing, rtol_of, tolerance_for

NAN, INF = math.nan, math.inf


def relative(scale: float) -> float:
    return 1e-3 * scale


def test_equal_tensors_agree():
    for tensor in (torch.tensor([1.0, NAN, INF, -INF]), torch.empty(0, 3), torch.tensor(7), torch.tensor([True])):
        assert difference(tensor, tensor.clone(), nothing) is None


def test_the_largest_value_sets_the_scale():
    expected = torch.tensor([[0.0, 100.0], [-1000.0, 1.0]])
    got = expected.clone()
    got[0, 0] += 0.9
    assert difference(got, expected, relative) is None
    got[0, 1] += 2.0
    met = difference(got, expected, relative)
    assert met is not None
    assert (met.max_abs, met.max_rel, met.allowed) == (2.0, 0.002, 1.0)
    assert met.detail == "102 instead of 100 at [0, 1]"


@pytest.mark.parametrize(("got", "expected"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (INF, -INF)])
def test_what_is_not_finite_in_one_only_is_infinitely_far(got: float, expected: float):
    met = difference(torch.tensor([1.0, got]), torch.tensor([1.0, expected]), relative)
    assert met is not None
    assert met.max_abs == INF
    assert met.detail.endswith("at [1]")


def test_integers_and_masks_must_be_equal():
    met = difference(torch.tensor([1, 2]), torch.tensor([1, 3]), relative)
    assert met is not None
    assert (met.max_abs, met.allowed) == (1.0, 0.0)
    assert difference(torch.tensor([True]), torch.tensor([False]), relative) is not None


def test_shape_and_dtype_must_be_equal():
    met = difference(torch.zeros(2, 3), torch.zeros(3, dtype=torch.bfloat16), relative)
    assert met is not None
    assert met.max_abs is None
    assert met.detail == "[2, 3] float32 where the unsharded model has [3] bfloat16"


def test_complex_values():
    assert difference(torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), nothing) is None
    met = difference(torch.tensor([1 + 3j]), torch.tensor([1 + 2j]), relative)
    assert met is not None
    assert met.max_abs == 1.0


def test_a_common_factor_is_named():
    expected = torch.tensor([1.0, -3.0, 0.5])
    met = difference(expected * 0.5, expected, relative)
    assert met is not None
    assert met.detail.endswith("every element is 0.5 times the expected one")
    met = difference(expected + 1, expected, relative)
    assert met is not None
    assert "times" not in met.detail


def test_tolerances_follow_the_least_precise_dtype():
    fp32 = tolerance_for(ShardOptions(), {torch.float32}, None, None)
    assert fp32 == Tolerance(forward=1e-5, gradient=1e-5, weight=1e-5, atol=1e-8)
    bf16 = tolerance_for(ShardOptions(param_dtype=torch.bfloat16), {torch.float32}, None, None)
    assert bf16 == Tolerance(forward=2**-6, gradient=2**-6, weight=1e-5, atol=1e-8)
    wire = tolerance_for(ShardOptions(reduce_dtype=torch.float16), {torch.float32}, None, None)
    assert wire == Tolerance(forward=1e-5, gradient=2**-9, weight=1e-5, atol=1e-8)
    own = tolerance_for(ShardOptions(), {torch.float32, torch.bfloat16}, None, 1e-3)
    assert own == Tolerance(forward=2**-6, gradient=2**-6, weight=1e-5, atol=1e-3)
    assert rtol_of(torch.float64) == 1e-5


def test_the_users_choice_wins():
    chosen = tolerance_for(ShardOptions(param_dtype=torch.bfloat16), set(), 0.1, 0.0)
    assert chosen == Tolerance(forward=0.1, gradient=0.1, weight=0.1, atol=0.0)


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1.0, NAN])
def test_tolerances_that_cannot_be(name: str, value: float):
    given = {"rtol": None, "atol": None, name: value}
    with clear_error(ConfigError, name, "at least 0", str(value)):
        tolerance_for(ShardOptions(), set(), **given)
