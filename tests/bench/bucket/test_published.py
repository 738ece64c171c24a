"""The fit on tables that others have measured on large machines; they are not part of the repository."""

import os
from pathlib import Path

import pytest
from support.source import ROOT

from overlap.bench.bucket.advice import Advice
from overlap.bench.bucket.tables import read_tables

DATA = Path(os.environ.get("OVERLAP_DATA", ROOT.parent / "shared" / "data")) / "nccl"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no tables in OVERLAP_DATA, or beside the repository")

NODE = ["b200_8x_nvlink_allgather", "b200_8x_nvlink_reducescatter", "h100_8x_nvlink_reducescatter_ring"]
TWO_NODES = ["a100_2x8_ib_allgather", "b200_2x8_ib_allgather", "h200_2x8_roce_allgather"]
SLOW_NETWORK = ["a100_2x4_slingshot_allgather", "a100_8x4_slingshot_allgather"]
UNSATURATED = "a100_128x4_slingshot_allgather"


def advice(name: str, share: float = 0.8) -> Advice:
    (table,) = read_tables(DATA / f"{name}.csv")
    return Advice.of(table, share)


@pytest.mark.parametrize("name", NODE + TWO_NODES + SLOW_NETWORK)
def test_the_fit_is_close_and_ends_at_the_best_that_was_measured(name):
    met = advice(name)
    assert met.model.median_error < 0.03
    assert met.model.max_error < 0.1
    best = max(point["busbw_gbps"] for point in met.to_dict()["points"])
    assert met.busbw == pytest.approx(best * 1e9, rel=0.06)


@pytest.mark.parametrize("name", NODE + TWO_NODES)
def test_25_mib_reach_a_third_to_two_thirds(name):
    assert 0.33 < (advice(name).model.share(25 << 20) or 0) < 0.67


@pytest.mark.parametrize(("names", "sizes"), [(NODE, {128}), (TWO_NODES, {128, 256})])
def test_80_percent_take_128_mib_in_a_node_and_up_to_256_over_two(names, sizes):
    """As powers of two, which is what the tables have."""
    needed = {1 << ((advice(name).bucket_bytes or 0) - 1).bit_length() for name in names}
    assert needed == {size << 20 for size in sizes}


def test_a_table_that_ends_too_early_gets_no_bucket():
    met = advice(UNSATURATED)
    assert met.bucket_bytes is None
    assert "measure larger ones" in list(met.lines())[-1]


def test_columns_of_the_tables_agree_with_ours():
    """Our factor from time to bus bandwidth against what nccl-tests printed."""
    for path in DATA.glob("*.csv"):
        (table,) = read_tables(path)
        printed = [float(line.split(",")[-3]) for line in path.read_text().splitlines()[1:]]
        worked_out = [point["busbw_gbps"] for point in Advice.of(table, 0.5).to_dict()["points"]]
        assert worked_out == pytest.approx(printed, rel=0.01, abs=0.006)
