"""The user's code by name, and settings that travel to the ranks."""

import sys

import pytest
import torch
from support.clear_error import clear_error

from overlap import ConfigError
from overlap.verify.settings import VerifySettings
from overlap.verify.target import load


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    """Folders of targets must not stay in the path of other tests."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from beside import VALUE\n\ndef make_model():\n    return VALUE\n")
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    return path


def test_a_file_is_imported_once_and_finds_its_neighbours(file):
    make = load(f"{file}:make_model")
    assert make() == 7
    assert load("make_model", near=f"{file}:other") is make
    assert load(f"{file}:make_model", near="json:dumps") is make


def test_a_module_by_its_dotted_name():
    assert load("torch.nn:Linear") is torch.nn.Linear


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("make_model", ("target", "FILE.py:factory")),
        ("no/such.py:make_model", ("target", "no/such.py", "exists")),
        ("no_such_module:f", ("no_such_module", "importable", "ModuleNotFoundError")),
        ("torch.nn:Linera", ("torch.nn:Linera", "did you mean Linear?")),
    ],
)
def test_targets_that_lead_nowhere(target, words):
    with clear_error(ConfigError, *words):
        load(target)


def test_a_file_that_fails_says_why(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with clear_error(ConfigError, "broken.py", "importable", "ZeroDivisionError: division by zero"):
        load(f"{path}:f")


def test_settings_travel():
    settings = VerifySettings(target="a.py:f", options=("prefetch=2",), param_dtype="bf16", rtol=0.5)
    assert VerifySettings.from_json(settings.to_json()) == settings


def test_options_are_read():
    words = ("prefetch=2", "reduce-dtype=bf16", "poison=true", "timeout_s=1.5", "init=verify", "output_dtype=none")
    assert VerifySettings(target="a.py:f", stage=2, options=words, param_dtype="fp16").shard_options() == {
        "stage": 2,
        "param_dtype": torch.float16,
        "prefetch": 2,
        "reduce_dtype": torch.bfloat16,
        "poison": True,
        "timeout_s": 1.5,
        "init": "verify",
        "output_dtype": None,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"options": ("prefetch",)}, ("--set", "NAME=VALUE", "prefetch")),
        ({"param_dtype": "fp8"}, ("param_dtype", "fp32, bf16, fp16", "fp8")),
        ({"ranks": 0}, ("ranks", "positive", "0")),
    ],
)
def test_settings_that_cannot_be(given, words):
    with clear_error(ConfigError, *words):
        VerifySettings(target="a.py:f", **given)
