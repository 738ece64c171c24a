"""What lies at a path: a trace, a folder of ranks, an export, a timeline; read into recordings, one per rank."""

import gc
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overlap.errors import ConfigError, message
from overlap.profiling.classify import Classifier
from overlap.profiling.kineto import read_kineto
from overlap.profiling.nsys import read_nsys
from overlap.profiling.own import is_own_trace, read_perfetto, read_timeline
from overlap.profiling.recording import Recording
from overlap.profiling.timeline import FORMAT as TIMELINE

RUN_FILE = "timeline.json"
"""What ``overlap train`` leaves in its folder, beside files that are no traces."""
_TRACES = (".json", ".json.gz")
_EXPORTS = (".sqlite",)
_HEAD = 256


def read_recordings(path: str | Path, classifier: Classifier) -> list[Recording]:
    """Read everything at ``path``, in order of rank.

    Args:
        path: a file, or a folder that holds a file per rank.
        classifier: tells communication from compute.
    """
    place = Path(path)
    files = _files(place)
    with _no_collection():
        recordings = [recording for file in files for recording in _read(file, classifier)]
    recordings = [recording for recording in recordings if recording.activities]
    if not recordings:
        cure = "record with ProfilerActivity.CUDA on a device, or `overlap profile -- CMD`"
        raise ConfigError(message(str(path), "hold device work, or collectives of gloo", "neither", cure))
    return _one_per_rank(sorted(recordings, key=lambda recording: recording.rank), place)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Reading makes millions of objects and no cycles: looking for some again and again takes a third of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        cure = "pass a trace, a folder of traces, a timeline.json or a .sqlite"
        raise ConfigError(message(str(place), "be a file or a folder", "neither", cure))
    if (place / RUN_FILE).is_file():
        return [place / RUN_FILE]
    files = sorted(file for file in place.iterdir() if file.name.endswith((*_TRACES, *_EXPORTS)))
    if not files:
        cure = "pass the folder that holds one trace per rank"
        raise ConfigError(message(str(place), "hold .json, .json.gz or .sqlite files", "none", cure))
    return files


def _read(file: Path, classifier: Classifier) -> list[Recording]:
    if file.suffix in _EXPORTS:
        return read_nsys(file, classifier)
    head = _head(file)
    if f'"format":"{TIMELINE}"' in head:
        return read_timeline(file)
    if is_own_trace(head):
        return read_perfetto(file)
    return [read_kineto(file, classifier)]


def _head(file: Path) -> str:
    """The first bytes as text; what is not text is no file of ours."""
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as opened:
            return opened.read(_HEAD).decode("utf-8", errors="replace")
    except (OSError, EOFError) as error:
        raise ConfigError(message(file.name, "be readable", str(error), "pass a complete trace")) from error


def _one_per_rank(recordings: list[Recording], place: Path) -> list[Recording]:
    by_rank: dict[int, Recording] = {}
    for recording in recordings:
        twin = by_rank.setdefault(recording.rank, recording)
        if twin is not recording:
            names = f"{Path(twin.source).name} and {Path(recording.source).name}, both of rank {recording.rank}"
            cure = "put the traces of one run into a folder of their own"
            raise ConfigError(message(f"traces in {place}", "be of different ranks", names, cure))
    return recordings
