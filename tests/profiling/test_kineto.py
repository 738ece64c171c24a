"""What a trace of torch.profiler says, whoever wrote it and in which year."""

import pytest

from overlap.errors import ConfigError
from overlap.profiling.breakdown import break_down
from overlap.profiling.classify import classifier
from overlap.profiling.kineto import read_kineto
from overlap.profiling.rank_report import measure_rank
from overlap.profiling.recording import COMMUNICATION, COMPUTE, COPY, MEMSET
from overlap.profiling.selection import ReportOptions, select

from .references import FIXTURES, rows
from .traces import event, kernel, launch, write

ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def read(path):
    return read_kineto(path, classifier())


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_categories_streams_and_launches(tmp_path, suffix, indent):
    path = write(
        tmp_path / f"t{suffix}",
        launch(1, 5),
        kernel("gemm", 10, 20, correlation=1),
        kernel(ALL_GATHER, 15, 30, stream=20, correlation=2),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 50, 5, tid=7, pid=0, stream=7),
        event("gpu_memset", "Memset (Device)", 60, 1, tid=7, pid=0, stream=7),
        event("gpu_user_annotation", "nccl:all_gather", 15, 30, tid=20, pid=0),
        indent=indent,
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
    )
    recording = read(path)
    assert recording.rank == 3
    seen = [(one.category, one.stream, one.start_ns, one.end_ns, one.launched_ns) for one in recording.activities]
    assert seen == [
        (COMPUTE, "7", 10_000, 30_000, 5_000),
        (COMMUNICATION, "20", 15_000, 45_000, None),
        (COPY, "7", 50_000, 55_000, None),
        (MEMSET, "7", 60_000, 61_000, None),
    ]
    assert recording.activities[1].library == "NCCL"


def test_the_names_of_2021(tmp_path):
    path = write(
        tmp_path / "worker4.json",
        event("Kernel", "gemm", 10, 20, tid="stream 7", pid=0, stream=7),
        event("Memcpy", "Memcpy DtoH", 30, 5, tid="stream 7", pid=0, stream=7),
        event("Memset", "Memset", 40, 5, tid="stream 7", pid=0, stream=7),
        event("Operator", "ProfilerStep#5", 0, 50, tid="25738"),
    )
    recording = read(path)
    assert [one.category for one in recording.activities] == [COMPUTE, COPY, MEMSET]
    assert [step.name for step in recording.steps] == ["ProfilerStep#5"]
    assert recording.rank == 4


def test_a_host_event_with_a_stream_is_no_device_work(tmp_path):
    inductor = event("cpu_op", "triton_red_fused_add_0", 0, 99, stream=0, grid="grid(1,)")
    recording = read(write(tmp_path / "t.json", inductor, kernel("triton_red_fused_add_0", 10, 5)))
    assert [one.start_ns for one in recording.activities] == [10_000]


def test_rounding_as_hta_does(tmp_path):
    path = write(tmp_path / "t.json", kernel("a", 10.25, 3.5), kernel("b", 20.1, 0.5), kernel("c", 30, 1))
    exact = select(read(path), ReportOptions())
    assert [(one.start_ns, one.end_ns) for one in exact] == [(10_250, 13_750), (20_100, 20_600), (30_000, 31_000)]
    rounded = select(read(path), ReportOptions(rounding="hta"))
    assert [(one.start_ns, one.end_ns) for one in rounded] == [(11_000, 13_000), (21_000, 21_000), (30_000, 31_000)]


STEPS = (
    event("user_annotation", "ProfilerStep#4", 0, 100),
    event("user_annotation", "ProfilerStep#5", 100, 100),
)


def test_window_steps_keeps_what_was_launched_before_the_last_step(tmp_path):
    path = write(
        tmp_path / "t.json",
        *STEPS,
        launch(1, 50),
        kernel("late but of step 4", 180, 10, correlation=1),
        launch(2, 120),
        kernel("of step 5", 150, 10, correlation=2),
        kernel("from before recording", 5, 5, correlation=3),
    )
    kept = select(read(path), ReportOptions(window="steps"))
    assert [one.name for one in kept] == ["late but of step 4"]
    assert len(select(read(path), ReportOptions())) == 3


