"""Exports written here, table by table, as versions of Nsight Systems leave them out or change them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.errors import ConfigError
from overlap.profiling.breakdown import break_down
from overlap.profiling.classify import classifier
from overlap.profiling.nsys import read_nsys
from overlap.profiling.recording import COMMUNICATION, COMPUTE, COPY, MEMSET

PID_A, PID_B = 1000 << 24, 2000 << 24
STRINGS = {1: "gemm", 2: "ncclDevKernel_AllGather_RING_LL", 3: "cudaLaunchKernel", 4: "overlap", 5: "gather blocks.0"}

TABLES = {
    "StringIds": "id, value",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start, end, deviceId, streamId, correlationId, globalPid, bytes",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start, end, deviceId, streamId, correlationId, globalPid, graphId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid, domainId",
}
KERNELS = [
    (100, 200, 0, 7, 1, PID_A, 1, 1),
    (150, 300, 0, 20, 2, PID_A, 2, 2),
    (100, 180, 1, 7, 1, PID_B, 1, 1),
]
RUNTIME = [(50, 60, PID_A + 5, 1, 3), (70, 80, PID_A + 5, 2, 3), (90, 95, PID_B + 6, 1, 3)]
NVTX = [
    (0, None, 75, None, 4, PID_A + 5, 1),
    (65, 85, 59, None, 5, PID_A + 5, 1),
    (40, 99, 59, "step", None, PID_A + 5, 0),
    (40, None, 59, "never closed", None, PID_A + 5, 0),
]


def write_export(path: Path, tables: dict[str, list[tuple]]) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for name, rows in tables.items():
            columns = [f'"{column.strip()}"' for column in TABLES[name].split(",")]
            database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)


@pytest.fixture
def export(tmp_path):
    def written(**tables: list[tuple]) -> Path:
        write_export(tmp_path / "e.sqlite", tables)
        return tmp_path / "e.sqlite"

    return written


def test_ranks_names_launches_and_ranges(export):
    path = export(
        StringIds=list(STRINGS.items()),
        CUPTI_ACTIVITY_KIND_KERNEL=KERNELS,
        CUPTI_ACTIVITY_KIND_RUNTIME=RUNTIME,
        NVTX_EVENTS=NVTX,
    )
    first, second = read_nsys(path, classifier())
    assert (first.rank, second.rank) == (0, 1)
    gemm, gather = first.activities
    assert (gemm.name, gemm.category, gemm.stream, gemm.launched_ns) == ("gemm", COMPUTE, "7", 50)
    assert (gather.category, gather.library, gather.launched_ns) == (COMMUNICATION, "NCCL", 70)
    assert gather.ranges == ("step", "overlap:gather blocks.0")
    assert (gather.unit, gather.phase) == ("blocks.0", "gather")
    assert gather.message.collective == "all_gather"
    # The same correlation in another process is another launch.
    assert second.activities[0].launched_ns == 90
    assert first.notes == ()


def test_what_runs_between_hooks_of_fsdp2_belongs_to_their_module(export):
    hooks = [(30, 40, "FSDP::pre_forward (layers.0)"), (61, 64, "FSDP::post_forward (layers.0)")]
    path = export(
        StringIds=list(STRINGS.items()),
        CUPTI_ACTIVITY_KIND_KERNEL=KERNELS[:1],
        CUPTI_ACTIVITY_KIND_RUNTIME=RUNTIME,
        NVTX_EVENTS=[(start, end, 59, name, None, PID_A + 5, 0) for start, end, name in hooks],
    )
    (only,) = read_nsys(path, classifier())
    assert [(one.unit, one.phase) for one in only.activities] == [("layers.0", "forward")]


@pytest.mark.parametrize(
    ("said", "expected"), [({PID_A: 6, PID_B: 2}, [6, 2]), ({PID_A: 6}, [0, 1]), ({PID_A: 6, PID_B: 6}, [0, 1])]
)
def test_ranks_are_what_processes_said_where_all_did(export, said, expected):
    marks = [(0, None, 34, f"overlap:rank {rank}", None, pid + 5, 0) for pid, rank in said.items()]
    path = export(StringIds=list(STRINGS.items()), CUPTI_ACTIVITY_KIND_KERNEL=KERNELS, NVTX_EVENTS=marks)
    assert [one.rank for one in read_nsys(path, classifier())] == expected


def test_copies_and_memsets(export):
    path = export(
        CUPTI_ACTIVITY_KIND_MEMCPY=[(1, 5, 0, 7, 1, PID_A, 64, 10), (5, 6, 0, 7, 2, PID_A, 64, 1)],
        CUPTI_ACTIVITY_KIND_MEMSET=[(6, 7, 0, 7, 3, PID_A, 64)],
    )
    (only,) = read_nsys(path, classifier())
    assert [one.name for one in only.activities] == ["Memcpy PtoP", "Memcpy HtoD", "Memset"]
    assert [one.category for one in only.activities] == [COPY, COPY, MEMSET]


def test_missing_tables_are_said_not_guessed(export):
    path = export(StringIds=list(STRINGS.items()), CUPTI_ACTIVITY_KIND_KERNEL=KERNELS[:2])
    (only,) = read_nsys(path, classifier())
    assert [one.launched_ns for one in only.activities] == [None, None]
    assert [note.split(":")[0] for note in only.notes] == [
        "no runtime calls were recorded",
        "no NVTX ranges were recorded",
    ]


def test_whole_cuda_graphs_are_compute_and_said_to_be(export):
    path = export(CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[(1, 9, 0, 7, 1, PID_A, 3)])
    (only,) = read_nsys(path, classifier())
    assert [(one.name, one.category) for one in only.activities] == [("CUDA graph 3", COMPUTE)]
    assert "--cuda-graph-trace=node" in only.notes[0]


def test_an_old_version_without_a_column(export, monkeypatch):
    monkeypatch.setitem(TABLES, "NVTX_EVENTS", "start, end, eventType, text, globalTid")
    path = export(
        StringIds=list(STRINGS.items()),
        CUPTI_ACTIVITY_KIND_KERNEL=KERNELS[:1],
        CUPTI_ACTIVITY_KIND_RUNTIME=RUNTIME,
        NVTX_EVENTS=[(40, 99, 59, "step", PID_A + 5)],
    )
    (only,) = read_nsys(path, classifier())
    assert only.activities[0].ranges == ("step",)


def test_what_is_no_export_is_refused(export, tmp_path):
    with pytest.raises(
        ConfigError, match=r"e.sqlite must hold kernels or copies of a device, or ranges of overlap .*, but got neither"
    ):
        read_nsys(export(StringIds=[]), classifier())
    text = tmp_path / "t.sqlite"
    text.write_text("hello " * 100)
    with pytest.raises(ConfigError, match=r"t.sqlite must be an Nsight Systems export"):
        read_nsys(text, classifier())


RECIPE = Path(__file__).parents[2] / "profiles" / "nsys" / "exposed.sql"
ROWS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 60), st.sampled_from([7, 20]), st.sampled_from([1, 2])), min_size=1
)


@given(ROWS)
def test_the_sql_recipe_says_the_same(tmp_path_factory, rows):
    kernels = [(at, at + took, 0, stream, n, PID_A, name, name) for n, (at, took, stream, name) in enumerate(rows)]
    path = tmp_path_factory.mktemp("recipe") / "e.sqlite"
    tables = {"StringIds": list(STRINGS.items()), "CUPTI_ACTIVITY_KIND_KERNEL": kernels}
    write_export(path, tables)
    with closing(sqlite3.connect(path)) as database:
        (row,) = database.execute(RECIPE.read_text(encoding="utf-8")).fetchall()
    (only,) = read_nsys(path, classifier())
    totals = break_down(only.activities)
    assert row[:5] == (0, totals.span_ns, totals.compute_ns, totals.comm_ns, totals.exposed_comm_ns)
    assert row[5] is None if totals.ratio is None else row[5] == pytest.approx(totals.ratio, abs=5.1e-4)
