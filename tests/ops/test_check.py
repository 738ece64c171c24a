"""Every face refuses the same calls with the same words, before it writes anything."""

import re

import pytest
import torch
from ops.stepping import ADAMW, LION, SGD

from overlap import ops
from overlap.errors import ConfigError
from overlap.ops import PackSlot, check

SLOT = PackSlot(0, 2, 4)
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


class Calls:
    """Calls that fit, but for what a case changes; tensors on the device of the face."""

    def __init__(self, device):
        self.device = device

    def fp32(self, *shape):
        return torch.zeros(shape, device=self.device)

    def pack(self, grads, bucket, *slots):
        ops.pack(grads, bucket, slots)

    def unpack(self, tensors, bucket, *slots):
        ops.unpack(bucket, tensors, slots)

    def adamw(self, **changes):
        flats = {name: self.fp32(4) for name in ("master", "exp_avg", "exp_avg_sq", "grad")}
        ops.adamw(**(flats | {"shard": None} | ADAMW | changes))

    def adamw_8bit(self, **changes):
        flats = {name: self.fp32(300) for name in ("master", "grad")}
        flats |= {name: self.fp32(300).to(torch.uint8) for name in ("exp_avg", "exp_avg_sq")}
        flats |= {name: self.fp32(2) for name in ("exp_avg_scale", "exp_avg_sq_scale")}
        ops.adamw_8bit(**(flats | {"shard": None, "seed": 1} | ADAMW | changes))

    def sgd(self, **changes):
        flats = {name: self.fp32(4) for name in ("master", "momentum_buffer", "grad")}
        ops.sgd_momentum(**(flats | {"shard": None} | SGD | changes))

    def lion(self, **changes):
        flats = {name: self.fp32(4) for name in ("master", "exp_avg", "grad")}
        ops.lion(**(flats | {"shard": None} | LION | changes))

    def quantize(self, **changes):
        flats = {"values": self.fp32(300), "payload": self.fp32(300).to(torch.int8), "scales": self.fp32(2)}
        ops.quantize(**(flats | changes))

    def dequantize(self, **changes):
        flats = {"payload": self.fp32(300).to(E4M3), "scales": self.fp32(2), "out": self.fp32(300)}
        ops.dequantize(**(flats | changes))


