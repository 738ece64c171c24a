import pytest

from overlap.profiling.communicators import communicator_rows
from overlap.profiling.messages import message_of
from overlap.profiling.nesting import HostEvent
from overlap.profiling.recording import Message
from overlap.profiling.skew import Skew, match

from .activities import collective

US = 1000


def test_bandwidths_are_those_of_nccl_tests():
    own = [
        collective(0, 100 * US, bytes=8_000_000, group="dp", world=8),
        collective(200 * US, 300 * US, bytes=8_000_000, group="dp", world=8),
        collective(0, 50 * US, "all_reduce", bytes=1_000_000, group="dp", world=8),
    ]
    gather, reduce = communicator_rows(0, own, [(50 * US, 400 * US)], Skew())
    assert (gather.ops, gather.bytes, gather.comm_ns, gather.exposed_ns) == (2, 16_000_000, 200 * US, 50 * US)
    assert gather.algbw == pytest.approx(80)  # 16 MB in 200 µs
    assert gather.busbw == pytest.approx(80 * 7 / 8)
    assert reduce.busbw == pytest.approx(20 * 2 * 7 / 8)
    assert (gather.wait_ns, gather.transfer_busbw) == (None, None)


def test_waiting_is_taken_out_where_ranks_are_matched():
    own = [collective(0, 100 * US, bytes=8_000_000, world=2)]
    skew = match({0: own, 1: [collective(60 * US, 100 * US, bytes=8_000_000, world=2)]})
    (row,) = communicator_rows(0, own, [], skew)
    assert row.wait_ns == 60 * US
    assert row.busbw == pytest.approx(40)
    assert row.transfer_busbw == pytest.approx(100)


def test_what_is_unknown_stays_unknown():
    unsized, odd = collective(0, 10, stream="4"), collective(0, 10, "send_recv", bytes=10, world=2)
    first, second = communicator_rows(0, [unsized, odd], [], Skew())
    assert (first.group, first.algbw, first.busbw) == ("stream 4", None, None)
    assert second.algbw is not None
    assert second.busbw is None


@pytest.mark.parametrize(
    ("kernel", "args", "ranges", "expected"),
    [
        (
            "ncclDevKernel_AllGather_RING_LL",
            {
                "Collective name": "_allgather_base",
                "In msg nelems": 1000,
                "Out msg nelems": 8000,
                "Group size": 8,
                "dtype": "BFloat16",
                "Process Group Name": "3",
                "Process Group Description": "mesh_fsdp",
            },
            [],
            Message(collective="all_gather", bytes=16000, wire_bytes=14000, group="mesh_fsdp", world=8),
        ),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
            {},
            [("nccl:all_to_all", [[8, 100]], ["float"])],
            Message(collective="all_to_all", bytes=3200, wire_bytes=2400, world=4),
        ),
        (
            "ncclDevKernel_Generic",
            {},
            [("nccl:_all_gather_base", [[100]], ["c10::BFloat16"])],
            Message(collective="all_gather", bytes=800, wire_bytes=600, world=4),
        ),
        (
            "ncclDevKernel_Generic",
            {},
            [("nccl:_reduce_scatter_base", [[64], []], ["long int", "Scalar"])],
            Message(collective="reduce_scatter", bytes=512, wire_bytes=384, world=4),
        ),
        ("ncclDevKernel_ReduceScatter_Sum_f32", {}, [], Message(collective="reduce_scatter", world=4)),
        ("ncclDevKernel_Generic", {}, [], Message(world=4)),
        ("x", {}, [("nccl:all_reduce", [[3]], ["a dtype of tomorrow"])], Message(collective="all_reduce", world=4)),
    ],
)
def test_messages_are_read_from_where_a_version_puts_them(kernel, args, ranges, expected):
    around = [HostEvent(name, "1", 0, 9, {"Input Dims": dims, "Input type": types}) for name, dims, types in ranges]
    assert message_of(kernel, args, around, world=4) == expected
