import pytest
import torch

from overlap.bench.collective.names import COLLECTIVES, parse_root, words
from overlap.bench.collective.settings import CollectiveSettings
from overlap.bench.collective.sizes import bytes_of, count_of, parse_bytes, parse_numbers, scan, show_bytes
from overlap.errors import ConfigError


@pytest.mark.parametrize(("word", "nbytes"), [("4096", 4096), ("64k", 65536), ("32M", 32 << 20), ("1GiB", 1 << 30)])
def test_sizes_are_powers_of_1024(word, nbytes):
    assert parse_bytes("minbytes", word) == nbytes


@pytest.mark.parametrize("word", ["", "0", "M", "1T", "-4", "1.5M"])
def test_what_is_no_size_is_refused(word):
    with pytest.raises(ConfigError, match="minbytes must be bytes such as"):
        parse_bytes("minbytes", word)


def test_scans():
    assert list(scan(8, 64, 1, 2)) == [8, 16, 32, 64]
    assert list(scan(10, 35, 10, None)) == [10, 20, 30]


def test_lists_of_numbers():
    assert parse_numbers("in-flight", "1, 4,2,4") == (1, 4, 2)
    with pytest.raises(ConfigError, match="in-flight must be numbers"):
        parse_numbers("in-flight", "1,two")


@pytest.mark.parametrize(
    ("nbytes", "text"), [(100, "100 B"), (1536, "1.5 KiB"), (25 << 20, "25 MiB"), (1000 << 20, "1,000 MiB")]
)
def test_sizes_are_shown_with_units(nbytes, text):
    assert show_bytes(nbytes) == text


@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_counts_are_those_of_nccl_tests(op, world, itemsize):
    """(count / nranks) & ~(16 / size - 1) of a part, every element where all ranks have the whole."""
    for nbytes in (1 << 10, 1_000_003, 1 << 20):
        elements = nbytes // itemsize
        theirs = (
            elements if op in ("all_reduce", "broadcast", "reduce") else (elements // world) & ~(16 // itemsize - 1)
        )
        assert count_of(op, nbytes, itemsize, world) == theirs
        assert bytes_of(op, theirs, itemsize, world) <= nbytes


def test_small_sizes_become_one_that_is_measured_once():
    settings = CollectiveSettings(min_bytes=8, max_bytes=64, step_factor=2, ranks=4)
    assert settings.sizes("all_gather", 4) == [(4, 64)]
    assert settings.sizes("all_reduce", 4) == [(2, 8), (4, 16), (8, 32), (16, 64)]


def test_roots():
    assert [list(CollectiveSettings(ranks=3, root=root).roots("broadcast")) for root in (parse_root("all"), 2)] == [
        [0, 1, 2],
        [2],
    ]
    assert list(CollectiveSettings(ranks=3, root=2).roots("all_reduce")) == [-1]
    with pytest.raises(ConfigError, match="root must be a rank or all, but got last; count from 0"):
        parse_root("last")


def test_pieces_are_of_one_size():
    settings = CollectiveSettings(min_bytes=1 << 20, max_bytes=1 << 20, ranks=3, layout="staged", pieces=7)
    ((count, nbytes),) = settings.sizes("reduce_scatter", 2)
    assert count % 7 == 0
    assert nbytes == 3 * 2 * count


def test_short_names_and_doubles():
    assert words(["bf16, fp32", "float"]) == ("bfloat16", "float")
    assert "int64" in words(["all"])


def test_settings_travel_as_text():
    settings = CollectiveSettings(collectives=("all_reduce",), transports=("gloo", "overlap"), step_factor=4, json="x")
    assert CollectiveSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"collectives": ("allgather",)}, "collective must be one of .* got allgather; did you mean all_gather"),
        ({"transports": ("glo",)}, "transport must be one of gloo, nccl, overlap, but got glo; did you mean gloo"),
        ({"datatypes": ("fp8",)}, "datatype must be one of"),
        ({"redop": "mean"}, "op must be one of sum, prod, min, max, avg, but got mean"),
        (
            {"redop": "avg", "datatypes": ("int8",)},
            "datatype of avg must be a floating one, but got int8",
        ),
        ({"redop": "avg", "datatypes": ("bfloat16",), "ranks": 257}, "ranks must be at most 256 for avg of bfloat16"),
        ({"root": 2}, "root must be one of 2 ranks, or all, but got 2; count from 0"),
        (
            {"collectives": ("reduce",)},
            "reduce must be over gloo or nccl, but got overlap, which",
        ),
        (
            {"layout": "coalesced", "transports": ("gloo",), "collectives": ("broadcast",)},
            "must be of all_gather, reduce_scatter, all_reduce, but got broadcast; use --layout staged$",
        ),
        ({"layout": "flatt"}, "layout must be one of flat, coalesced, staged, but got flatt; did you mean flat"),
        ({"iters": 0}, "iters must be at least 1"),
        ({"warmup": -1}, "warmup must be at least 0"),
        ({"min_bytes": 1 << 30}, "max_bytes must be at least 1073741824"),
        ({"step_factor": 1}, "step_factor must be at least 2"),
        ({"pieces": 0}, "pieces must be at least 1"),
        ({"redop": "max", "collectives": ("all_reduce",)}, "op must be sum or avg over overlap, but got max"),
        (
            {"layout": "coalesced", "collectives": ("all_reduce",)},
            "of all_gather over overlap, but got all_reduce: gradients are reduced in one flat bucket; use --layout",
        ),
        ({"out_datatype": "float"}, "--out-datatype must be of reduce_scatter over overlap"),
        ({"datatypes": ("int32",)}, "datatype must be float, bfloat16 or half where overlap reduces, but got int32"),
    ],
)
def test_what_cannot_be_measured_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        CollectiveSettings(**given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("given", [{"transports": ("nccl",)}, {"device": "cuda"}])
def test_nccl_needs_a_gpu(given):
    with pytest.raises(ConfigError, match=r"must run here, but got .* and torch sees no GPU; use gloo or overlap"):
        CollectiveSettings(**given)
