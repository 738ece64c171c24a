"""The public names of overlap.verify, frozen, and what people and programs read of a report."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

import overlap.verify
from overlap.verify import Finding, Tolerance, VerifyReport, api, finding, report, settings, tolerance
from overlap.verify.cures import CURES, ERRORS, MEANINGS, Kind
from overlap.verify.settings import VerifySettings

FIELDS = {
    Finding: "kind step unit tensor ranks max_abs_error max_rel_error tolerance detail",
    Tolerance: "forward gradient weight atol",
    VerifyReport: "ranks stage options steps losses tolerance frozen findings",
}
PARAMETERS = (
    "make_model batches loss=None * steps=None options=None optimizer=sgd lr=None rtol=None atol=None "
    "device=None seed=0"
)
DOCS = Path(__file__).parents[2] / "docs" / "verify.md"


def test_the_names():
    assert overlap.verify.__all__ == ["Finding", "Tolerance", "VerifyReport", "verify"]


def test_the_parameters_of_verify():
    parameters = list(inspect.signature(api.verify).parameters.values())
    words = [each.name if each.default is each.empty else f"{each.name}={each.default}" for each in parameters]
    words.insert([each.kind for each in parameters].index(inspect.Parameter.KEYWORD_ONLY), "*")
    assert " ".join(words) == PARAMETERS


def test_the_docstring_of_verify_lists_every_parameter_in_order():
    text = (inspect.getdoc(api.verify) or "").partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", text, re.MULTILINE) == list(inspect.signature(api.verify).parameters)


@pytest.mark.parametrize("cls", FIELDS)
def test_the_fields_of(cls: type):
    assert " ".join(field.name for field in fields(cls)) == FIELDS[cls]


def test_reports_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Tolerance().atol = 1.0


@pytest.mark.parametrize(
    ("module", "cls"),
    [(finding, Finding), (tolerance, Tolerance), (report, VerifyReport), (settings, VerifySettings)],
)
def test_every_field_has_a_docstring(module: object, cls: type):
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    documented = {
        node.target.id
        for node, following in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr)
    }
    assert documented == {field.name for field in fields(cls)}


def test_every_kind_has_a_meaning_a_cure_and_a_line_in_the_docs():
    kinds = set(get_args(Kind))
    assert kinds == set(MEANINGS) == set(CURES)
    assert kinds > ERRORS
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == kinds


def test_importing_overlap_does_not_load_it():
    code = "import overlap, overlap.ops, sys; print('overlap.verify' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"
