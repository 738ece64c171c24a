"""The check can fail: one value off in one output is found, and the command says so."""

import json
import sys

import pytest
import torch

from overlap.bench.faces import load_face
from overlap.bench.rows import OPS
from overlap.bench.verify import differing
from overlap.cli import main

# Where each op's outputs stand among its arguments. The sums of grad_norm have a tolerance and tests of their own.
OUTPUTS = {
    "pack": [1], "unpack": [1], "reduce_sum": [1], "adamw": [0, 1, 2, 4],
    "adamw_8bit": [0, 1, 2, 3, 4, 6], "sgd_momentum": [0, 1, 3], "lion": [0, 1, 3], "quantize": [1, 2],
    "dequantize": [2],
}  # fmt: skip


def flip_last_bit(tensor):
    """Change the last element's smallest bit."""
    flat = tensor.view(-1).view(torch.uint8)
    flat[-tensor.element_size()] ^= 1


def breaking(op, place):
    """The native face's op, and one bit wrong in the argument at ``place``."""
    right = getattr(load_face("native"), op)

    def broken(*arguments):
        right(*arguments)
        output = arguments[place]
        if output is not None:
            flip_last_bit(output[-1] if isinstance(output, list) else output)

    return broken


@pytest.mark.parametrize(("op", "place"), [(op, place) for op in OUTPUTS for place in OUTPUTS[op]])
def test_one_wrong_bit_is_counted_once(op, place, monkeypatch):
    face = load_face("native")
    monkeypatch.setattr(face, op, breaking(op, place))
    case = next(OPS[op](3000, torch.float32, torch.device("cpu")))
    assert case.wrong(face) == 1


@pytest.mark.parametrize("spoil", [lambda out: out[0].mul_(1 + 1e-9), lambda out: out[1].fill_(1)])
def test_a_wrong_norm_is_counted(spoil, monkeypatch):
    face = load_face("native")
    right = face.grad_norm
    monkeypatch.setattr(face, "grad_norm", lambda grad, out, add: (right(grad, out, add), spoil(out)))
    case = next(OPS["grad_norm"](3000, torch.float32, torch.device("cpu")))
    assert case.wrong(face) == 1


def test_the_norm_of_a_reduction_is_checked_too(monkeypatch):
    face = load_face("native")
    right = face.reduce_sum

    def broken(rows, out, scale, accumulate, norm):
        right(rows, out, scale, accumulate, norm)
        if norm is not None:
            norm[0] *= 1.001

    monkeypatch.setattr(face, "reduce_sum", broken)
    cases = OPS["reduce_sum"](3000, torch.bfloat16, torch.device("cpu"))
    assert [case.wrong(face) for case in cases] == [0, 0, 1]


def test_any_nan_equals_any_nan_and_zeros_have_signs():
    nans = torch.tensor([0x7FC00000, 0x7FC00001, 0x7F800000, 0], dtype=torch.int32).view(torch.float32)
    others = torch.tensor([0x7FC00001, 0x7FFFFFFF, 0x7F800000, -(2**31)], dtype=torch.int32).view(torch.float32)
    assert differing(nans, others) == 1


@pytest.mark.parametrize("op", ["dequantize", "lion"])
def test_the_command_exits_with_1(op, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(load_face("native"), op, breaking(op, OUTPUTS[op][0]))
    file = tmp_path / "result.json"
    arguments = ["--op", op, "--sizes", "2000", "--dtypes", "fp32", "--threads", "1", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["overlap", "bench", "op", *arguments, "--json", str(file)])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 1
    rows = json.loads(file.read_text())["rows"]
    assert {row["wrong"] for row in rows} == {1}
    cases = len({(row["dtype"], row["variant"]) for row in rows})
    assert f"wrong values: {cases}\n" in capsys.readouterr().out
