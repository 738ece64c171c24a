"""Logs as nccl-tests prints them, in the versions that are about; the figures are made up."""

import json

import pytest

from overlap.bench.bucket.tables import from_log, read_tables
from overlap.bench.collective import report
from overlap.bench.collective.results import Figures, Report, Row
from overlap.errors import ConfigError

RANKS = "".join(
    f"#  Rank {rank:2d} Group  0 Pid {4000 + rank} on     node-a device {rank:2d} [0000:{rank:02x}:00] A GPU\n"
    for rank in range(4)
)

NOW = f"""# nccl-tests version 2.17.0 nccl-headers=22800 nccl-library=22800
# Collective test starting: all_gather_perf
# nThread 1 nGpus 4 minBytes 1024 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1
#
# Using devices
{RANKS}#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float    none      -1     9.10    0.00    0.00      0     9.00    0.00    0.00      0
        1024            64     float    none      -1    20.50    0.05    0.04      0    20.10    0.05    0.04      0
     1048576         65536     float    none      -1   150.00    6.99    5.24      0   149.00    7.04    5.28      0
  4294967296     268435456     float    none      -1   130150   33.00   24.75      0   1.3e+05   33.04   24.78    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 10.0
#
# Collective test concluded: all_gather_perf
"""

OLD = f"""mpirun -np 4 ./build/all_reduce_perf -b 8 -e 1M -f 2
# nThread: 1 nGpus: 1 minBytes: 8 maxBytes: 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
{RANKS.replace(" Group  0", "")}#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2   float     sum    35.10    0.00    0.00  0e+00    34.90    0.00    0.00  0e+00
     1048576        262144   float     sum    90.00   11.65   17.48  2e-07    91.00   11.52   17.28  2e-07
"""


def of(log: str, label: str = "a.log"):
    return list(from_log(log, label))


def test_the_log_of_today():
    (table,) = of(NOW)
    assert (table.op, table.world) == ("all_gather", 4)
    assert [nbytes for nbytes, _ in table.points] == [1024, 1 << 20, 1 << 32]
    assert [1e6 * seconds for _, seconds in table.points] == pytest.approx([20.5, 150, 130150])
    assert table.label == "a.log: all_gather float"


def test_logs_without_a_root_and_with_an_error_instead_of_a_count():
    (table,) = of(OLD)
    assert (table.op, table.world) == ("all_reduce", 4)
    assert [(nbytes, round(1e6 * seconds)) for nbytes, seconds in table.points] == [(8, 35), (1 << 20, 90)]


def test_output_that_mpirun_has_marked():
    marked = "".join(f"[1,0]<stdout>: {line}\n" for line in NOW.splitlines())
    assert of(marked) == of(NOW)


def test_several_programs_in_one_log():
    both = of(NOW + NOW.replace("all_gather", "alltoall").replace(" 150.00", " 300.00"))
    assert [table.op for table in both] == ["all_gather", "all_to_all"]
    assert [round(1e6 * table.points[1][1]) for table in both] == [150, 300]


def test_a_name_of_the_file_serves_where_the_log_names_nothing():
    anonymous = "\n".join(line for line in NOW.splitlines() if "_perf" not in line)
    assert of(anonymous, "reduce_scatter_ring.out")[0].op == "reduce_scatter"
    with pytest.raises(ConfigError, match=r"collective of x\.log must be one of .* but got none; keep the line"):
        of(anonymous, "x.log")


def test_a_log_without_ranks_is_refused():
    with pytest.raises(ConfigError, match=r"ranks of a\.log: all_gather float must be two or more, but got none"):
        of("\n".join(line for line in NOW.splitlines() if "Rank" not in line))


def figures(time_us, wrong=0):
    return Figures.of("reduce_scatter", 1 << 20, 3, [[time_us / 1e6]] * 3, wrong)


def row(transport, size, time_us):
    return Row(
        collective="reduce_scatter", transport=transport, size=size, count=8, type="float", redop="sum",
        out_of_place=figures(time_us), in_place=None,
    )  # fmt: skip


SETTINGS = {"layout": "flat", "warmup": 1, "iters": 2, "check": 1, "out_datatype": None, "ranks": 3}


def test_what_we_print_is_read_as_theirs():
    rows = [row(name, 1 << 20, 100 + 10 * n) for n, name in enumerate(("gloo", "overlap"))]
    opening = report.opening({"cpu": "some"}, SETTINGS)
    lines = [
        *opening,
        *report.header("reduce_scatter", ["gloo", "overlap"]),
        *(report.line(each, True) for each in rows),
    ]
    tables = of("\n".join([*lines, *report.closing(Report({}, SETTINGS, tuple(rows)))]))
    assert [(table.label, table.world) for table in tables] == [
        ("a.log: reduce_scatter float over gloo", 3),
        ("a.log: reduce_scatter float over overlap", 3),
    ]
    assert [table.points for table in tables] == [((1 << 20, 1e-4),), ((1 << 20, 1.1e-4),)]


def test_our_json(tmp_path):
    file = tmp_path / "run.json"
    rows = (row("gloo", 1 << 20, 50.0), row("gloo", 1 << 21, 80.0), row("overlap", 1 << 20, 30.0))
    file.write_text(json.dumps(Report({}, SETTINGS, rows).to_dict()))
    tables = read_tables(file)
    assert [len(table.points) for table in tables] == [2, 1]
    assert tables[1].points[0] == (1 << 20, pytest.approx(30e-6))
    assert Report.from_dict(json.loads(file.read_text())).rows == rows


def test_roots_are_told_apart():
    broadcast = NOW.replace("all_gather", "broadcast").replace("none      -1", "none       0")
    other = broadcast.replace("none       0", "none       2").replace(" 150.00", " 300.00")
    tables = of(broadcast + other)
    assert [(table.label, table.op) for table in tables] == [
        ("a.log: broadcast float, root 0", "broadcast"),
        ("a.log: broadcast float, root 2", "broadcast"),
    ]
    assert [round(1e6 * table.points[1][1]) for table in tables] == [150, 300]


def test_a_word_that_is_also_the_name_of_a_program_names_none():
    plain = NOW.replace("# nccl-tests", "# we reduce, then broadcast, with nccl-tests")
    assert of(plain.replace("# Using devices", "# Using devices to reduce")) == of(NOW)


def test_csv_tables_are_told_apart(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text(
        "source,collective,nranks,size_bytes,oop_time_us\n"
        "first,all_gather,8,1024,10.5\nfirst,all_gather,8,2048,11\nsecond,all_reduce,16,1024,20\n"
    )
    assert [(table.op, table.world, len(table.points)) for table in read_tables(file)] == [
        ("all_gather", 8, 2),
        ("all_reduce", 16, 1),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.log", "nothing here\n"),
        ("a.csv", "size,time\n1,2\n"),
        ("b.csv", "collective,nranks,size_bytes,oop_time_us\nall_gather,x,1,2\n"),
        ("a.json", "{"),
        ("b.json", "[1]"),
    ],
)
def test_a_file_without_times_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="file must hold times of collectives"):
        read_tables(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="file must be readable"):
        read_tables(tmp_path / "none.log")
