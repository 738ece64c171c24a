import pytest
import torch

from overlap.bench.yardsticks import Yardsticks


class Clock:
    """Runs, and gives every second candidate half the time."""

    def __init__(self):
        self.turn = 0

    def seconds(self, run):
        run()
        self.turn += 1
        return 1.0 if self.turn % 2 else 0.5


@pytest.fixture
def yardsticks():
    return Yardsticks(torch.device("cpu"), Clock())


def test_each_moves_as_many_bytes_as_asked_for(yardsticks):
    for nbytes in (24_000, 240_000, 2_400):
        measures = yardsticks.of(nbytes)
        assert {kind: measure.bytes for kind, measure in measures.items()} == dict.fromkeys(
            ("copy", "triad", "read", "update"), nbytes
        )
        for measure in measures.values():
            measure.run()


def test_the_fastest_way_is_chosen_once(yardsticks):
    first = yardsticks.of(24_000)
    assert yardsticks.chosen == {
        "copy": "memmove", "triad": "torch add(alpha)", "read": "torch sum", "update": "torch mul_",
    }  # fmt: skip
    assert yardsticks.of(24_000)["copy"].run.func == first["copy"].run.func


@pytest.mark.parametrize("way", ["torch copy_", "memmove"])
@pytest.mark.parametrize("nbytes", [24_000, 24_004, 800])
def test_a_copy_copies_all_of_it(yardsticks, way, nbytes):
    measure = yardsticks._candidates(nbytes // 4)["copy"][way]
    half = nbytes // 8
    memory = yardsticks._memory
    memory[:half] = torch.arange(half)
    measure.run()
    start = half + 272
    assert torch.equal(memory[start : start + half], torch.arange(half, dtype=torch.float32))
    assert memory[start + half] == 1