REFUSED = {
    "grads must have one entry per slot (1)": lambda c: c.pack([], c.fp32(2, 4), SLOT),
    "grads[0] must have its slot's 4 elements": lambda c: c.pack([c.fp32(5)], c.fp32(2, 4), SLOT),
    "grads[0] must have dtype": lambda c: c.pack([c.fp32(4).double()], c.fp32(2, 4), SLOT),
    "grads[0] must be on": lambda c: c.pack([c.fp32(4).to("meta")], c.fp32(2, 4), SLOT),
    "bucket must be contiguous [world, width], but": lambda c: c.pack([None], c.fp32(4, 2).t(), SLOT),
    "bucket must be contiguous [world, width], but got shape (8,)": lambda c: c.pack([None], c.fp32(8), SLOT),
    "bucket must have dtype": lambda c: c.pack([None], c.fp32(2, 4).double(), SLOT),
    "slots must be a tuple": lambda c: ops.pack([None], c.fp32(2, 4), [SLOT]),
    "slots[0] must have chunk * 1 rows >= numel": lambda c: c.pack([None], c.fp32(1, 4), SLOT),
    "slots[0] must lie in columns [0, 1)": lambda c: c.pack([None] * 2, c.fp32(2, 4), SLOT, PackSlot(1, 2, 3)),
    "slots[0] must lie in columns [0, 4)": lambda c: c.pack([None], c.fp32(2, 4), PackSlot(3, 2, 4)),
    "tensors must have one entry per slot (1)": lambda c: c.unpack([], c.fp32(2, 4), SLOT),
    "tensors[0] must have its slot's 4 elements": lambda c: c.unpack([c.fp32(5)], c.fp32(2, 4), SLOT),
    "tensors[0] must have dtype": lambda c: c.unpack([c.fp32(4).double()], c.fp32(2, 4), SLOT),
    "tensors[0] must have memory of its own": lambda c: c.unpack([c.fp32(1).expand(4)], c.fp32(2, 4), SLOT),
    "tensors[1] must have memory of its own": lambda c: c.unpack(
        [None, c.fp32(5).as_strided((2, 2), (2, 2))], c.fp32(2, 4), SLOT, PackSlot(2, 2, 4)
    ),
    "master must have dtype float32 or bfloat16": lambda c: c.adamw(master=c.fp32(4).half()),
    "exp_avg must be a contiguous 1-D tensor of 4": lambda c: c.adamw(exp_avg=c.fp32(8)[::2]),
    "exp_avg must have dtype float32 or bfloat16": lambda c: c.adamw(exp_avg=c.fp32(4).half()),
    "exp_avg_sq must have dtype float32": lambda c: c.adamw(exp_avg_sq=c.fp32(4).to(BF16)),
    "grad must be a contiguous 1-D tensor of 4": lambda c: c.adamw(grad=c.fp32(5)),
    "grad must be on": lambda c: c.adamw(grad=c.fp32(4).to("meta")),
    "shard must be a contiguous 1-D tensor of 4": lambda c: c.adamw(shard=c.fp32(2, 2)),
    "shard must be None for bfloat16 weights": lambda c: c.adamw(master=c.fp32(4).to(BF16), shard=c.fp32(4), seed=1),
    "grad_scale must have one element": lambda c: c.adamw(grad_scale=c.fp32(2)),
    "grad_scale must have dtype float32": lambda c: c.adamw(grad_scale=c.fp32(1).double()),
    "skip must have dtype": lambda c: c.adamw(skip=c.fp32(1).to(torch.uint8)),
    "step must count from 1": lambda c: c.adamw(step=0),
    "beta1 must be at least 0 and below 1, but got 1.0": lambda c: c.adamw(beta1=1.0),
    "beta2 must be at least 0 and below 1, but got -0.5": lambda c: c.adamw(beta2=-0.5),
    "seed must be given for bfloat16 weights": lambda c: c.adamw(master=c.fp32(4).to(BF16)),
    "seed must be an integer from 0 to 2**64 - 1, but got -1": lambda c: c.adamw(seed=-1),
    "seed must be an integer from 0 to 2**64 - 1, but got 18446744073709551616": lambda c: c.adamw(seed=1 << 64),
    "seed must be an integer from 0 to 2**64 - 1, but got 0.5": lambda c: c.adamw(seed=0.5),
    "start must be a multiple of 8, 0 or more, but got 4": lambda c: c.adamw(start=4),
    "start must be a multiple of 8, 0 or more, but got -8": lambda c: c.adamw(start=-8),
    "master must have dtype float32, but": lambda c: c.adamw_8bit(master=c.fp32(300).to(BF16)),
    "exp_avg must have dtype uint8": lambda c: c.adamw_8bit(exp_avg=c.fp32(300)),
    "exp_avg_sq must have dtype uint8": lambda c: c.adamw_8bit(exp_avg_sq=c.fp32(300).to(torch.int8)),
    "exp_avg_scale must be a contiguous 1-D tensor of 2": lambda c: c.adamw_8bit(exp_avg_scale=c.fp32(1)),
    "exp_avg_sq_scale must be a contiguous 1-D tensor of 2": lambda c: c.adamw_8bit(exp_avg_sq_scale=c.fp32(300)),
    "seed must be an integer from 0 to 2**64 - 1, but got None": lambda c: c.adamw_8bit(seed=None),
    "start must be a multiple of 256, 0 or more, but got 8": lambda c: c.adamw_8bit(start=8),
    "momentum_buffer must be a contiguous 1-D tensor of 4": lambda c: c.sgd(momentum_buffer=c.fp32(3)),
    "momentum_buffer must have dtype float32 or bfloat16": lambda c: c.sgd(momentum_buffer=c.fp32(4).half()),
    "step must count from 1, but got 0": lambda c: c.sgd(step=0),
    "start must be a multiple of 8, 0 or more, but got 12": lambda c: c.sgd(start=12),
    "exp_avg must be a contiguous 1-D tensor of 4 elements, but got shape (3,)": lambda c: c.lion(exp_avg=c.fp32(3)),
    "step must count from 1, but got -1": lambda c: c.lion(step=-1),
    "beta1 must be at least 0 and below 1, but got nan": lambda c: c.lion(beta1=float("nan")),
    "out must have dtype float64": lambda c: ops.grad_norm(c.fp32(4), c.fp32(2)),
    "out must be a contiguous [2] tensor": lambda c: ops.grad_norm(c.fp32(4), c.fp32(3).double()),
    "grad must be a contiguous 1-D tensor": lambda c: ops.grad_norm(c.fp32(2, 2), c.fp32(2).double()),
    "rows must hold at least one tensor": lambda c: ops.reduce_sum([], c.fp32(4)),
    "rows[1] must have dtype float32": lambda c: ops.reduce_sum([c.fp32(4), c.fp32(4).half()], c.fp32(4)),
    "rows[1] must be a contiguous 1-D tensor of 4": lambda c: ops.reduce_sum([c.fp32(4), c.fp32(3)], c.fp32(4)),
    "out must be a contiguous 1-D tensor of 4": lambda c: ops.reduce_sum([c.fp32(4)], c.fp32(3)),
    "norm must have dtype float64": lambda c: ops.reduce_sum([c.fp32(4)], c.fp32(4), norm=c.fp32(2)),
    "norm must be a contiguous [2] tensor": lambda c: ops.reduce_sum(
        [c.fp32(4)], c.fp32(4), norm=c.fp32(4).double()[::2]
    ),
    "values must be a contiguous 1-D tensor of 300": lambda c: c.quantize(values=c.fp32(30, 10)),
    "payload must have dtype int8 or float8_e4m3fn": lambda c: c.quantize(payload=c.fp32(300).to(torch.uint8)),
    "payload must be a contiguous 1-D tensor of 300": lambda c: c.quantize(payload=c.fp32(299).to(torch.int8)),
    "scales must be a contiguous 1-D tensor of 2": lambda c: c.quantize(scales=c.fp32(3)),
    "scales must be a contiguous 1-D tensor of 5": lambda c: c.quantize(block=64),
    "scales must have dtype float32": lambda c: c.quantize(scales=c.fp32(2).double()),
    "block must be a power of two from 32 to 16384, but got 16": lambda c: c.quantize(block=16),
    "block must be a power of two from 32 to 16384, but got 96": lambda c: c.quantize(block=96),
    "block must be a power of two from 32 to 16384, but got 32768": lambda c: c.dequantize(block=32768),
    "block must be a power of two from 32 to 16384, but got 0": lambda c: c.dequantize(block=0),
    "out must be a contiguous 1-D tensor of 300": lambda c: c.dequantize(out=c.fp32(299)),
    "out must have dtype float32 or bfloat16 or float16": lambda c: c.dequantize(out=c.fp32(300).double()),
    "payload must have dtype int8 or float8_e4m3fn, but got torch.float32": lambda c: c.dequantize(payload=c.fp32(300)),
}

