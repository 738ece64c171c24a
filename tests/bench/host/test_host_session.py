import json

import pytest

from overlap.bench.host.session import bench_host
from overlap.bench.host.settings import HostSettings


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "record.json"
    bench_host(HostSettings(worlds=(2, 1024), units=8, params=3, rounds=3), path)
    return json.loads(path.read_text())


def of(record, contender: str) -> dict[tuple[int, int, int], dict[str, float]]:
    rows = [row for row in record["rows"] if row["contender"] == contender]
    return {(row["world"], row["units"], row["params_per_unit"]): row for row in rows}


def test_every_world_and_shape_has_ours_and_fsdp2(record):
    cases = {(2, 8, 3), (1024, 8, 3), (2, 2, 3), (2, 8, 6)}
    assert of(record, "ours").keys() == of(record, "ours-inline").keys() == of(record, "fsdp2").keys() == cases
    for row in record["rows"]:
        assert row["host_us"] > 0
        assert row["optimizer_us"] > 0


def test_our_host_work_is_less_than_fsdp2s_and_does_not_grow_with_ranks(record):
    ours, peer = of(record, "ours"), of(record, "fsdp2")
    for case, row in ours.items():
        assert 0 < row["python_calls"] < peer[case]["python_calls"]
        assert row["optimizer_launches"] > 0
    few, many = ours[2, 8, 3], ours[1024, 8, 3]
    assert many["python_calls"] == pytest.approx(few["python_calls"], rel=0.02)
    assert many["optimizer_launches"] == pytest.approx(few["optimizer_launches"], rel=0.02)


def test_launches_of_the_update_do_not_grow_with_parameters(record):
    ours, peer = of(record, "ours"), of(record, "fsdp2")
    assert ours[2, 8, 6]["optimizer_launches"] == ours[2, 8, 3]["optimizer_launches"]
    assert peer[2, 8, 6]["optimizer_launches"] > 1.5 * peer[2, 8, 3]["optimizer_launches"]
