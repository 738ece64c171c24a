"""Real ranks for tests: long-lived pools of processes joined by gloo over localhost.

    results = ranks(4, fn, *args)            # fn(*args) on 4 ranks of the session's pool: list by rank
    results = ranks.fresh(4, fn, *args, group_timeout_s=3)   # in processes of its own, for faults

`fn` is a module-level function; inside it `torch.distributed` is initialised, torch has one
thread, warnings are errors. A failing or late call kills its pool; the next call starts another.
"""

import inspect
import multiprocessing
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist
from support.rank_worker import Call, Membership, serve

GROUP_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 120.0
# Imported once, before the fork of each worker: importing torch costs 2 s a process.
PRELOAD = [
    "support.rank_worker",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "numpy",
    "pytest",
]


class RankError(Exception):
    """A rank raised, died or was late; the text names it and carries its traceback."""


class RankPool:
    """`world` processes that share one default process group."""

    def __init__(self, world: int, group_timeout_s: float = GROUP_TIMEOUT_S) -> None:
        self.world = world
        self._logs = tempfile.TemporaryDirectory(prefix="ranks-")
        # The store lives here, on a port the system picks: no race for it, and it outlives any rank.
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=group_timeout_s)
        )
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for rank in range(world):
            me = Membership(rank, world, self._store.port, group_timeout_s, str(self._log(rank)))
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(me, theirs, sys.path), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float = CALL_TIMEOUT_S, **kwargs: Any) -> list[Any]:
        """Run `fn` on every rank and return what each returned; raise `RankError` at the first failure."""
        arguments = pickle.dumps((args, kwargs))
        call = Call(fn.__module__, inspect.getfile(fn), fn.__qualname__, arguments)
        for pipe in self._pipes:
            with suppress(OSError):  # a rank that died: reported below, with its log
                pipe.send_bytes(pickle.dumps(call))
        return self._collect(fn.__qualname__, time.monotonic() + timeout_s)

    def close(self) -> None:
        """End the ranks in order; those that do not end are killed."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send_bytes(b"")
        deadline = time.monotonic() + 5
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the ranks at once."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._logs.cleanup()

    def _collect(self, name: str, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < self.world:
            waiting = {self._pipes[r]: r for r in range(self.world) if r not in results}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankError(f"{name}: no answer from rank {sorted(waiting.values())} in time")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting[pipe]
                results[rank] = self._receive(name, rank)
        return [results[rank] for rank in range(self.world)]

    def _receive(self, name: str, rank: int) -> Any:
        try:
            passed, value = pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, OSError):
            self._processes[rank].join(5)
            code = self._processes[rank].exitcode
            raise RankError(f"{name}: rank {rank} died with exit code {code}\n{self._tail(rank)}") from None
        if not passed:
            raise RankError(f"{name}: rank {rank} raised\n{value}")
        return value

    def _log(self, rank: int) -> Path:
        return Path(self._logs.name) / f"rank{rank}.log"

    def _tail(self, rank: int) -> str:
        log = self._log(rank)
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""


class Ranks:
    """The pools of a session, one per world size, started when first used."""

    def __init__(self) -> None:
        self._pools: dict[int, RankPool] = {}

    def __call__(self, world: int, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `fn(*args, **kwargs)` on `world` ranks; `timeout_s` bounds the call. Returns values by rank."""
        pool = self._pools.get(world) or self._pools.setdefault(world, RankPool(world))
        try:
            return pool.run(fn, *args, **kwargs)
        except BaseException:  # ranks may be inside a collective: nothing of the pool can be trusted
            del self._pools[world]
            pool.kill()
            raise

    def fresh(
        self,
        world: int,
        fn: Callable[..., Any],
        *args: Any,
        group_timeout_s: float = GROUP_TIMEOUT_S,
        **kwargs: Any,
    ) -> list[Any]:
        """As a call, in new processes that end with it: for tests that break their process group."""
        pool = RankPool(world, group_timeout_s)
        try:
            return pool.run(fn, *args, **kwargs)
        finally:
            pool.kill()

    def close(self) -> None:
        """End every pool."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
