"""Every model of the zoo trains sharded as it does in one process: stage x ranks x dtype x accumulation x recompute.

A covering sample runs always: any two values of two axes meet in it, for every model. The full product is behind a
marker: ``pytest -m full_matrix tests/parity/test_matrix.py``.
"""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from support.covering import covering, every
from support.ranks import Ranks
from support.zoo import ZOO
from support.zoo.run import Case, Named, Part, Reference, Trace, alone, sharded
from torch import Tensor

# Of the largest element. Sums of ranks and micro-batches are fp32 in both runs, in another order. In bf16 both run the
# same kernels on the same bits, so this finds any rounding to bf16 (4e-3) that the engine would add.
TOLERANCE = 1e-5
# But where autograd itself adds up gradients of several uses in bf16, recomputation changes the order.
TOLERANCE_OF_BF16_SUMS = 4 * torch.finfo(torch.bfloat16).eps
# A gradient that is zero but for rounding is compared with the others of its step.
FLOOR = 1e-2


def _axes(model: str) -> dict[str, Sequence[object]]:
    entry = ZOO[model]
    return {
        "model": (model,),
        "stage": (0, 1, 2, 3),
        "world": (1, 2, 3, 4),
        "dtype": entry.dtypes,
        "accumulation": ("none", "each", "last"),
        "recompute": entry.recomputes,
        "clip": (False, True),
    }


def _sample() -> Iterator[Case]:
    for model in ZOO:
        yield from (Case(**row) for row in covering(_axes(model), seed=model))


def _product() -> Iterator[Case]:
    for model in ZOO:
        yield from (Case(**row) for row in every(_axes(model)))


@pytest.fixture(scope="module")
def references(ranks: Ranks) -> Callable[[Reference], Trace]:
    """One process's runs, each made once."""
    made: dict[Reference, Trace] = {}

    def get(wanted: Reference) -> Trace:
        if wanted not in made:
            made[wanted] = ranks(1, alone, wanted)[0]
        return made[wanted]

    return get


@pytest.mark.parametrize("case", [*_sample()], ids=str)
def test_sampled(ranks: Ranks, references: Callable[[Reference], Trace], case: Case) -> None:
    _check(ranks, references, case)


@pytest.mark.full_matrix
@pytest.mark.parametrize("case", [*_product()], ids=str)
def test_all(ranks: Ranks, references: Callable[[Reference], Trace], case: Case) -> None:
    _check(ranks, references, case)


def _check(ranks: Ranks, references: Callable[[Reference], Trace], case: Case) -> None:
    expected = references(case.reference)
    traces = ranks(case.world, sharded, case)
    sums = ZOO[case.model].reuses and case.dtype == "bf16"
    tolerance = TOLERANCE_OF_BF16_SUMS if sums else TOLERANCE
    for trace, losses in zip(traces, expected.losses, strict=True):
        assert trace.losses == pytest.approx(losses, rel=tolerance)
        assert trace.norms == pytest.approx(expected.norms, rel=tolerance)
    for step, theirs in enumerate(expected.gradients):
        _assert_close([trace.gradients[step] for trace in traces], theirs, tolerance, f"gradients of step {step}")
    _assert_close([trace.params for trace in traces], expected.params, tolerance, "final parameters")


def _assert_close(ranks: Sequence[Named], theirs: Named, tolerance: float, what: str) -> None:
    assert all(mine.keys() == theirs.keys() for mine in ranks)
    floor = FLOOR * max((_largest(part.value) for part in theirs.values() if part is not None), default=0.0)
    odd = {name: _difference([mine[name] for mine in ranks], part, floor, tolerance) for name, part in theirs.items()}
    assert not any(odd.values()), f"{what}: { {name: words for name, words in odd.items() if words} }"


def _difference(parts: Sequence[Part | None], expected: Part | None, floor: float, tolerance: float) -> str | None:
    """In words; None if what the ranks have makes up what is expected."""
    present = [part for part in parts if part is not None]
    if len(present) != (0 if expected is None else len(parts)):
        return f"{len(present)} of {len(parts)} ranks have one"
    if expected is None:
        return None
    (dim,) = {part.dim for part in present}
    if dim is None and not all(torch.equal(part.value, present[0].value) for part in present):
        return "replicas differ"
    value = present[0].value if dim is None else torch.cat([part.value for part in present], dim)
    if value.shape != expected.value.shape:
        return f"shape {tuple(value.shape)} instead of {tuple(expected.value.shape)}"
    error = _largest(value.float() - expected.value.float()) / max(_largest(expected.value), floor, 1e-30)
    return None if error <= tolerance else f"off by {error:.1e} of the largest"  # a NaN is off, too


def _largest(value: Tensor) -> float:
    return value.float().abs().max().item() if value.numel() else 0.0
