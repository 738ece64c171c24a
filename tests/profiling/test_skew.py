"""Waiting and transferring inside collectives: a public recording of eight ranks, and cases drawn here."""

from pathlib import Path

import pytest

from overlap.profiling.classify import classifier
from overlap.profiling.skew import match
from overlap.profiling.sources import read_recordings

from .activities import collective, compute
from .references import DATA, FIXTURES, rows

EXPECTED = rows("expected_skew", FIXTURES)


def dlrm(folder: Path):
    return match({one.rank: one.activities for one in read_recordings(folder, classifier())})


@pytest.fixture(scope="module", params=["reduced", "whole"])
def skew(request):
    folder = FIXTURES if request.param == "reduced" else DATA / "traces"
    if not folder.is_dir():
        pytest.skip("the public recordings are not here: set OVERLAP_DATA to their folder")
    return dlrm(folder / "dlrm_v100x8")


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["idx"])
def test_eight_ranks(skew, row):
    one = skew.collectives[int(row["idx"])]
    assert one.name.startswith(row["kernel"])
    ours = {
        "start_skew_us": one.start_skew_ns,
        "end_skew_us": one.end_skew_ns,
        "min_dur_us": one.transfer_ns,
        "max_dur_us": one.longest_ns,
        "sum_wait_us": one.wait_ns,
    }
    assert {name: ns // 1000 for name, ns in ours.items()} == {name: int(row[name]) for name in ours}
    assert one.last_rank == int(row["last_rank"])


def test_all_were_matched(skew):
    assert len(skew.collectives) == len(EXPECTED) == 8
    assert skew.note == ""


def test_the_rank_that_comes_last_waits_for_nobody():
    (one,) = match({0: [collective(0, 100)], 1: [collective(70, 101)], 2: [collective(80, 100)]}).collectives
    assert [one.wait_of(rank) for rank in (0, 1, 2)] == [80, 11, 0]
    assert (one.transfer_ns, one.last_rank) == (20, 2)


def test_ranks_need_no_common_clock():
    far = 10**15
    (one,) = match({0: [collective(0, 100)], 1: [collective(far + 70, far + 100)]}).collectives
    assert [one.wait_of(rank) for rank in (0, 1)] == [70, 0]


def test_communicators_are_told_apart_by_name_and_unnamed_ones_by_number():
    named = [collective(0, 10, group="dp"), collective(2, 9, group="tp")]
    other = [collective(1, 9, group="tp", stream="4"), collective(3, 10, group="dp", stream="5")]
    pairs = [
        {rank: one.message.group for rank, one in found.members.items()}
        for found in match({0: named, 1: other}).collectives
    ]
    assert pairs == [{0: "dp", 1: "dp"}, {0: "tp", 1: "tp"}]
    unnamed = match({0: [collective(0, 10, stream="7")], 1: [collective(0, 8, stream="15")]})
    assert len(unnamed.collectives) == 1


def test_what_differs_is_left_out_and_said():
    skew = match({0: [collective(0, 10), collective(20, 30)], 1: [compute(0, 5), collective(5, 10)]})
    assert skew.collectives == ()
    assert skew.note == "2 collectives differ over ranks in number or kind and were not matched"
    kinds = match({0: [collective(0, 10, "all_gather")], 1: [collective(0, 10, "all_reduce")]})
    assert kinds.collectives == ()


def test_one_rank_alone_says_so():
    assert match({0: [collective(0, 10)]}).note.startswith("one rank")
