"""Which stores are in use: where shards lie, and where ranks find each other."""

from collections.abc import Iterator, Mapping

from overlap.config import LAUNCHER_VARIABLES
from overlap.doctor.facts import Facts
from overlap.doctor.finding import Finding, error, note, ok

SUBJECT = "rendezvous"
_LOOPBACK = ("localhost", "127.", "::1")


def check(facts: Facts) -> Iterator[Finding]:
    """The store of shards, of which there is one today, and that of torch.distributed."""
    device = "GPU" if facts.gpus.seen else "CPU"
    yield ok("shards", f"in memory of the {device}; offload to pinned host memory or NVMe is not built")
    yield _rendezvous(facts)


def _rendezvous(facts: Facts) -> Finding:
    environment = facts.environment
    if facts.rendezvous.in_use is not None:
        return ok(SUBJECT, facts.rendezvous.in_use)
    if "RANK" not in environment:
        return ok(SUBJECT, "none yet: no launcher has started this process (overlap's own ranks get a TCPStore)")
    missing = [name for name in LAUNCHER_VARIABLES if not environment.get(name)]
    if missing:
        value, why = f"RANK without {', '.join(missing)}", "init_process_group() raises"
        return error(SUBJECT, value, why, "start with torchrun, or set all of " + ", ".join(LAUNCHER_VARIABLES))
    return _unreachable(facts) or _served(environment)


def _unreachable(facts: Facts) -> Finding | None:
    """What keeps ranks from the store; None where nothing is known to."""
    environment, found = facts.environment, facts.rendezvous
    name = environment["MASTER_ADDR"]
    cure = "let it name the first host: torchrun's --master-addr or --rdzv-endpoint, else MASTER_ADDR"
    if found.address is None:
        return error(SUBJECT, f"{name} resolves to nothing", "init_process_group() fails", cure)
    if name.startswith(_LOOPBACK) and _several_hosts(environment):
        return error(SUBJECT, f"{name}, with ranks on several hosts", "each host looks for the store on itself", cure)
    if found.unreachable is not None:
        value = f"{_place(environment)} does not answer: {found.unreachable}"
        why = "torchrun's agent on the first host holds the store, and ranks wait for it until they time out"
        return error(SUBJECT, value, why, "open the port between hosts, or take another with --rdzv-endpoint")
    return None


def _several_hosts(environment: Mapping[str, str]) -> bool:
    local = environment.get("LOCAL_WORLD_SIZE")
    return local is not None and local != environment["WORLD_SIZE"]


def _served(environment: Mapping[str, str]) -> Finding:
    """By whom, and how. An agent does not ask ``USE_LIBUV``."""
    store = f"TCPStore at {_place(environment)}"
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return ok(SUBJECT, f"{store}, held by torchrun's agent (libuv)")
    chosen = environment.get("USE_LIBUV", "1")
    if chosen == "1":
        return ok(SUBJECT, f"{store}, held by rank 0 (libuv)")
    why = "torch's older server takes longer to let many ranks in"
    return note(SUBJECT, f"{store}, held by rank 0, without libuv: USE_LIBUV={chosen}", why, "unset USE_LIBUV")


def _place(environment: Mapping[str, str]) -> str:
    return f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
