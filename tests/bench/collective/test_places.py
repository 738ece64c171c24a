"""Every collective, layout, dtype and place with real ranks; and what goes wrong on purpose is counted."""

import itertools

import pytest
import torch
from support.ranks import Ranks

from overlap.bench.collective.case import Case
from overlap.bench.collective.names import COALESCED, COLLECTIVES, DTYPES, LAYOUTS, REDUCING, ROOTED
from overlap.bench.collective.places import Place
from overlap.bench.collective.transports import KIND, OwnTransport, open_transport
from overlap.comm.faults import Fault
from overlap.comm.groups import communicator_for
from overlap.comm.shaped import ShapedCommunicator

CPU = torch.device("cpu")
COUNT = 6 * 16


def case_of(op, layout, wire, rank, world, out=None, redop="sum"):
    return Case(
        op=op, count=COUNT, world=world, rank=rank, wire=wire, out=out or wire, layout=layout, pieces=6, redop=redop,
        root=world - 1,
    )  # fmt: skip


def checked(transport, case, in_place, repetitions=2):
    wrong = []
    for repetition in range(repetitions):
        place = Place(case, in_place, CPU)
        values = case.values(repetition)
        place.fill(values)
        place.call(transport)()
        wrong.append(place.wrong(values))
    return wrong


def _all_kinds(name):
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    transport = open_transport(name, CPU, "sum", f"places-{name}")
    met = {}
    for op, layout, dtype, in_place in itertools.product(COLLECTIVES, LAYOUTS, ("float", "bfloat16", "int8"), (0, 1)):
        case = case_of(op, layout, DTYPES[dtype], rank, world)
        impossible = (layout == "coalesced" and op not in COALESCED) or (in_place and not case.can_be_in_place)
        flat_only = layout == "coalesced" and op in REDUCING
        unknown = name == "overlap" and (op == "reduce" or flat_only or (op in REDUCING and dtype == "int8"))
        if not (impossible or unknown):
            met[op, layout, dtype, in_place] = checked(transport, case, bool(in_place))
    if name == "overlap":
        case = case_of("reduce_scatter", "flat", torch.bfloat16, rank, world, torch.float32)
        met["fp32 sums of bf16"] = checked(transport, case, False)
    return met


def _averages(name):
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    transport, met = open_transport(name, CPU, "avg", f"averages-{name}"), {}
    ops = [op for op in REDUCING if name == "gloo" or op != "reduce"]
    for op, dtype, in_place in itertools.product(ops, ("float", "bfloat16", "half"), (0, 1)):
        for layout in ("flat", "coalesced") if name == "gloo" and op in COALESCED else ("flat",):
            case = case_of(op, layout, DTYPES[dtype], rank, world, redop="avg")
            met[op, layout, dtype, in_place] = checked(transport, case, bool(in_place))
    if name == "overlap":
        case = case_of("reduce_scatter", "flat", torch.bfloat16, rank, world, torch.float32, "avg")
        met["fp32 sums of bf16"] = checked(transport, case, False)
    return met


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["gloo", "overlap"])
def test_averages_are_right(ranks: Ranks, name, world):
    for met in ranks(world, _averages, name):
        assert len(met) > 10
        assert {key: wrong for key, wrong in met.items() if any(wrong)} == {}


class Forgetful:
    """Sums where an average was asked for; takes another root; leaves the last of many tensors out."""

    def __init__(self, inner, world):
        self.device, self._inner, self._world = inner.device, inner, world

    def all_reduce(self, flat):
        self._inner.all_reduce(flat)
        flat.mul_(self._world)

    def broadcast(self, flat, root):
        self._inner.broadcast(flat, (root + 1) % self._world)

    def reduce(self, flat, root):
        self._inner.reduce(flat, (root + 1) % self._world)

    def all_reduce_coalesced(self, flats):
        self._inner.all_reduce_coalesced(flats[:-1])


def _forgotten():
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    transport = Forgetful(open_transport("gloo", CPU, "avg", "forgetful"), world)
    asked = [("all_reduce", "flat"), ("all_reduce", "coalesced"), *((op, "flat") for op in ROOTED)]
    return [checked(transport, case_of(*each, torch.float32, rank, world, redop="avg"), False, 1)[0] for each in asked]


def test_what_a_transport_forgets_is_counted(ranks: Ranks):
    (first, second) = ranks(2, _forgotten)
    for averaged, coalesced in (first[:2], second[:2]):
        assert averaged > 0.9 * COUNT
        assert 0.9 * COUNT / 6 < coalesced <= COUNT / 6
    assert (first[2] > 0.9 * COUNT) or (second[2] > 0.9 * COUNT)
    assert first[3] == 0, "not the root: nothing is looked at"
    assert second[3] > 0.4 * COUNT, "gloo leaves a half of the sum on a rank that is not its root"


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["gloo", "overlap"])
def test_every_value_is_right(ranks: Ranks, name, world):
    for met in ranks(world, _all_kinds, name):
        assert len(met) > 20
        assert {key: wrong for key, wrong in met.items() if any(wrong)} == {}


def _faulty(action, op, in_place):
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    inner = communicator_for(None, "places-faulty", "cpu")
    shaped = ShapedCommunicator(inner, fail_on=[Fault(KIND, 1, action)])
    transport = OwnTransport(shaped, None, CPU)
    return checked(transport, case_of(op, "flat", torch.float32, rank, world), in_place, 3)


@pytest.mark.parametrize(
    ("action", "op", "in_place"),
    [
        ("skip", "all_gather", False),
        ("skip", "all_gather", True),
        ("skip", "reduce_scatter", False),
        ("skip", "reduce_scatter", True),
        ("skip", "all_reduce", True),
        ("double", "all_reduce", True),
    ],
)
def test_a_planted_fault_is_counted_in_its_call_alone(ranks: Ranks, action, op, in_place):
    for before, met, after in ranks(2, _faulty, action, op, in_place):
        assert (before, after) == (0, 0)
        assert met > COUNT // 2


class OneBitOff:
    """Delivers everything but for one element of one rank."""

    def __init__(self, inner, at):
        self.device, self._inner, self._at = inner.device, inner, at

    def all_gather(self, fulls, locals_):
        self._inner.all_gather(fulls, locals_)
        fulls[0][self._at] += 1

    def reduce_scatter(self, bucket, out):
        self._inner.reduce_scatter(bucket, out)
        out[self._at] += 1

    def all_reduce(self, flat):
        self._inner.all_reduce(flat)
        flat[self._at] += 1

    def all_to_all(self, send, recv):
        self._inner.all_to_all(send, recv)
        recv.view(-1)[self._at] += 1

    def broadcast(self, flat, root):
        self._inner.broadcast(flat, root)
        flat[self._at] += 1

    def reduce(self, flat, root):
        self._inner.reduce(flat, root)
        flat[self._at] += 1


def _one_bit_off():
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    transport = OneBitOff(open_transport("gloo", CPU, "sum", "places-bit"), 17)
    return [checked(transport, case_of(op, "flat", torch.float32, rank, world), False) for op in COLLECTIVES]


def test_a_single_wrong_value_is_counted(ranks: Ranks):
    others, root = ranks(2, _one_bit_off)
    assert root == [[1, 1]] * len(COLLECTIVES)
    assert others == [[0, 0] if op == "reduce" else [1, 1] for op in COLLECTIVES], (
        "a reduce has a result on its root only"
    )
