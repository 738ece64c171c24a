"""What C++ reads by itself: the tensors of a call, before anything is written."""

import pytest
import torch
from ops.numeric import poisoned, same_bits

from overlap import _native, ops
from overlap.errors import ConfigError
from overlap.ops import native, reference

SLOT = (ops.PackSlot(0, 6, 6),)


class Subclass(torch.Tensor):
    """Not a plain tensor: its memory may be anything."""


@pytest.fixture(autouse=True)
def on_native(monkeypatch):
    monkeypatch.setattr("overlap.ops.faces._cpu_face", lambda: native)


def test_parameters_and_tensors_that_require_grad_are_read():
    grad = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    out = torch.zeros(2, dtype=torch.float64)
    ops.grad_norm(grad, out)
    assert out.tolist() == [25.0, 0.0]
    ops.grad_norm(torch.tensor([1.0], requires_grad=True), out, accumulate=True)
    assert out.tolist() == [26.0, 0.0]


def test_views_start_where_their_storage_offset_says():
    whole = torch.arange(10.0)
    out = torch.zeros(2, dtype=torch.float64)
    ops.grad_norm(whole[7:9], out)
    assert out.tolist() == [7.0**2 + 8.0**2, 0.0]


def test_a_subclass_is_refused_and_nothing_is_written():
    out = torch.full((2,), -1.0, dtype=torch.float64)
    with pytest.raises(ConfigError, match="grad_norm must be given tensors that C\\+\\+ can read"):
        ops.grad_norm(torch.ones(3).as_subclass(Subclass), out)
    assert out.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(2, 3), torch.zeros(2, dtype=torch.float64)),
        (torch.ones(6)[::2], torch.zeros(2, dtype=torch.float64)),
        (torch.ones(3, dtype=torch.int32), torch.zeros(2, dtype=torch.float64)),
        (torch.ones(3), torch.zeros(2)),
        (torch.ones(3), torch.zeros(3, dtype=torch.float64)),
        (torch.ones(3).to_sparse(), torch.zeros(2, dtype=torch.float64)),
        (None, torch.zeros(2, dtype=torch.float64)),
        (torch.empty(3, device="meta"), torch.zeros(2, dtype=torch.float64)),
        (torch._efficientzerotensor(3), torch.zeros(2, dtype=torch.float64)),
        ("a string", torch.zeros(2, dtype=torch.float64)),
    ],
)
def test_what_does_not_fit_comes_back_as_false(arguments):
    assert _native.grad_norm(*arguments, False, 1) is False


def test_every_byte_of_a_refused_update_is_left_alone():
    buffers = [torch.randn(8) for _ in range(4)]
    before = [buffer.clone() for buffer in buffers]
    with pytest.raises(ConfigError, match="shard"):
        ops.adamw(
            *buffers, torch.empty(7), lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0, step=1
        )  # fmt: skip
    assert all(same_bits(now, then) for now, then in zip(buffers, before, strict=True))


def test_more_dimensions_than_cpp_walks():
    """Nine that do not merge: packed by way of one copy, unpacked by way of another."""
    grad = torch.randn((4,) * 9)[(slice(None, None, 2),) * 9]
    slots = (ops.PackSlot(1, grad.numel(), grad.numel()),)
    bucket, want = (torch.full((1, grad.numel() + 1), float("nan")) for _ in range(2))
    ops.pack([grad], bucket, slots, scale=0.5)
    reference.pack([grad], want, slots, 0.5, False)
    assert same_bits(bucket, want)
    back = torch.full((4,) * 9, float("nan"))[(slice(None, None, 2),) * 9]
    ops.unpack(bucket, [back], slots, scale=2.0)
    assert same_bits(back, grad)


def test_a_list_and_a_tuple_of_tensors_will_do():
    for make in (list, tuple):
        out = poisoned(6, torch.float32, torch.device("cpu"))
        ops.reduce_sum(make((torch.ones(6), torch.ones(6))), out)
        assert out.tolist() == [2.0] * 6
        bucket = poisoned(6, torch.float32, torch.device("cpu")).view(1, 6)
        ops.pack(make((torch.ones(2, 3),)), bucket, SLOT)
        assert bucket.tolist() == [[1.0] * 6]


def test_a_gradient_whose_memory_was_let_go_is_refused_and_not_taken_for_a_missing_one():
    grad = torch.ones(6)
    grad.untyped_storage().resize_(0)
    bucket = torch.full((1, 6), 7.0)
    with pytest.raises(ConfigError):
        ops.pack([grad], bucket, SLOT)
    assert bucket.tolist() == [[7.0] * 6]


def test_a_lazily_negated_gradient_is_refused_and_not_packed_with_the_wrong_sign():
    grad = torch.complex(torch.zeros(6), torch.arange(6.0)).conj().imag
    assert grad.is_neg()
    bucket = torch.full((1, 6), 7.0)
    with pytest.raises(ConfigError):
        ops.pack([grad], bucket, SLOT)
    ops.pack([grad.resolve_neg()], bucket, SLOT)
    assert bucket.tolist() == [[0.0, -1.0, -2.0, -3.0, -4.0, -5.0]]


@pytest.mark.parametrize("wrong", [None, "1", 1.5, True, 1 << 70])
def test_scalars_are_verified_before_anything_is_written(wrong):
    buffers = [torch.ones(8) for _ in range(4)]
    coefficients = (0.9, 0.1, 0.9, 0.1, 0.5, 1e-8, 0.1)
    rest = (None, None, False, None, 0)
    assert _native.adamw(*buffers, None, coefficients, *rest, wrong, 1) is False
    assert _native.adamw(*buffers, None, coefficients[:6], *rest, 1, 1) is False
    assert all(buffer.tolist() == [1.0] * 8 for buffer in buffers)
    with pytest.raises(TypeError, match="expected 13 arguments, but got 4"):
        _native.adamw(*buffers)


@pytest.mark.parametrize("flag", [True, False])
def test_a_bool_tensor_is_a_flag(flag):
    weights, momentum, grad = torch.ones(4), torch.zeros(4), torch.ones(4)
    skip = torch.tensor([flag])
    ops.lion(weights, momentum, grad, None, lr=0.5, beta1=0.9, beta2=0.99, weight_decay=0.0, step=1, skip=skip)
    assert weights.tolist() == [1.0 if flag else 0.5] * 4


def test_flags_that_are_not_finite_skip():
    """A NaN flag counts as set: it is not zero."""
    buffers = [torch.ones(4) for _ in range(4)]
    for dtype in (torch.float32, torch.float64):
        skip = torch.tensor([float("nan")], dtype=dtype)
        ops.lion(*buffers[:3], None, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, step=1, skip=skip)
    assert all(buffer.tolist() == [1.0] * 4 for buffer in buffers)
