import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.comm.cost import CostModel, Regime, fit
from overlap.errors import ConfigError

SIZES = [1 << power for power in range(10, 32)]


def line(latency_s: float, bandwidth: float):
    return lambda nbytes: latency_s + nbytes / bandwidth


@settings(deadline=None)
@given(latency_us=st.floats(1, 1000), gbps=st.floats(0.05, 900))
def test_one_line_is_found_again(latency_us: float, gbps: float) -> None:
    model = fit((nbytes, line(latency_us / 1e6, gbps * 1e9)(nbytes)) for nbytes in SIZES)
    assert len(model.regimes) == 1
    assert model.regimes[0].latency_s == pytest.approx(latency_us / 1e6, rel=1e-3)
    assert model.bandwidth == pytest.approx(gbps * 1e9, rel=1e-3)
    assert model.max_error < 1e-6


def test_a_change_of_protocol_makes_two_regimes_that_need_not_meet() -> None:
    small, large = line(5e-6, 2e9), line(40e-6, 300e9)
    points = [(nbytes, (small if nbytes <= 1 << 18 else large)(nbytes)) for nbytes in SIZES]
    model = fit(points)
    assert [regime.up_to for regime in model.regimes] == [math.sqrt((1 << 18) * (1 << 19)), math.inf]
    assert [regime.latency_s for regime in model.regimes] == pytest.approx([5e-6, 40e-6], rel=1e-3)
    assert model.bandwidth == pytest.approx(300e9, rel=1e-3)


@pytest.mark.parametrize(("noise", "spurious"), [(0.005, 0), (0.03, 10)])
def test_noise_makes_few_regimes_no_harm_and_is_reported(noise: float, spurious: int) -> None:
    seed = random.randrange(1 << 30)
    source, truth = random.Random(seed), line(30e-6, 100e9)
    counts, errors = [], []
    for _ in range(20):
        model = fit((nbytes, truth(nbytes) * source.gauss(1, noise)) for nbytes in SIZES)
        counts.append(len(model.regimes))
        errors.append(model.median_error)
        assert model.bandwidth == pytest.approx(100e9, rel=4 * noise), f"seed {seed}"
    assert sum(count > 1 for count in counts) <= spurious, f"seed {seed}: {counts}"
    assert 0.2 * noise < sorted(errors)[10] < 1.5 * noise, f"seed {seed}"


def test_several_times_of_a_size_count_by_their_median() -> None:
    points = [(nbytes, line(1e-5, 1e9)(nbytes)) for nbytes in SIZES]
    outliers = [(nbytes, 100 * seconds) for nbytes, seconds in points]
    assert fit([*points, *outliers, *points]).regimes == fit(points).regimes


@pytest.mark.parametrize(("count", "regimes"), [(1, 1), (2, 1), (5, 1), (6, 2)])
def test_few_points_make_few_regimes(count: int, regimes: int) -> None:
    source = random.Random(count)
    model = fit((1 << (10 + n), source.uniform(1, 2) ** (6 * n)) for n in range(count))
    assert len(model.regimes) <= regimes
    assert all(model.seconds(nbytes) > 0 for nbytes in SIZES)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1 << 34), st.floats(1e-6, 10)), min_size=1, max_size=24))
def test_no_regime_has_a_negative_latency_or_bandwidth(points: list[tuple[int, float]]) -> None:
    model = fit(points)
    assert all(regime.latency_s >= 0 and regime.seconds_per_byte >= 0 for regime in model.regimes)
    assert all(model.seconds(nbytes) > 0 for nbytes, _ in points)
    borders = [regime.up_to for regime in model.regimes]
    assert borders == sorted(set(borders))
    assert borders[-1] == math.inf


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e-3), st.floats(1e-12, 1e-8)), min_size=1, max_size=4), st.floats(0.05, 0.95))
def test_the_smallest_size_is_the_one_that_trying_all_finds(lines: list[tuple[float, float]], share: float) -> None:
    borders = [*(4.0 ** (6 + n) for n in range(len(lines) - 1)), math.inf]
    regimes = tuple(Regime(border, *each) for border, each in zip(borders, lines, strict=True))
    model = CostModel(regimes, (1 << 10, 1 << 20), 0.0, 0.0)
    kept, found = None, model.smallest(share)
    behind = [border * (1 + 1e-9) for border in borders if border < 1 << 20]  # a regime may begin with a dip
    tried = sorted([*behind, *(2.0 ** (10 + n / 16) for n in range(161))])
    for nbytes in reversed(tried):
        if (model.share(nbytes) or 0.0) < share * (1 - 1e-9):
            break
        kept = nbytes
    if kept is None:
        assert found is None or found > tried[-2]
    else:
        assert found is not None
        assert found - 1 <= kept <= found * 2 ** (1 / 16) + 1


def test_sizes_that_took_no_longer_have_no_bandwidth() -> None:
    model = fit((nbytes, 1e-3) for nbytes in SIZES)
    assert model.bandwidth is None
    assert model.share(1 << 20) is None
    assert model.smallest(0.8) is None


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(8, 0.0)], [(8, -1.0), (16, 1.0)]])
def test_points_that_are_none_are_refused(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="must"):
        fit(points)
