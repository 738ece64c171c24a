"""What a report says, without any model."""

import json
import math

import pytest

from overlap.verify import Finding, Tolerance, VerifyReport


def found(kind: str = "gradient", **given: object) -> Finding:
    where = {"step": 2, "unit": "blocks.1", "tensor": "blocks.1.weight", "ranks": (0, 1)}
    return Finding(kind=kind, **{**where, **given})


def report(*findings: Finding, **given: object) -> VerifyReport:
    usual = {"ranks": 2, "stage": 3, "options": {"stage": "3", "unit": "Block"}, "steps": 2, "losses": (1.5, 1.25)}
    return VerifyReport(**{**usual, "tolerance": Tolerance(), "frozen": (), "findings": findings, **given})


WORST = {"max_abs_error": 0.5, "max_rel_error": 0.25, "tolerance": 1e-5, "detail": "1 instead of 2 at [0]"}


def test_agreement():
    outcome = report()
    assert outcome.ok
    assert outcome.first is None
    assert outcome.text().splitlines() == [
        "stage 3, 2 ranks, 2 steps, unit Block",
        "tolerance: 1e-08 + a tensor's largest value times 1e-05 (forward), 1e-05 (gradients), 1e-05 (weights)",
        "loss: 1.5, 1.25",
        "SAME: forward, gradients, parameters and buffers agree with the unsharded model at every step",
    ]


def test_a_difference_comes_with_figures_and_a_cure():
    outcome = report(found(**WORST), found(tensor="blocks.1.bias", ranks=(1,), max_abs_error=0.125))
    lines = outcome.text().splitlines()[3:]
    assert lines[:4] == [
        "DIFFERENT: a gradient differs",
        "  first    step 2, unit blocks.1, blocks.1.weight, ranks 0, 1",
        "  error    0.5 (0.25 of the largest value), allowed 1e-05",
        "  met      1 instead of 2 at [0]",
    ]
    assert lines[4].startswith("  cure     check set_gradient_divide_factor()")
    assert lines[5:] == ["  also     step 2, unit blocks.1, blocks.1.bias, rank 1: error 0.125"]
    assert not outcome.ok


def test_warnings_alone_are_no_difference():
    outcome = report(found("no_gradient", unit="", step=0))
    assert outcome.ok
    assert outcome.warnings == outcome.findings
    assert outcome.text().splitlines()[4:6] == [
        "warning: a trainable parameter never got a gradient",
        "  before step 1, unit (root), blocks.1.weight, ranks 0, 1",
    ]


def test_many_of_a_kind_are_counted():
    errors = [found(tensor=f"w{number}") for number in range(9)]
    warnings = [found("no_gradient", tensor=f"w{number}") for number in range(7)]
    lines = report(*errors, *warnings).text().splitlines()
    assert "  also     3 more" in lines
    assert "  and 2 more" in lines


def test_json_has_everything_and_no_infinities():
    outcome = report(found(**{**WORST, "max_rel_error": math.inf}), losses=(math.nan,), frozen=("a",))
    read = json.loads(outcome.to_json())
    assert (read["ok"], read["losses"], read["frozen"], read["stage"]) == (False, [None], ["a"], 3)
    (finding,) = read["findings"]
    assert finding.pop("cure").startswith("check")
    assert finding == {
        "kind": "gradient",
        "step": 2,
        "unit": "blocks.1",
        "tensor": "blocks.1.weight",
        "ranks": [0, 1],
        **WORST,
        "max_rel_error": None,
        "severity": "error",
    }
    assert read["tolerance"] == {"forward": 1e-5, "gradient": 1e-5, "weight": 1e-5, "atol": 1e-8}


@pytest.mark.parametrize(("kind", "severity"), [("replica", "error"), ("deviation", "warning")])
def test_severity(kind: str, severity: str):
    assert found(kind).severity == severity
