"""Activities for tests, in a line each."""

from overlap.profiling.recording import COMMUNICATION, COMPUTE, Activity, Message

ALL_GATHER = "ncclDevKernel_AllGather_RING_LL"


def compute(start: int, end: int, name: str = "gemm", stream: str = "7", **more: object) -> Activity:
    return Activity(name=name, category=COMPUTE, stream=stream, start_ns=start, end_ns=end, **more)


def collective(start: int, end: int, kind: str = "all_gather", stream: str = "20", **more: object) -> Activity:
    sent = {name: more.pop(name) for name in ("bytes", "group", "world") if name in more}
    return Activity(
        name=ALL_GATHER,
        category=COMMUNICATION,
        stream=stream,
        start_ns=start,
        end_ns=end,
        library="NCCL",
        message=Message(collective=kind, **sent),
        **more,
    )
