"""The public names, frozen: whoever changes one changes this file too, and the changelog."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import overlap
from overlap import ShardOptions, config

# name -> signature; None where a class is not called by users (errors take a message).
PUBLIC: dict[str, str | None] = {
    "AdamW": "(params: 'Iterable[Any]', lr: 'float' = 0.001, betas: 'tuple[float, float]' = (0.9, 0.999), "
    "eps: 'float' = 1e-08, weight_decay: 'float' = 0.01, *, max_grad_norm: 'float | None' = None, "
    "maximize: 'bool' = False) -> 'None'",
    "ConfigError": None,
    "DesyncError": None,
    "Engine": None,
    "OverlapError": None,
    "ShardOptions": None,
    "ShardedModule": None,
    "StateError": None,
    "clip_grad_norm_": "(parameters: 'Iterable[nn.Parameter]', max_norm: 'float', *, "
    "error_if_nonfinite: 'bool' = False) -> 'Tensor'",
    "engine_of": "(module: 'nn.Module | ShardedModule') -> 'Engine'",
    "fully_shard": "(module: 'M', mesh: 'DeviceMesh | None' = None, **options: 'Any') -> 'M'",
    "shard": "(model: 'M', stage: 'int' = 3, unit: 'UnitRule | None' = None, mesh: 'DeviceMesh | None' = None, "
    "**options: 'Any') -> 'M'",
}

SHARDED_MODULE = {
    "no_sync": "(self) -> 'Iterator[None]'",
    "set_gradient_divide_factor": "(self, factor: 'float') -> 'None'",
    "set_requires_gradient_sync": "(self, requires_gradient_sync: 'bool', *, recurse: 'bool' = True) -> 'None'",
}

OPTIONS = {
    "stage": 3,
    "param_dtype": None,
    "reduce_dtype": torch.float32,
    "grad_dtype": torch.float32,
    "output_dtype": None,
    "cast_forward_inputs": True,
    "reshard_after_forward": True,
    "prefetch": 1,
    "bucket_bytes": 64 * 1024 * 1024,
    "replicate_max_numel": 8192,
    "init": "broadcast",
    "init_fn": None,
    "lanes": "auto",
    "timeline": False,
    "nvtx": False,
    "poison": False,
    "timeout_s": 600.0,
}


def test_the_names():
    assert overlap.__all__ == sorted(PUBLIC)


@pytest.mark.parametrize("name", [name for name, signature in PUBLIC.items() if signature])
def test_the_signature_of(name: str):
    assert str(inspect.signature(getattr(overlap, name))) == PUBLIC[name]


@pytest.mark.parametrize("name", SHARDED_MODULE)
def test_the_signature_of_the_method(name: str):
    method = inspect.unwrap(vars(overlap.ShardedModule)[name])
    assert str(inspect.signature(method)) == SHARDED_MODULE[name]


def test_options_and_their_defaults():
    options = ShardOptions()
    assert {field.name: getattr(options, field.name) for field in fields(ShardOptions)} == OPTIONS


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_has_a_docstring_of_its_own(name: str):
    public = getattr(overlap, name)
    inherited = [base.__doc__ for base in getattr(public, "__mro__", ())[1:]]
    assert public.__doc__ not in (None, "", *inherited)


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isclass(getattr(overlap, name))])
def test_every_public_method_has_a_docstring(name: str):
    members = {key: value for key, value in vars(getattr(overlap, name)).items() if not key.startswith("_")}
    spoken = {key: value for key, value in members.items() if inspect.isfunction(value) or isinstance(value, property)}
    silent = [key for key, value in spoken.items() if not value.__doc__]
    assert not silent


def test_every_option_has_a_docstring():
    source = ast.parse(Path(config.__file__).read_text(encoding="utf-8"))
    (options,) = (node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "ShardOptions")
    documented = {
        node.target.id
        for node, following in zip(options.body, options.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_text(following)
    }
    assert documented == {field.name for field in fields(ShardOptions)}


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and len(node.value.value) > 20
    )


def test_errors_form_one_tree():
    """Callers catch one root, or what Python itself would raise."""
    for error, builtin in ((overlap.ConfigError, ValueError), (overlap.StateError, RuntimeError)):
        assert issubclass(error, overlap.OverlapError)
        assert issubclass(error, builtin)
    assert issubclass(overlap.DesyncError, overlap.OverlapError)
    assert issubclass(overlap.DesyncError, RuntimeError)
