"""Each case computes what it says, and its peers compute the same."""

import math

import pytest
import torch

from overlap.bench import verify
from overlap.bench.faces import load_face
from overlap.bench.rows import OPS

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

# Peers that round elsewhere: bf16 has 8 bits; e4m3 has 4, and a quotient beside a tie takes the other neighbour.
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float8_e4m3fn: 2**-3, torch.int8: 1}

MAY_DISAGREE = {"lion": 1}
"""Values: the sign of a sum that cancels depends on how it was rounded."""


def cases(op, dtype, size=5000):
    return OPS[op](size, dtype, CPU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_no_value_is_wrong(op, dtype):
    for case in cases(op, dtype):
        assert case.wrong(load_face("native")) == 0, case.label


@pytest.mark.parametrize("op", OPS)
def test_values_are_checked_in_chunks_as_in_one_go(op, monkeypatch):
    monkeypatch.setattr(verify, "CHUNK", 1024)
    for case in cases(op, torch.bfloat16):
        assert case.wrong(load_face("native")) == 0, case.label


@pytest.mark.parametrize("op", OPS)
def test_the_public_call_does_what_the_face_does(op):
    """On the second run of the same buffers in-place ops have moved on: both start from the same values."""
    torch.manual_seed(0)
    ours = list(cases(op, torch.bfloat16))
    torch.manual_seed(0)
    theirs = list(cases(op, torch.bfloat16))
    for one, other in zip(ours, theirs, strict=True):
        one.call(load_face("native"))
        other.public()
        assert sum(map(verify.differing, one.results(), other.results())) == 0, one.label


def disagreements(peer, case):
    """For each result, how many of the peer's values are none of the case's."""
    return [differing(got, want) for got, want in zip(peer.results(), case.results(), strict=True)]


def differing(got, want):
    assert got.shape == want.shape
    tolerance = TOLERANCE.get(want.dtype, 2**-7 if got.dtype == torch.bfloat16 else 1e-5)
    relative = 0 if want.dtype == torch.int8 else tolerance
    near = torch.isclose(got.double(), want.double(), rtol=relative, atol=tolerance)
    return near.numel() - int(near.sum())


each_op_with_peers = pytest.mark.parametrize("op", [op for op in OPS if op != "adamw_8bit"])  # they keep other averages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_op_with_peers
def test_peers_do_the_same_work(op, dtype):
    for case in cases(op, dtype):
        peers = [peer for peer in case.peers if peer.run is not None]
        assert peers, case.label
        case.call(load_face("native"))
        for peer in peers:
            peer.run()
            assert max(disagreements(peer, case)) <= MAY_DISAGREE.get(op, 0), (case.label, peer.name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_op_with_peers
def test_a_peer_that_does_nothing_is_found(op, dtype):
    """Each of its results alone gives it away: what peers start from is not what they should leave behind."""
    for case in cases(op, dtype):
        case.call(load_face("native"))
        for peer in case.peers:
            if peer.run is not None:
                assert min(disagreements(peer, case)) > MAY_DISAGREE.get(op, 0), (case.label, peer.name)


@pytest.mark.parametrize("op", [op for op in OPS if op != "grad_norm"])  # its results are scalars
def test_buffers_of_ours_and_of_peers_are_staggered(op):
    """None starts where its memory does, and those that a face is given start at different places."""
    given = []
    face = type("Face", (), {op: staticmethod(lambda *arguments: given.extend(tensors(arguments)))})
    for case in cases(op, torch.bfloat16):
        given.clear()
        case.call(face)
        shifts = starts(given)
        assert len(set(shifts)) == len(shifts) > 1, case.label
        assert min(shifts) > 0, case.label
        for peer in case.peers:
            assert min(starts(peer.results()), default=1) > 0, (case.label, peer.name)


def tensors(arguments):
    """All but the two numbers of a norm."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield from [argument] if argument.numel() > 2 else []
        elif isinstance(argument, list | tuple):
            yield from tensors(argument)


def starts(given):
    """In bytes from the beginning of its memory; of views into one memory the first."""
    first = {}
    for tensor in given:
        memory = tensor.untyped_storage().data_ptr()
        first[memory] = min(first.get(memory, math.inf), tensor.data_ptr() - memory)
    return list(first.values())


def test_the_check_poisons_what_is_only_written():
    """A face that writes nothing must not pass on what an earlier run left behind."""
    untouched = type("Nothing", (), {op: staticmethod(lambda *arguments: None) for op in OPS})
    for op in OPS:
        for case in cases(op, torch.float32):
            case.call(load_face("native"))
            assert case.wrong(untouched) >= 2, case.label
