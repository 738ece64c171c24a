"""The ops as torch.library sees them: what compilers may assume holds, and compiled programs give equal bits."""

import pytest
import torch
from ops.layouts import packed_slots
from ops.numeric import CPU, poisoned, same_bits, values, wild
from ops.running import face
from ops.stepping import ADAMW, STEPS

from overlap import ops
from overlap.errors import ConfigError
from overlap.ops import check
from overlap.ops.library import as_tensor, words_of
from overlap.ops.scalars import as_int64

SHAPES = [(6, 5), (7,), (3, 2, 4)]
SLOTS, WIDTH = packed_slots(SHAPES, world=2, gap=1)
WORDS = words_of(SLOTS)

compiled = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def _native():
    with face("native"):
        yield


def bucket():
    return values(2 * WIDTH, torch.float32, CPU).view(2, WIDTH)


def tensors():
    return [values(slot.numel, torch.bfloat16, CPU).view(shape) for slot, shape in zip(SLOTS, SHAPES, strict=True)]


def quantized():
    return torch.zeros(300, dtype=torch.int8), torch.zeros(2)


def stepped(name, *numbers, **options):
    """Arguments of an optimizer step, and what all of them take."""
    rest = {"grad_scale": torch.tensor(0.5), "skip": None, "maximize": True, "seed": -5, "start": 256} | options
    return (*STEPS[name].buffers(300), as_tensor(1e-2), *numbers), rest


CALLS = {
    "pack": lambda: (([*tensors()[:2], None], bucket(), WORDS, 0.5, True), {}),
    "unpack": lambda: ((bucket(), tensors(), WORDS, 0.5), {}),
    "reduce_sum": lambda: (
        ([torch.randn(9), torch.randn(9)], torch.randn(9), 0.5, True, torch.zeros(2, dtype=torch.float64)),
        {},
    ),
    "grad_norm": lambda: ((torch.randn(9), torch.zeros(2, dtype=torch.float64), True), {}),
    "adamw": lambda: stepped("adamw", 0.9, 0.95, 1e-8, 0.1, 3),
    "adamw_8bit": lambda: stepped("adamw_8bit", 0.9, 0.95, 1e-8, 0.1, 3),
    "sgd_momentum": lambda: stepped("sgd_momentum", 0.9, 0.1, 0.1, True, 3),
    "lion": lambda: stepped("lion", 0.9, 0.99, 0.1, 3),
    "quantize": lambda: ((torch.randn(300), *quantized(), 256), {}),
    "dequantize": lambda: ((*quantized(), torch.randn(300), 256, True), {}),
}


def test_every_op_is_there():
    assert set(CALLS) == set(check.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_is_what_its_schema_says(name):
    """What is written is declared, nothing else is; it traces with symbolic sizes and gives the same there."""
    arguments, options = CALLS[name]()
    results = torch.library.opcheck(getattr(torch.ops.overlap, name).default, arguments, options)
    assert set(results.values()) == {"SUCCESS"}
    assert "test_aot_dispatch_dynamic" in results


def test_checks_its_arguments_when_it_runs():
    with pytest.raises(ConfigError, match="out must have dtype float64"):
        torch.ops.overlap.grad_norm(torch.zeros(4), torch.zeros(2))


def test_seeds_keep_their_bits():
    assert [as_int64(seed) for seed in (None, 0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)] == [
        None, 0, (1 << 63) - 1, -(1 << 63), -1,
    ]  # fmt: skip


class TestCompiled:
    """Whole functions, without a break in the graph, against the same functions run eagerly."""

    pytestmark = compiled

    def compare(self, function, make, *scalars):
        torch._dynamo.reset()
        program = torch.compile(function, backend="aot_eager", fullgraph=True)
        for numbers in scalars:
            given = make()
            copies = [None if each is None else each.clone() for each in given]
            returned, wanted = program(*copies, *numbers), function(*given, *numbers)
            pairs = zip([*copies, returned], [*given, wanted], strict=True)
            assert all(one is None or same_bits(one, other) for one, other in pairs)

    @pytest.mark.parametrize("name", STEPS)
    @pytest.mark.parametrize("seed", [3, (1 << 64) - 3])
    def test_steps_with_any_scalar(self, name, seed):
        """More learning rates than torch compiles programs: it compiles one for all."""
        step = STEPS[name]

        def train(*arguments):
            *buffers, lr, number = arguments
            buffers[-2] = buffers[-2] * 2
            step.op(*buffers, **step.options | {"lr": lr, "step": number, "seed": seed, "start": 256})
            return buffers[0] + 1

        self.compare(train, lambda: step.buffers(300), *((0.01 * number, number) for number in range(1, 13)))

    def test_a_step_from_gradients_to_weights(self):
        def train(first, second, memory, norm, master, exp_avg, exp_avg_sq, shard, lr, number):
            ops.pack([first * 2, None, second], memory, SLOTS, scale=0.5)
            ops.grad_norm(memory.view(-1), norm)
            factor = (1 / norm[:1].sqrt()).float()
            grad = memory[1]
            ops.adamw(
                master, exp_avg, exp_avg_sq, grad, shard, grad_scale=factor, skip=norm[1:],
                **ADAMW | {"lr": lr, "step": number},
            )  # fmt: skip
            return shard.float().sum()

        def make():
            flats = [wild(WIDTH, torch.float32, CPU).clamp(-9, 9) for _ in range(2)]
            return [
                torch.randn(6, 5).t(), torch.randn(3, 2, 4), poisoned(2 * WIDTH, torch.float32, CPU).view(2, WIDTH),
                torch.zeros(2, dtype=torch.float64), *flats, flats[1].abs(), poisoned(WIDTH, torch.bfloat16, CPU),
            ]  # fmt: skip

        self.compare(train, make, (0.01, 1), (0.02, 2), (0.005, 3))

    def test_the_way_back(self):
        def gather(memory, payload, scales, out, first, third):
            flat = memory.view(-1)
            ops.quantize(flat, payload, scales, block=32)
            ops.dequantize(payload, scales, out, block=32)
            ops.reduce_sum([flat, out], out, scale=0.5)
            ops.unpack(out.view(2, WIDTH), [first, None, third], SLOTS, scale=2.0)
            return first.sum() + third.sum()

        def make():
            size = 2 * WIDTH
            outputs = [torch.zeros(size, dtype=torch.int8), torch.zeros(-(-size // 32)), torch.zeros(size)]
            return [bucket(), *outputs, torch.zeros(6, 5), torch.zeros(3, 2, 4).bfloat16()]

        self.compare(gather, make, ())