def test_one_step_is_kept_whole_and_none_is_refused(tmp_path):
    one = write(tmp_path / "one.json", STEPS[0], kernel("a", 500, 10))
    assert len(select(read(one), ReportOptions(window="steps"))) == 1
    none = write(tmp_path / "none.json", kernel("a", 500, 10))
    with pytest.raises(ConfigError, match="window 'steps' must find steps in the recording, but got none"):
        select(read(none), ReportOptions(window="steps"))


def test_a_memset_is_compute_or_counts_with_copies(tmp_path):
    path = write(tmp_path / "t.json", kernel("a", 0, 10), event("gpu_memset", "Memset", 10, 4, tid=7, pid=0, stream=7))
    compute = break_down(select(read(path), ReportOptions(memset="compute")))
    other = break_down(select(read(path), ReportOptions(memset="other")))
    assert (compute.compute_ns, compute.exposed_copy_ns) == (14_000, 0)
    assert (other.compute_ns, other.exposed_copy_ns) == (10_000, 4_000)


def test_copies_between_devices_may_be_communication(tmp_path):
    peer = event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 5, 10, tid=9, pid=0, stream=9)
    host = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 2, tid=9, pid=0, stream=9)
    path = write(tmp_path / "t.json", kernel("a", 0, 10), peer, host)
    totals = break_down(select(read(path), ReportOptions(peer_copies="comm")))
    assert (totals.comm_ns, totals.hidden_comm_ns, totals.exposed_copy_ns) == (10_000, 5_000, 2_000)
    assert break_down(select(read(path), ReportOptions())).comm_ns == 0


def test_kernels_belong_to_modules_in_forward_and_in_backward(tmp_path):
    path = write(
        tmp_path / "t.json",
        event("python_function", "nn.Module: Net_0", 0, 100),
        event("python_function", "nn.Module: Block_1", 10, 40),
        event("cpu_op", "aten::linear", 12, 20, **{"Sequence number": 17}),
        event("cpu_op", "aten::addmm", 14, 10, **{"Sequence number": 17}),
        launch(1, 15),
        kernel("forward gemm", 60, 5, correlation=1),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 200, 30, tid=9)
        | {"args": {"Sequence number": 17, "Fwd thread id": 1}},
        launch(2, 210, tid=9),
        kernel("backward gemm", 220, 5, correlation=2),
    )
    forward, backward = read(path).activities
    assert (forward.unit, forward.phase) == ("Net_0/Block_1", "")
    assert (backward.unit, backward.phase) == ("Net_0/Block_1", "backward")


def test_an_event_without_a_time_is_refused(tmp_path):
    broken = kernel("a", 0, 1)
    del broken["dur"]
    with pytest.raises(ConfigError, match=r"events of t.json must have 'dur'"):
        read(write(tmp_path / "t.json", broken))


@pytest.mark.parametrize("row", rows("expected", FIXTURES), ids=lambda row: f"{row['dataset']}-{row['rank']}")
def test_reduced_public_traces(row):
    (path,) = (FIXTURES / row["dataset"]).glob(f"rank{row['rank']}.json.gz")
    rank = measure_rank(read(path), ReportOptions())
    totals = rank.totals
    ours = {
        "comm_us": totals.comm_ns,
        "comp_us": totals.compute_ns,
        "mem_us": totals.copy_ns,
        "overlap_us": totals.hidden_comm_ns,
        "exposed_us": totals.exposed_comm_ns,
        "idle_us": totals.idle_ns,
        "span_us": totals.span_ns,
    }
    assert {name: ns / 1000 for name, ns in ours.items()} == pytest.approx(
        {name: float(row[name]) for name in ours}, abs=0.1
    )
    assert rank.rank == int(row["rank"])
    assert (len(rank.activities), totals.comm_ops) == (int(row["n_gpu"]), int(row["n_comm"]))
