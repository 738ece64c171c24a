"""The process behind one rank of a pool: joins the default group, then runs the functions it is sent."""

import contextlib
import importlib
import importlib.util
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Membership:
    """What a rank must know to meet the others."""

    rank: int
    world: int
    port: int
    timeout_s: float
    log: str


@dataclass(frozen=True)
class Call:
    """A function by reference, and its pickled arguments."""

    module: str
    file: str
    qualname: str
    arguments: bytes


def serve(me: Membership, pipe: Connection, path: list[str]) -> None:
    """Run calls until the parent says stop (None) or goes away."""
    sys.path[:] = path
    _redirect(me.log)
    torch.set_num_threads(1)
    _join(me)
    with contextlib.suppress(EOFError):
        while (request := pipe.recv_bytes()) != b"":
            pipe.send_bytes(_answer(me, request))
        dist.barrier()
    _leave()


def _answer(me: Membership, request: bytes) -> bytes:
    try:
        torch.manual_seed(1000 + me.rank)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call = pickle.loads(request)
            function = _resolve(call)
            args, kwargs = pickle.loads(call.arguments)
            return pickle.dumps((True, function(*args, **kwargs)))
    except BaseException:
        return pickle.dumps((False, traceback.format_exc()))


def _resolve(call: Call) -> Callable[..., Any]:
    found: Any = _load(call.module, call.file)
    for name in call.qualname.split("."):
        found = getattr(found, name)
    return found


def _load(name: str, file: str) -> ModuleType:
    """Import by file: under pytest's importlib mode a test module's name need not be importable."""
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == file:
        return loaded
    with contextlib.suppress(ImportError):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin == file:
            return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that what the module defines can be pickled by name
    spec.loader.exec_module(module)
    return module


def _join(me: Membership) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = timedelta(seconds=me.timeout_s)
    store = dist.TCPStore("127.0.0.1", me.port, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.world, timeout=timeout)


def _leave() -> None:
    """Skip interpreter exit: gloo's threads sometimes abort the process there."""
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _redirect(log: str) -> None:
    """What a rank prints goes to its log; the parent shows the tail when the rank dies."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
