import pytest
import torch

from overlap.bench import faces
from overlap.bench.rows import OPS
from overlap.bench.settings import OpSettings, parse_size
from overlap.errors import ConfigError

DEFAULTS = {
    "op": None, "sizes": "32M", "dtypes": "bf16,fp32", "device": "cpu", "faces": None, "threads": None,
    "repeats": 11, "budget": 20.0, "time_limit": None, "overhead": False,
}  # fmt: skip


def parse(**given):
    return OpSettings.parse(**{**DEFAULTS, **given})


def test_what_is_left_out_is_everything():
    settings = parse()
    assert settings.ops == tuple(OPS)
    assert settings.sizes == (32 << 20,)
    assert settings.threads == torch.get_num_threads()
    assert settings.faces == ("native",), "the extension is not built: run make test, or pip install -e ."


def test_without_the_extension_the_reference_is_measured(monkeypatch):
    monkeypatch.setitem(faces.MODULES, "native", "overlap.ops.nowhere")
    assert parse().faces == ("reference",)


@pytest.mark.parametrize(
    ("word", "elements"), [("4096", 4096), ("64K", 65536), ("32M", 33554432), ("1g", 1 << 30), ("1", 1)]
)
def test_sizes_are_powers_of_1024(word, elements):
    assert parse_size(word) == elements


def test_lists_keep_their_order_and_lose_their_doubles():
    settings = parse(
        op=["adamw, pack", "lion", "adamw"], sizes="2M, 1M", dtypes="fp32,bf16,fp32", faces="reference,native"
    )
    assert settings.ops == ("adamw", "pack", "lion")
    assert settings.sizes == (2 << 20, 1 << 20)
    assert settings.dtypes == ("fp32", "bf16")
    assert settings.faces == ("reference", "native")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"op": ["adam"]}, "op must be one of pack, .*, but got adam; did you mean adamw?"),
        ({"op": ["pack,adam"]}, "op must be one of pack, .*, but got adam; did you mean adamw?"),
        ({"op": ["pack,"]}, "op must be one of pack, .*, but got"),
        ({"op": ["xyz"]}, "op must be one of .* but got xyz; choose one of these"),
        ({"sizes": "32 M"}, "sizes must be positive numbers such as 4096, 64K or 32M, but got 32 M"),
        ({"sizes": "0"}, "sizes must be positive"),
        ({"sizes": "1M,"}, "sizes must be positive"),
        ({"dtypes": "bf8"}, "dtypes must be one of fp32, bf16, fp16, but got bf8; did you mean bf16?"),
        ({"device": "gpu"}, "device must be one of cpu, cuda, but got gpu"),
        ({"faces": "nativ"}, "faces must be one of native, reference, but got nativ; did you mean native?"),
        ({"faces": "triton"}, "faces must be one of native, reference, but got triton"),
        ({"threads": 0}, "threads must be positive, but got 0"),
        ({"repeats": -1}, "repeats must be positive, but got -1"),
        ({"budget": 0.0}, "budget must be positive"),
        ({"time_limit": 0.0}, "time-limit must be positive"),
    ],
)
def test_what_cannot_be_measured_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
        parse(**given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="device must be there, but got cuda"):
        parse(device="cuda")


def test_a_face_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(faces.MODULES, "native", "overlap.ops.nowhere")
    with pytest.raises(ConfigError, match=r"faces must be built, but got native \(No module named"):
        faces.load_face("native")


def test_a_face_that_cannot_run_says_why(monkeypatch):
    native = faces.load_face("native")
    monkeypatch.setattr(native, "why_not", lambda: "no driver", raising=False)
    assert parse().faces == ("reference",)
    with pytest.raises(ConfigError, match=r"faces must be built, but got native \(no driver\)"):
        faces.load_face("native")


def test_a_face_measures_only_what_it_brings(monkeypatch):
    native = faces.load_face("native")
    reference = faces.load_face("reference")
    assert all(faces.brings(face, op) for face in (native, reference) for op in OPS)
    monkeypatch.setattr(native, "pack", reference.pack)
    assert not faces.brings(native, "pack")