NO_TENSOR = {
    "master must be a torch.Tensor, but got list": lambda c: c.adamw(master=[0.0] * 9),
    "exp_avg must be a torch.Tensor, but got None": lambda c: c.adamw(exp_avg=None),
    "exp_avg_sq must be a torch.Tensor, but got None": lambda c: c.adamw_8bit(exp_avg_sq=None),
    "exp_avg_scale must be a torch.Tensor, but got 1.0 (float)": lambda c: c.adamw_8bit(exp_avg_scale=1.0),
    "momentum_buffer must be a torch.Tensor, but got None": lambda c: c.sgd(momentum_buffer=None),
    "grad must be a torch.Tensor, but got None": lambda c: c.adamw(grad=None),
    "shard must be a torch.Tensor, but got 0 (int)": lambda c: c.lion(shard=0),
    "grad_scale must be a torch.Tensor, but got 0.5 (float)": lambda c: c.adamw(grad_scale=0.5),
    "skip must be a torch.Tensor, but got True (bool)": lambda c: c.adamw(skip=True),
    "grad must be a torch.Tensor, but got 1 (int)": lambda c: ops.grad_norm(1, c.fp32(2).double()),
    "out must be a torch.Tensor, but got None": lambda c: ops.grad_norm(c.fp32(4), None),
    "out must be a torch.Tensor, but got [] (list)": lambda c: ops.reduce_sum([c.fp32(4)], []),
    "rows[0] must be a torch.Tensor, but got None": lambda c: ops.reduce_sum([None], c.fp32(4)),
    "rows[1] must be a torch.Tensor, but got None": lambda c: ops.reduce_sum([c.fp32(4), None], c.fp32(4)),
    "rows must be a list or tuple of tensors, but got None": lambda c: ops.reduce_sum(None, c.fp32(4)),
    "rows must be a list or tuple of tensors, but got Tensor": lambda c: ops.reduce_sum(c.fp32(2, 4), c.fp32(4)),
    "norm must be a torch.Tensor, but got True": lambda c: ops.reduce_sum([c.fp32(4)], c.fp32(4), norm=True),
    "bucket must be a torch.Tensor, but got None": lambda c: c.pack([None], None, SLOT),
    "bucket must be a torch.Tensor, but got 3 (int)": lambda c: c.unpack([None], 3, SLOT),
    "grads[0] must be a torch.Tensor, but got 3 (int)": lambda c: c.pack([3], c.fp32(2, 4), SLOT),
    "grads must be a list or tuple of tensors, but got None": lambda c: c.pack(None, c.fp32(2, 4), SLOT),
    "tensors[0] must be a torch.Tensor, but got 3 (int)": lambda c: c.unpack([3], c.fp32(2, 4), SLOT),
    "tensors must be a list or tuple of tensors, but got None": lambda c: c.unpack(None, c.fp32(2, 4), SLOT),
    "slots[0] must be a PackSlot of ints, but got (0, 1, 2)": lambda c: c.pack([None], c.fp32(2, 4), (0, 1, 2)),
    "slots[0] must be a PackSlot of ints, but got [0, 1, 2]": lambda c: c.unpack([None], c.fp32(2, 4), [0, 1, 2]),
    "slots[0] must be a PackSlot of ints, but got PackSlot(offset=0.5": lambda c: c.pack(
        [None], c.fp32(2, 4), PackSlot(0.5, 1, 2)
    ),
    "values must be a torch.Tensor, but got None": lambda c: c.quantize(values=None),
    "payload must be a torch.Tensor, but got None": lambda c: c.dequantize(payload=None),
    "scales must be a torch.Tensor, but got 1.0 (float)": lambda c: c.dequantize(scales=1.0),
}

