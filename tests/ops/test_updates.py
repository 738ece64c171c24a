"""What the four optimizer steps have in common: one body each time, four ops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.numeric import (
    CPU,
    FLOATS,
    STATES,
    few,
    floats,
    quiet_numpy,
    same_bits,
    seeds,
    shifts,
    sizes,
    torch_seeds,
    wild,
)
from ops.running import against_the_reference
from ops.stepping import STEPS, Step, moved

every_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
stochastic = {name: step for name, step in STEPS.items() if not step.eight_bit}
every_stochastic_step = pytest.mark.parametrize("step", stochastic.values(), ids=stochastic)


def all_same(some, others):
    return all(one is None or same_bits(one, other) for one, other in zip(some, others, strict=True))


@st.composite
def calls(draw, step: Step, device: torch.device):
    """Buffers and options of one call: dtypes, scalars, and random bits from anywhere."""
    torch.manual_seed(draw(torch_seeds))
    size, master = draw(sizes(device)), draw(st.sampled_from(STATES))
    if step.eight_bit:
        master = torch.float32
    state, grad, shard = draw(st.sampled_from(STATES)), draw(floats), draw(st.none() | floats)
    buffers = step.buffers(size, master=master, state=state, grad=grad, shard=shard)
    must = step.eight_bit or master == torch.bfloat16
    options = {
        "seed": draw(seeds if must else st.none() | seeds),
        "start": draw(st.integers(0, (1 << 40) // step.unit)) * step.unit,
        "step": draw(st.integers(1, 5) | st.integers(1, 1 << 34)),
        "maximize": draw(st.booleans()),
        "weight_decay": draw(st.sampled_from([0.0, 0.1])),
    }
    if "nesterov" in step.options:
        options |= {"nesterov": draw(st.booleans()), "dampening": draw(st.sampled_from([0.0, 0.3]))}
    return buffers, step.options | options


@quiet_numpy
@every_step
@against_the_reference
@few
@given(st.data())
def test_same_bits_as_the_reference(device, on_reference, step, data):
    buffers, options = data.draw(calls(step, device))
    scale = data.draw(st.sampled_from([None, 0.37, 1e-30, float("nan")]))
    scale = None if scale is None else torch.tensor([scale])
    on_device = moved(buffers, device, shift=data.draw(shifts))
    step.op(*on_device, grad_scale=None if scale is None else scale.to(device), **options)
    on_reference(step.op, *buffers, grad_scale=scale, **options)
    assert all_same(on_device, buffers)


@quiet_numpy
@every_step
@against_the_reference
def test_same_bits_as_the_reference_where_nothing_is_finite(device, on_reference, step):
    buffers = step.buffers(5000)
    buffers[-2] = wild(5000, torch.float16, CPU, finite=False)
    buffers[0] = wild(5000, torch.float32, CPU, finite=False)
    on_device = moved(buffers, device)
    step.op(*on_device, **step.options)
    on_reference(step.op, *buffers, **step.options)
    assert all_same(on_device, buffers)
    assert buffers[0].isnan().any()


@quiet_numpy
@every_step
@pytest.mark.parametrize("flag", [1.0, float("nan"), -0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_skip_leaves_every_bit(device, step, flag, dtype):
    buffers = moved(step.buffers(2050), device)
    buffers[-2][5] = float("inf")
    before = [each.clone() for each in buffers]
    flag = 7 if dtype == torch.int32 else flag
    step.op(*buffers, skip=torch.tensor(flag, dtype=dtype, device=device), **step.options)
    assert all_same(buffers, before)


@quiet_numpy
@every_step
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_a_skip_of_zero_is_none(device, step, dtype):
    buffers = moved(step.buffers(600), device)
    copies = [each.clone() for each in buffers]
    step.op(*buffers, skip=torch.zeros(1, dtype=dtype, device=device), **step.options)
    step.op(*copies, **step.options)
    assert all_same(buffers, copies)
    assert not buffers[-1].isnan().any()


@quiet_numpy
@every_step
def test_maximize_negates_and_the_scale_multiplies_the_gradient(device, step):
    buffers = moved(step.buffers(1030), device)
    copies = [each.clone() for each in buffers]
    copies[-2] = -(copies[-2] * 0.375)
    step.op(*buffers, maximize=True, grad_scale=torch.tensor(0.375, device=device), **step.options)
    step.op(*copies, **step.options)
    different = len(copies) - 2
    assert all_same(buffers[:different] + buffers[-1:], copies[:different] + copies[-1:])


@quiet_numpy
@every_step
def test_the_shard_is_the_new_master_rounded_once(device, step):
    for dtype in FLOATS:
        buffers = moved(step.buffers(700, shard=dtype), device, shift=1)
        step.op(*buffers, **step.options | {"seed": 5})
        assert same_bits(buffers[-1], buffers[0].to(dtype))


@quiet_numpy
@every_step
@few
@given(st.data())
def test_cutting_a_flat_changes_nothing(device, step, data):
    buffers, options = data.draw(calls(step, device))
    size = buffers[0].numel()
    cut = data.draw(st.integers(0, size // step.unit)) * step.unit
    whole, parts = moved(buffers, device), moved(buffers, device)
    step.op(*whole, **options)
    step.op(*step.cut(parts, 0, cut), **options)
    step.op(*step.cut(parts, cut, size), **options | {"start": options["start"] + cut})
    assert all_same(parts, whole)


@quiet_numpy
@every_stochastic_step
def test_random_bits_depend_on_seed_step_place_and_stream(device, step):
    """Without that, what two steps (or two states) round away would be the same, and add up."""
    buffers = step.buffers(4096, master=torch.bfloat16, state=torch.bfloat16)
    options = step.options | {"seed": 1, "step": 2}
    results = []
    for change in ({}, {"seed": 2}, {"seed": 1 + (1 << 32)}, {"start": 8}, {"step": 3}):
        copies = moved(buffers, device)
        step.op(*copies, **options | change)
        results.append(copies[1])  # the momentum does not depend on the step's number otherwise
    assert all(not same_bits(result, results[0]) for result in results[1:])


@quiet_numpy
@every_stochastic_step
@pytest.mark.parametrize("seed", [0, (1 << 64) - 1])
def test_weights_that_bf16_holds_never_move(device, step, seed):
    buffers = moved(step.buffers(3000, master=torch.bfloat16), device)
    buffers[1:-1] = [torch.rand_like(each) for each in buffers[1:-1]]
    before = buffers[0].clone()
    step.op(*buffers, **step.options | {"lr": 0.0, "weight_decay": 0.0, "seed": seed})
    assert torch.equal(buffers[0], before)


@quiet_numpy
@every_stochastic_step
def test_bf16_weights_move_by_the_update_on_average(device, step):
    """Every weight is 1 and moves down by 2^-12, a sixteenth of the way to the next bf16 number."""
    size, small = 16_384, 2.0**-12
    master = torch.ones(size, dtype=torch.bfloat16, device=device)
    grad = torch.ones(size, device=device)
    states = [torch.zeros(size, device=device) for _ in step.states(0, torch.float32)]
    options = step.options | {"lr": small, "weight_decay": 0.0, "step": 1, "seed": int(torch.randint(1 << 60, ()))}
    step.op(master, *states, grad, None, **options | ({"nesterov": False} if "nesterov" in options else {}))
    moved_down = (master.cpu() == 1 - 2.0**-8).sum().item()
    assert moved_down + (master.cpu() == 1).sum().item() == size
    # A sixteenth of them goes down, give or take six standard deviations.
    assert abs(moved_down - size / 16) < 6 * (size / 16 * 15 / 16) ** 0.5


@quiet_numpy
@every_step
@pytest.mark.parametrize("device", ["triton"], indirect=True)
def test_block_size_changes_nothing(device, one_block, step):
    buffers = moved(step.buffers(5003, grad=torch.bfloat16), device)
    copies = [each.clone() for each in buffers]
    step.op(*buffers, **step.options)
    one_block(step.launch)
    step.op(*copies, **step.options)
    assert all_same(buffers, copies)


@every_step
def test_threads_change_nothing(on_threads, on_reference, step):
    buffers = step.buffers(300_003, grad=torch.bfloat16)
    results = {count: moved(buffers, CPU) for count in (1, 2, 4)}
    for count, copies in results.items():
        on_threads(count, step.op, *copies, **step.options | {"seed": 3})
    on_reference(step.op, *buffers, **step.options | {"seed": 3})
    assert all(all_same(copies, buffers) for copies in results.values())
