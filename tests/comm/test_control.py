import pytest
import torch
import torch.distributed as dist
from support.ranks import Ranks

from overlap.comm.groups import control_channel
from overlap.errors import DesyncError


def _agree(digests: list[str], name: str = "plan") -> str:
    try:
        control_channel(None).agree(name, digests[dist.get_rank()])
    except DesyncError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("world", [1, 2, 3])
def test_equal_digests_agree(ranks: Ranks, world: int) -> None:
    assert ranks(world, _agree, ["a1"] * world) == [""] * world


def test_every_rank_names_the_one_that_differs_and_both_values(ranks: Ranks) -> None:
    texts = ranks(3, _agree, ["a1", "a1", "b2"])
    assert (
        texts
        == [
            "plan of rank 2 must equal that of rank 0, plan a1, but got b2; "
            "give every rank the same model, options and order of calls"
        ]
        * 3
    )


def test_the_majority_is_right_even_against_rank_0(ranks: Ranks) -> None:
    assert "plan of rank 0 must equal that of rank 1, plan a1, but got b2" in ranks(3, _agree, ["b2", "a1", "a1"])[0]


def _agree_on_different_questions() -> str:
    return _agree(["same", "same"], name=["plan", "layout"][dist.get_rank()])


def test_different_questions_do_not_agree(ranks: Ranks) -> None:
    assert "layout of rank 1 must equal that of rank 0, plan same" in ranks(2, _agree_on_different_questions)[0]


def _who_has_gradients() -> list[int]:
    mine = torch.zeros(4, dtype=torch.uint8)
    mine[dist.get_rank()] = 1 + dist.get_rank()
    return control_channel(None).all_max(mine).tolist()


def test_all_max_is_elementwise(ranks: Ranks) -> None:
    assert ranks(3, _who_has_gradients) == [[1, 2, 3, 0]] * 3


def _all_max_of_nothing() -> int:
    return control_channel(None).all_max(torch.empty(0, dtype=torch.uint8)).numel()


def test_all_max_of_nothing(ranks: Ranks) -> None:
    assert ranks(2, _all_max_of_nothing) == [0, 0]


def _gather_objects() -> tuple[list[object], int]:
    channel = control_channel(None)
    values = channel.gather_object({"rank": dist.get_rank(), "text": "x" * 100 * dist.get_rank()})
    return values, channel.communicator.counter.snapshot().sent["control"]


def test_objects_of_any_size_arrive_by_rank_and_are_counted(ranks: Ranks) -> None:
    expected = [{"rank": rank, "text": "x" * 100 * rank} for rank in range(3)]
    for values, sent in ranks(3, _gather_objects):
        assert values == expected
        assert sent > 2 * 200