NO_NUMBER = {
    "step must count from 1, but got 1.5": lambda c: c.adamw(step=1.5),
    "step must count from 1, but got 2.0": lambda c: c.sgd(step=2.0),
    "step must count from 1, but got True": lambda c: c.lion(step=True),
    "step must count from 1, but got None": lambda c: c.adamw_8bit(step=None),
    "start must be a multiple of 8, 0 or more, but got 8.0": lambda c: c.adamw(start=8.0),
    "start must be a multiple of 256, 0 or more, but got None": lambda c: c.adamw_8bit(start=None),
    "seed must be an integer from 0 to 2**64 - 1, but got 1.0": lambda c: c.lion(seed=1.0),
    "block must be a power of two from 32 to 16384, but got 256.0": lambda c: c.quantize(block=256.0),
    "block must be a power of two from 32 to 16384, but got True": lambda c: c.dequantize(block=True),
    "lr must be a finite number of at least 0, but got -0.1": lambda c: c.adamw(lr=-0.1),
    "lr must be a finite number of at least 0, but got nan": lambda c: c.sgd(lr=float("nan")),
    "lr must be a finite number of at least 0, but got inf": lambda c: c.lion(lr=float("inf")),
    "lr must be a number, but got None": lambda c: c.adamw_8bit(lr=None),
    "eps must be a finite number of at least 0, but got -1e-08": lambda c: c.adamw(eps=-1e-8),
    "eps must be a finite number of at least 0, but got nan": lambda c: c.adamw_8bit(eps=float("nan")),
    "beta2 must be at least 0 and below 1, but got None": lambda c: c.lion(beta2=None),
    "weight_decay must be a finite number of at least 0, but got inf": lambda c: c.lion(weight_decay=float("inf")),
    "momentum must be a finite number of at least 0, but got nan": lambda c: c.sgd(momentum=float("nan")),
    "dampening must be a finite number, but got inf": lambda c: c.sgd(dampening=float("inf")),
    "scale must be a finite number, but got None": lambda c: ops.reduce_sum([c.fp32(4)], c.fp32(4), scale=None),
    "maximize must be True or False, but got None": lambda c: c.adamw(maximize=None),
    "nesterov must be True or False, but got 2": lambda c: c.sgd(nesterov=2),
    "accumulate must be True or False, but got None": lambda c: c.dequantize(accumulate=None),
}


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


NO_MEMORY = {
    "grad must have memory, but got none for shape (4,)": lambda c: c.adamw(grad=freed(c.fp32(4))),
    "skip must have memory": lambda c: c.adamw(skip=freed(c.fp32(1))),
    "shard must have memory": lambda c: c.lion(shard=torch._efficientzerotensor((4,), device=c.device)),
    "values must have memory": lambda c: c.quantize(values=freed(c.fp32(300))),
    "rows[1] must have memory": lambda c: ops.reduce_sum([c.fp32(4), freed(c.fp32(4))], c.fp32(4)),
    "norm must have memory": lambda c: ops.reduce_sum([c.fp32(4)], c.fp32(4), norm=freed(c.fp32(2).double())),
    "bucket must have memory": lambda c: c.pack([None], freed(c.fp32(2, 4)), SLOT),
    "grads[0] must have memory": lambda c: c.pack([freed(c.fp32(4))], c.fp32(2, 4), SLOT),
    "tensors[0] must have memory": lambda c: c.unpack([freed(c.fp32(4))], c.fp32(2, 4), SLOT),
    "values must have a strided layout": lambda c: c.quantize(values=c.fp32(300).to_sparse()),
}

