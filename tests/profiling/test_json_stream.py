"""Any JSON that is a trace is read as ``json`` reads it, however the window falls; what is none is refused."""

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.errors import ConfigError
from overlap.profiling import json_stream
from overlap.profiling.json_stream import TraceStream, nanoseconds

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.dictionaries(st.text(max_size=5).filter(lambda name: name != "traceEvents"), VALUES, max_size=3)
EVENTS = st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=5)


def written(path: Path, text: str) -> TraceStream:
    path.write_text(text, encoding="utf-8")
    return TraceStream(path)


@given(before=HEADERS, events=EVENTS, after=HEADERS, indent=st.sampled_from([None, 1]), window=st.integers(1, 40))
def test_events_and_header_are_those_of_json(tmp_path_factory, before, events, after, indent, window):
    text = json.dumps({**before, "traceEvents": events, **after}, indent=indent, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_WINDOW", window)
        stream = written(tmp_path_factory.mktemp("stream") / "t.json", text)
        assert list(stream.events()) == events
    assert stream.header == {**before, **after}


def test_a_bare_array_is_a_trace(tmp_path):
    stream = written(tmp_path / "t.json", ' [{"ph": "X"},\n {"ph": "M"},\n]')
    assert list(stream.events()) == [{"ph": "X"}, {"ph": "M"}]
    assert stream.header == {}


def test_one_event_beyond_the_window_takes_linear_time(tmp_path):
    name = "x" * 5_000_000
    stream = written(tmp_path / "t.json", json.dumps({"traceEvents": [{"name": name}]}))
    assert list(stream.events()) == [{"name": name}]


def test_fractions_stay_text_so_that_nothing_is_rounded(tmp_path):
    stream = written(tmp_path / "t.json", '{"traceEvents": [{"ts": 1711964646000000.123, "dur": 7}]}')
    (event,) = stream.events()
    assert nanoseconds(event["ts"]) == 1711964646000000123
    assert nanoseconds(event["dur"]) == 7000


@given(st.decimals(-(10**13), 10**16, places=3))
def test_nanoseconds_are_exact(value: Decimal):
    assert nanoseconds(str(value)) == value * 1000


@given(st.floats(0, 1e12, allow_nan=False))
def test_nanoseconds_reads_whatever_a_float_is_printed_as(value: float):
    assert abs(nanoseconds(repr(value)) - Decimal(repr(value)) * 1000) <= Decimal("0.5")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "neither a JSON object nor an array"),
        ("hello", "neither a JSON object nor an array"),
        ('{"a": 1}', "no 'traceEvents'"),
        ('{"traceEvents": 3}', "no 'traceEvents'"),
        ('{"traceEvents": [{"ph": "X"}', "breaks off or is malformed"),
        ('{"traceEvents": [{"ph": "X"}, {"na', "breaks off or is malformed"),
        ('{"traceEvents": [{]}', "breaks off or is malformed"),
        ('{"traceEvents" [', "no value for 'traceEvents'"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, got):
    stream = written(tmp_path / "t.json", text)
    with pytest.raises(ConfigError, match=f"t.json must be a Chrome trace, but got .*{got}"):
        list(stream.events())


def test_gzip_that_breaks_off_is_refused(tmp_path):
    whole = gzip.compress(json.dumps({"traceEvents": [{"n": n} for n in range(1000)]}).encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(whole[:-20])
    with pytest.raises(ConfigError, match="gzip data that breaks off"):
        list(TraceStream(path).events())
    path.write_bytes(b"plain")
    with pytest.raises(ConfigError, match="gzip data that breaks off or is malformed"):
        list(TraceStream(path).events())


@pytest.mark.parametrize("bad", ["1e", "soon", "NaN"])
def test_a_timestamp_that_is_no_number_is_refused(bad):
    with pytest.raises(ConfigError, match="timestamp must be a number"):
        nanoseconds(bad)
