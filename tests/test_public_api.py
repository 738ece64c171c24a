"""The public names, frozen: whoever changes one changes this file too, and the changelog."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import torch

import overlap
from overlap import ShardOptions, config, ops

# name -> signature; None where a class is not called by users (errors take a message).
PUBLIC: dict[str, str | None] = {
    "AdamW": "(params: 'Iterable[Any]', lr: 'float | Tensor' = 0.001, betas: 'tuple[float, float]' = (0.9, 0.999), "
    "eps: 'float' = 1e-08, weight_decay: 'float' = 0.01, *, max_grad_norm: 'float | None' = None, "
    "error_if_nonfinite: 'bool' = False, maximize: 'bool' = False) -> 'None'",
    "ConfigError": None,
    "DesyncError": None,
    "Engine": None,
    "LossScaler": "(init_scale: 'float' = 65536.0, growth_factor: 'float' = 2.0, backoff_factor: 'float' = 0.5, "
    "growth_interval: 'int' = 2000, *, min_scale: 'float' = 1.0, max_scale: 'float' = 16777216.0, "
    "on_min_scale: \"Literal['warn', 'raise']\" = 'warn', enabled: 'bool' = True) -> 'None'",
    "Muon": "(params: 'Iterable[Any]', lr: 'float | Tensor' = 0.001, weight_decay: 'float' = 0.1, "
    "momentum: 'float' = 0.95, nesterov: 'bool' = True, "
    "ns_coefficients: 'tuple[float, float, float]' = (3.4445, -4.775, 2.0315), eps: 'float' = 1e-07, "
    "ns_steps: 'int' = 5, adjust_lr_fn: 'str | None' = None, *, stacked: 'bool | None' = None, "
    "ns_dtype: 'torch.dtype | None' = None, max_grad_norm: 'float | None' = None, "
    "error_if_nonfinite: 'bool' = False) -> 'None'",
    "OverlapError": None,
    "ShardOptions": None,
    "ShardedModule": None,
    "StateError": None,
    "clip_grad_norm_": "(parameters: 'Iterable[Tensor] | Tensor', max_norm: 'float', norm_type: 'float' = 2.0, "
    "error_if_nonfinite: 'bool' = False, foreach: 'bool | None' = None) -> 'Tensor'",
    "engine_of": "(module: 'nn.Module | FSDPModule') -> 'Engine'",
    "fully_shard": "(module: 'M', mesh: 'DeviceMesh | None' = None, **options: 'Any') -> 'M'",
    "grad_norm": "(parameters: 'Iterable[Tensor] | Tensor', norm_type: 'float' = 2.0) -> 'Tensor'",
    "nonfinite_gradients": "(module: 'nn.Module') -> 'list[NonfiniteGradient]'",
    "register_forward_method": "(module: 'nn.Module | FSDPModule', method_name: 'str') -> 'None'",
    "shard": "(model: 'M', stage: 'int' = 3, unit: 'UnitRule | None' = None, mesh: 'DeviceMesh | None' = None, "
    "**options: 'Any') -> 'M'",
    "summon_full_params": "(module: 'nn.Module', *, recurse: 'bool' = True, writeback: 'bool' = True, "
    "rank0_only: 'bool' = False, offload_to_cpu: 'bool' = False) -> 'Iterator[None]'",
}

SHARDED_MODULE = {
    "no_sync": "(self) -> 'Iterator[None]'",
    "reset_iter_state": "(self) -> 'None'",
    "reshard": "(self) -> 'None'",
    "set_gradient_divide_factor": "(self, factor: 'float') -> 'None'",
    "set_is_last_backward": "(self, is_last_backward: 'bool') -> 'None'",
    "set_modules_to_backward_prefetch": "(self, modules: 'Sequence[FSDPModule]') -> 'None'",
    "set_modules_to_forward_prefetch": "(self, modules: 'Sequence[FSDPModule]') -> 'None'",
    "set_requires_all_reduce": "(self, requires_all_reduce: 'bool', *, recurse: 'bool' = True) -> 'None'",
    "set_requires_gradient_sync": "(self, requires_gradient_sync: 'bool', *, recurse: 'bool' = True) -> 'None'",
    "set_reshard_after_backward": "(self, reshard_after_backward: 'bool', *, recurse: 'bool' = True) -> 'None'",
    "set_reshard_after_forward": "(self, reshard_after_forward: 'bool', recurse: 'bool' = True) -> 'None'",
    "unshard": "(self, async_op: 'bool' = False) -> 'UnshardHandle | None'",
}

OPTIONS = {
    "stage": 3,
    "param_dtype": None,
    "reduce_dtype": torch.float32,
    "grad_dtype": torch.float32,
    "output_dtype": None,
    "cast_forward_inputs": True,
    "reshard_after_forward": True,
    "masters": "copy",
    "prefetch": 2,
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


# Parameters of each op as "name", "name=default"; behind "*" by keyword only.
STEP = "grad_scale=None skip=None maximize=False"
PLACE = "seed=None start=0"
OPS = {
    "adamw": f"master exp_avg exp_avg_sq grad shard * lr beta1 beta2 eps weight_decay step {STEP} {PLACE}",
    "adamw_8bit": "master exp_avg exp_avg_sq exp_avg_scale exp_avg_sq_scale grad shard * lr beta1 beta2 eps "
    f"weight_decay step seed start=0 {STEP}",
    "configure": "native=None cuda=None",
    "dequantize": "payload scales out * block=256 accumulate=False",
    "face_name": "device",
    "get_num_threads": "",
    "grad_norm": "grad out * accumulate=False",
    "lion": f"master exp_avg grad shard * lr beta1 beta2 weight_decay step {STEP} {PLACE}",
    "pack": "grads bucket slots * scale=1.0 accumulate=False",
    "quantize": "values payload scales * block=256",
    "reduce_sum": "rows out * scale=1.0 accumulate=False norm=None",
    "set_num_threads": "count",
    "sgd_momentum": "master momentum_buffer grad shard * lr momentum dampening=0.0 weight_decay=0.0 nesterov=False "
    f"step {STEP} {PLACE}",
    "unpack": "bucket tensors slots * scale=1.0",
}
OP_TYPES = {"FaceMode", "PackSlot"}


def test_the_names():
    assert overlap.__all__ == sorted(PUBLIC)
    assert set(overlap.__all__) <= set(dir(overlap))


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="module 'overlap' has no attribute 'nothing'"):
        overlap.nothing  # noqa: B018


def test_the_subpackage_of_the_same_name_does_not_hide_shard():
    code = "import overlap.shard.unit, overlap; print(overlap.shard.__module__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "overlap.engine.api"


def test_the_names_of_the_ops():
    assert ops.__all__ == sorted([*OPS, *OP_TYPES])
    assert ops.PackSlot._fields == ("offset", "chunk", "numel")
    assert get_args(ops.FaceMode) == ("auto", "on", "off")


@pytest.mark.parametrize("name", OPS)
def test_the_parameters_of_the_op(name: str):
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    words = [each.name if each.default is each.empty else f"{each.name}={each.default}" for each in parameters]
    by_keyword = [each.kind is each.KEYWORD_ONLY for each in parameters]
    assert all(each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
    if True in by_keyword:
        words.insert(by_keyword.index(True), "*")
    assert " ".join(words) == OPS[name]


@pytest.mark.parametrize("name", OPS)
def test_the_docstring_of_the_op_lists_every_parameter_in_order(name: str):
    op = getattr(ops, name)
    text = inspect.getdoc(op) or ""
    documented = re.findall(r"^    (\w+): ", text.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE)
    simple = {"face_name", "get_num_threads", "set_num_threads"}
    assert text
    assert documented == ([] if name in simple else list(inspect.signature(op).parameters))


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