NEGATED = {
    "grad must hold its own values, but got a lazily negated view": lambda t: check.grad_norm(t, NORM, False),
    "rows[0] must hold its own values": lambda t: check.reduce_sum([t], torch.zeros(4), 1.0, False, None),
    "grads[0] must hold its own values": lambda t: check.pack([t], torch.zeros(2, 4), (SLOT,), 1.0, False),
    "tensors[0] must hold its own values": lambda t: check.unpack(torch.zeros(2, 4), [t], (SLOT,), 1.0),
}
NORM = torch.zeros(2, dtype=torch.float64)

REFUSED |= NO_TENSOR | NO_NUMBER | NO_MEMORY


@pytest.mark.parametrize("text", NEGATED)
def test_lazily_negated_views_are_refused_by_checks(text):
    """C++ cannot see them, so this is about the faces behind the checks."""
    values = torch._neg_view(torch.zeros(4))
    with pytest.raises(ConfigError, match=re.escape(text)):
        NEGATED[text](values)
    check.grad_norm(values.resolve_neg(), NORM, False)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "2"])
def test_scales_are_finite_numbers(scale):
    for call in (
        lambda: check.pack([None], torch.zeros(2, 4), (SLOT,), scale, False),
        lambda: check.unpack(torch.zeros(2, 4), [None], (SLOT,), scale),
        lambda: check.reduce_sum([torch.zeros(4)], torch.zeros(4), scale, False, None),
    ):
        with pytest.raises(ConfigError, match="scale must be a finite number"):
            call()


@pytest.mark.parametrize("set_", [True, False])
def test_a_bool_skips_as_well(device, set_):
    master = torch.ones(4, device=device)
    skip = torch.tensor([set_], device=device)
    Calls(device).adamw(master=master, grad=torch.ones(4, device=device), skip=skip)
    assert bool((master == 1).all()) is set_


def test_rates_may_be_tensors(device):
    master = torch.ones(4, device=device)
    Calls(device).lion(master=master, lr=torch.tensor(0.5))
    assert master.tolist() == pytest.approx([1 - 0.5 * LION["weight_decay"]] * 4)


@pytest.mark.parametrize("shape", [(2, 2), (4, 1)])
def test_reduce_sum_wants_a_flat_out(device, shape):
    with pytest.raises(ConfigError, match="out must be a contiguous 1-D tensor of 4 elements, but got shape"):
        ops.reduce_sum([torch.zeros(4, device=device)], torch.zeros(shape, device=device))


@pytest.mark.parametrize("text", REFUSED)
def test_refuses(device, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        REFUSED[text](Calls(device))


def test_the_calls_fit_but_for_what_a_case_changes(device):
    calls = Calls(device)
    calls.pack([calls.fp32(2, 2)], calls.fp32(2, 4), SLOT)
    calls.unpack([calls.fp32(2, 2).t()], calls.fp32(2, 4), SLOT)
    for call in (calls.adamw, calls.adamw_8bit, calls.sgd, calls.lion):
        call()
        call(seed=(1 << 64) - 1, start=1 << 40, step=1)
    calls.quantize()
    calls.dequantize(block=256, accumulate=True)


def test_nothing_is_written_before_the_last_argument_is_checked(device):
    calls = Calls(device)
    flats = {name: torch.ones(4, device=device) for name in ("master", "exp_avg", "exp_avg_sq", "grad")}
    with pytest.raises(ConfigError):
        calls.adamw(**flats, shard=calls.fp32(4), skip=calls.fp32(2))
    assert all(torch.equal(flat, torch.ones(4, device=device)) for flat in flats.values())
    bucket = torch.ones(2, 4, device=device)
    with pytest.raises(ConfigError):
        calls.pack([calls.fp32(4), calls.fp32(3)], bucket, SLOT, PackSlot(2, 2, 4))
    assert torch.equal(bucket, torch.ones(2, 4, device=device))


def test_views_of_every_order_have_memory_of_their_own(device):
    base = torch.zeros(3, 4, 6, device=device)
    for tensor in (base.permute(2, 0, 1), base[:, ::2, 1:], base.transpose(0, 2)[1:], base[:1].expand(1, 4, 6)):
        bucket = torch.ones(1, tensor.numel(), device=device)
        ops.unpack(bucket, [tensor], (PackSlot(0, tensor.numel(), tensor.numel()),))
        assert tensor.cpu().eq(1).all()
