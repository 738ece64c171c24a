"""The tables of an Nsight Systems export (``nsys export --type sqlite``) that a report reads.

Exports leave out a table that would be empty, and columns come and go with the version: each reader asks what is there.
Names are numbers into ``StringIds``; NVTX texts are either inline (``text``) or such a number (``textId``, registered).
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from overlap.errors import ConfigError, message
from overlap.profiling.nesting import HostEvent
from overlap.profiling.nsys_marks import rank_of_mark

_PID_MASK = ~0xFFFFFF
"""A global thread id with its low 24 bits, the thread, cleared is the global process id."""
_MARK, _PUSH_POP, _START_END, _DOMAIN_NAME = 34, 59, 60, 75
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP", 11: "Unified HtoD", 12: "Unified DtoH"}


def process_of(thread: str) -> int:
    """The global process id of a thread of a ``HostEvent``."""
    return int(thread) & _PID_MASK


class Process(NamedTuple):
    """One process on one device: a rank."""

    pid: int
    """Serialised global id."""
    device: int


class DeviceRow(NamedTuple):
    """Work on a device."""

    kind: str
    """kernel, graph, memcpy or memset."""
    process: Process
    name: str
    stream: str
    start_ns: int
    end_ns: int
    correlation: int | None
    bytes: int
    shape: str = ""


class Export:
    """An open export; read-only."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def device_rows(self) -> Iterator[DeviceRow]:
        """Kernels, whole graphs, copies and memsets, by table."""
        yield from self._kernels()
        yield from self._graphs()
        yield from self._copies()
        yield from self._memsets()

    def launches(self) -> dict[tuple[int, int], HostEvent]:
        """Runtime calls by (global pid, correlation): correlations of two processes may be equal."""
        found = {}
        for start, end, tid, correlation, name in self._rows(
            "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "globalTid", "correlationId", "nameId"
        ):
            event = HostEvent(self._strings.get(name, ""), str(tid), start, end, {})
            found[tid & _PID_MASK, correlation] = event
        return found

    def ranges(self) -> list[HostEvent]:
        """Closed NVTX ranges; those of a named domain carry it as prefix, ``overlap:gather blocks.3``."""
        domains = self._domains()
        found = []
        for start, end, kind, text, text_id, tid, domain, *payload in self._rows(
            "NVTX_EVENTS", "start", "end", "eventType", "text", "textId", "globalTid", "domainId", *_PAYLOADS
        ):
            if kind in (_PUSH_POP, _START_END) and end is not None and tid is not None:
                name = text if text is not None else self._strings.get(text_id, "")
                prefix = domains.get((tid & _PID_MASK, domain))
                value = next((value for value in payload if value is not None), None)
                args = {} if value is None else {"payload": value}
                found.append(HostEvent(f"{prefix}:{name}" if prefix else name, str(tid), start, end, args))
        return found

    def ranks(self) -> dict[int, int]:
        """Rank by global pid, of processes that said theirs."""
        found = {}
        for kind, text, text_id, tid in self._rows("NVTX_EVENTS", "eventType", "text", "textId", "globalTid"):
            if kind == _MARK:
                rank = rank_of_mark(text if text is not None else self._strings.get(text_id, ""))
                if rank is not None:
                    found[tid & _PID_MASK] = rank
        return found

    def _domains(self) -> dict[tuple[int, int], str]:
        rows = self._rows("NVTX_EVENTS", "eventType", "text", "textId", "globalTid", "domainId")
        return {
            (tid & _PID_MASK, domain): text if text is not None else self._strings.get(text_id, "")
            for kind, text, text_id, tid, domain in rows
            if kind == _DOMAIN_NAME
        }

    def _kernels(self) -> Iterator[DeviceRow]:
        rows = self._rows(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            *("globalPid", "deviceId", "demangledName", "shortName", "streamId", "start", "end", "correlationId"),
            *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        )
        for pid, device, full, short, stream, start, end, correlation, *shape in rows:
            name = self._strings.get(full) or self._strings.get(short, "")
            process = Process(pid or 0, device)
            yield DeviceRow("kernel", process, name, str(stream), start, end, correlation, 0, f"{shape}")

    def _graphs(self) -> Iterator[DeviceRow]:
        rows = self._rows(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            *("globalPid", "deviceId", "graphId", "streamId", "start", "end", "correlationId"),
        )
        for pid, device, graph, stream, start, end, correlation in rows:
            name = f"CUDA graph {graph}"
            yield DeviceRow("graph", Process(pid or 0, device), name, str(stream), start, end, correlation, 0)

    def _copies(self) -> Iterator[DeviceRow]:
        rows = self._rows(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            *("globalPid", "deviceId", "copyKind", "streamId", "start", "end", "correlationId", "bytes"),
        )
        for pid, device, kind, stream, start, end, correlation, size in rows:
            name = f"Memcpy {_COPY_KINDS.get(kind, kind)}"
            yield DeviceRow("memcpy", Process(pid or 0, device), name, str(stream), start, end, correlation, size)

    def _memsets(self) -> Iterator[DeviceRow]:
        rows = self._rows(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            *("globalPid", "deviceId", "streamId", "start", "end", "correlationId", "bytes"),
        )
        for pid, device, stream, start, end, correlation, size in rows:
            yield DeviceRow("memset", Process(pid or 0, device), "Memset", str(stream), start, end, correlation, size)

    @cached_property
    def _strings(self) -> dict[int | None, str]:
        return dict(self._rows("StringIds", "id", "value"))

    def _rows(self, table: str, *columns: str) -> Iterator[tuple]:  # type: ignore[type-arg]  # as the table has them
        """The rows of a table, None for a column this version has not; none of a table that is not there."""
        if table not in self.tables:
            return iter(())
        there = {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}
        wanted = ", ".join(f'"{column}"' if column in there else "NULL" for column in columns)
        return self._database.execute(f"SELECT {wanted} FROM {table}")


@contextmanager
def opened(path: str | Path) -> Iterator[Export]:
    """Open an export; refuses what is not one."""
    try:
        with closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as database:
            yield Export(database)
    except sqlite3.Error as error:
        cure = "write it with `nsys export --type sqlite`"
        raise ConfigError(message(Path(path).name, "be an Nsight Systems export", f"{error}", cure)) from error
