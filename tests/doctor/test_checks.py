"""Each check against machines that have just the fault it looks for."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
from doctor.machines import GIB, H100, cpu_host, gpu_host

from overlap.doctor.checks import examine
from overlap.doctor.checks.network import matching
from overlap.doctor.checks.variables import RULES
from overlap.doctor.facts import Cpu, Facts, Gpus, Rendezvous
from overlap.doctor.finding import Finding


def troubles(facts: Facts) -> list[Finding]:
    return [finding for group in examine(facts).values() for finding in group if finding.level != "ok"]


def only_trouble(facts: Facts) -> Finding:
    (found,) = troubles(facts)
    return found


def with_software(facts: Facts, **changes: object) -> Facts:
    return replace(facts, software=replace(facts.software, **changes))


def with_cpu(facts: Facts, **changes: object) -> Facts:
    return replace(facts, cpu=replace(facts.cpu, **changes))


def with_memory(facts: Facts, **changes: object) -> Facts:
    return replace(facts, memory=replace(facts.memory, **changes))


def with_network(facts: Facts, **changes: object) -> Facts:
    return replace(facts, network=replace(facts.network, **changes))


LAUNCHED = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"}


def launched(*, address: str | None = "10.0.0.1", unreachable: str | None = None, **more: str) -> Facts:
    found = Rendezvous(address=address, unreachable=unreachable)
    return replace(gpu_host(**(LAUNCHED | more)), rendezvous=found)


def rendezvous(facts: Facts) -> Finding:
    (found,) = (finding for finding in examine(facts)["stores"] if finding.subject == "rendezvous")
    return found


AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.mark.parametrize(
    ("facts", "value"),
    [
        (gpu_host(MASTER_ADDR="node0"), "none yet: no launcher has started this process"),
        (launched(), "TCPStore at node0:29400, held by rank 0 (libuv)"),
        (launched(**AGENT, USE_LIBUV="0"), "TCPStore at node0:29400, held by torchrun's agent (libuv)"),
        (launched(MASTER_ADDR="localhost", WORLD_SIZE="8"), "TCPStore at localhost:29400, held by rank 0 (libuv)"),
        (replace(gpu_host(), rendezvous=Rendezvous(in_use="HashStore")), "HashStore"),
    ],
)
def test_the_store_of_the_ranks_is_named(facts, value):
    assert troubles(facts) == []
    assert rendezvous(facts).value.startswith(value)


def test_the_store_of_shards_is_named():
    """The day that there is an offload, this line has to be told by it."""
    assert [examine(host())["stores"][0].value for host in (gpu_host, cpu_host)] == [
        f"in memory of the {device}; offload to pinned host memory or NVMe is not built" for device in ("GPU", "CPU")
    ]
    assert find_spec("overlap.offload") is None


def test_a_machine_without_fault_gets_no_advice():
    assert troubles(gpu_host()) == []
    assert [(found.subject, found.level) for found in troubles(cpu_host())] == [("GPUs", "note")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("machine", [gpu_host, cpu_host])
def test_each_harmful_variable_is_found_on_any_machine(machine, rule):
    for value in rule.values:
        found = [found for found in troubles(machine(**{rule.name: value.upper()})) if found.subject == rule.name]
        assert [(each.level, each.value, each.why) for each in found] == [(rule.level, value.upper(), rule.why)]
        assert rule.name in found[0].cure or rule.name == "KMP_BLOCKTIME"
    assert troubles(machine(**{rule.name: "8"})) == troubles(machine())


@pytest.mark.parametrize(
    ("facts", "level", "subject", "words"),
    [
        (with_software(gpu_host(), python=(3, 14, 0)), "warning", "Python", "3.11 to 3.13"),
        (with_software(gpu_host(), torch="2.10.1+cu128"), "warning", "torch", "2.11 to 2.14"),
        (with_software(gpu_host(), torch="2.15.0"), "warning", "torch", "2.11 to 2.14"),
        (with_software(gpu_host(), gloo=False), "error", "gloo", "USE_GLOO=1"),
        (with_software(gpu_host(), nccl=None), "error", "NCCL", "USE_NCCL=1"),
        (with_software(gpu_host(), native=False, cpu_face="reference"), "warning", "ops on CPU", "compiler"),
        (with_software(gpu_host(), cpu_face="reference"), "warning", "ops on CPU", "unset OVERLAP_NATIVE"),
        (with_software(gpu_host(), cpu_face="it must be"), "error", "ops on CPU", "OVERLAP_NATIVE=auto"),
        (with_software(gpu_host(), shared=False), "warning", "ranks of a host", "compiler"),
        (gpu_host(OVERLAP_SHARED_MEMORY="off"), "warning", "ranks of a host", "unset OVERLAP_SHARED_MEMORY"),
        (gpu_host(OVERLAP_SHARED_MEMORY="never"), "error", "ranks of a host", "auto, on, off"),
        (
            with_software(gpu_host(OVERLAP_SHARED_MEMORY="on"), shared=False),
            "error",
            "ranks of a host",
            "the first communicator",
        ),
        (with_software(gpu_host(), fatbin=False, cuda_face="triton"), "note", "CUDA C++ kernels", "same bits"),
        (with_software(gpu_host(), cuda_face="no"), "error", "ops on CUDA", "OVERLAP_CUDA_KERNELS=auto"),
        (gpu_host(TRITON_INTERPRET="1"), "error", "TRITON_INTERPRET", "unset it"),
        (replace(gpu_host(), gpus=Gpus(seen=(H100,), installed=8)), "note", "GPUs", "CUDA_VISIBLE_DEVICES"),
        (
            replace(gpu_host(), gpus=Gpus(seen=(H100,) * 2, installed=2, no_peer=((0, 1),))),
            "warning",
            "peer access",
            "ACS",
        ),
        (
            replace(gpu_host(), gpus=Gpus(seen=(H100,) * 2, installed=2, links={(0, 1): "SYS", (1, 0): "SYS"})),
            "note",
            "links",
            "bench collective",
        ),
        (with_cpu(cpu_host(), threads=4), "warning", "compute threads", "OMP_NUM_THREADS=3"),
        (with_cpu(cpu_host(), threads=2, ranks=2), "warning", "compute threads", "OMP_NUM_THREADS=1"),
        (with_cpu(cpu_host(), threads=1, ranks=4), "warning", "compute threads", "start fewer ranks"),
        (with_cpu(cpu_host(), allowed=1, threads=1), "error", "cores allowed", "bind"),
        (with_cpu(gpu_host(), allowed=4, threads=1), "error", "cores allowed", "fewer ranks"),
        (with_cpu(gpu_host(), threads=16), "note", "compute threads", "OMP_NUM_THREADS=15"),
        (with_cpu(cpu_host(), quota=2.5, threads=3), "warning", "cgroup", "OMP_NUM_THREADS=1"),
        (with_memory(gpu_host(), locked_limit=8 << 20), "warning", "locked memory", "ulimit -l unlimited"),
        (with_memory(cpu_host(), locked_limit=8 << 20), "note", "locked memory", ""),
        (with_memory(gpu_host(), shm_bytes=64 << 20), "warning", "/dev/shm", "--shm-size"),
        (with_memory(gpu_host(), shm_bytes=None), "warning", "/dev/shm", "--shm-size"),
        (with_memory(gpu_host(), huge_pages="madvise"), "note", "huge pages", "THP_MEM_ALLOC_ENABLE=1"),
        (with_memory(gpu_host(), huge_pages="never"), "note", "huge pages", "madvise >"),
        (gpu_host(GLOO_SOCKET_IFNAME="eht0"), "error", "GLOO_SOCKET_IFNAME", "lo, eth0, ib0, docker0"),
        (
            with_network(gpu_host(GLOO_SOCKET_IFNAME="eth0"), down=("eth0",)),
            "error",
            "GLOO_SOCKET_IFNAME",
            "set eth0 up",
        ),
        (gpu_host(NCCL_SOCKET_IFNAME="ens"), "error", "NCCL_SOCKET_IFNAME", "lo, eth0, ib0, docker0"),
        (gpu_host(NCCL_IB_DISABLE="1"), "warning", "NCCL_IB_DISABLE", "unset"),
        (with_network(gpu_host(), hostname_address="127.0.1.1"), "note", "gloo", "GLOO_SOCKET_IFNAME"),
        (with_network(gpu_host(), hostname_address=None), "warning", "gloo", "/etc/hosts"),
        (gpu_host(RANK="0", WORLD_SIZE="2"), "error", "rendezvous", "start with torchrun"),
        (launched(address=None), "error", "rendezvous", "--master-addr"),
        (launched(MASTER_ADDR="127.0.0.1", address="127.0.0.1"), "error", "rendezvous", "on itself"),
        (launched(**AGENT, unreachable="timed out"), "error", "rendezvous", "open the port"),
        (launched(USE_LIBUV="true"), "note", "rendezvous", "unset USE_LIBUV"),
        (replace(gpu_host(), io_uring="Operation not permitted"), "note", "io_uring", "seccomp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_is_found_with_one_cure(facts, level, subject, words):
    found = [each for each in troubles(facts) if (each.subject, each.level) == (subject, level)]
    assert len(found) == 1
    assert found[0].why
    assert words in f"{found[0].why} {found[0].cure}"
    assert level == "note" or found[0].cure


def test_a_cpu_build_of_torch_beside_gpus_is_an_error():
    facts = replace(cpu_host(), gpus=Gpus(installed=4))
    assert [(each.subject, each.level) for each in troubles(facts)] == [("torch build", "error"), ("GPUs", "note")]


def test_a_machine_without_triton_has_slow_ops_on_its_gpus():
    facts = with_software(gpu_host(), triton=None, fatbin=False, cuda_face="reference")
    assert {each.subject for each in troubles(facts) if each.level == "warning"} == {"Triton", "ops on CUDA"}


def test_the_quota_counts_as_cores():
    assert Cpu(cores=64, allowed=32, quota=4.0, threads=1).usable == 4
    assert only_trouble(with_cpu(gpu_host(), quota=64.0, threads=8)).subject == "compute threads"
    assert troubles(with_cpu(gpu_host(), quota=65.0, threads=8)) == []


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth1", ["eth1"]),
        ("=eth", []),
        ("^eth,lo", ["ib0"]),
        ("^=eth0", ["eth1", "ib0", "lo"]),
        ("ib,eth1", ["eth1", "ib0"]),
    ],
)
def test_interfaces_are_matched_as_nccl_does(pattern, names):
    assert matching(pattern, ["eth0", "eth1", "ib0", "lo"]) == names


def test_sizes_are_shown_in_units_that_can_be_read():
    assert any(found.value == "64.0 GiB" for found in examine(gpu_host())["memory"])
    assert only_trouble(with_memory(gpu_host(), shm_bytes=GIB // 2)).value == "512 MiB"
