"""Errors are raised, not asserted: ``python -O``, which strips asserts, refuses the same things in the same words."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from support.chain import WIDTH, Block, Chain, data, sharded_chain
from torch import nn

import overlap


def _unknown_option() -> None:
    sharded_chain(bucket_size=3)


def _wrong_option() -> None:
    sharded_chain(stage=7)


def _no_module() -> None:
    overlap.shard("model")


def _no_units() -> None:
    overlap.shard(Chain(), unit="layers.*")


def _twice() -> None:
    overlap.fully_shard(sharded_chain())


def _untrainable() -> None:
    net = nn.Sequential(nn.Linear(4, 4).double())
    overlap.shard(net)


def _old_graph() -> None:
    model = sharded_chain()
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = model(data(0)).sum(), model(data(1)).sum()
    first.backward()
    update.step()
    second.backward()


def _early_optimizer() -> None:
    net = Chain()
    update = torch.optim.SGD(net.parameters(), lr=0.1)
    overlap.shard(net, unit=Block)
    net(data()).sum().backward()
    update.step()


def _plain_parameters() -> None:
    overlap.AdamW(Chain().parameters())


def _wrong_state() -> None:
    model = sharded_chain()
    update = overlap.AdamW(model.parameters())
    update.load_state_dict({"state": {}, "param_groups": update.state_dict()["param_groups"]})


def _cast() -> None:
    sharded_chain().half()


def _replaced() -> None:
    model = sharded_chain()
    model.blocks[0].linear.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    model(data())


def _closed() -> None:
    model = sharded_chain()
    overlap.engine_of(model).close()
    model(data())


def _bad_norm() -> None:
    overlap.clip_grad_norm_(sharded_chain().parameters(), -1.0)


CASES: tuple[Callable[[], None], ...] = (
    _unknown_option,
    _wrong_option,
    _no_module,
    _no_units,
    _twice,
    _untrainable,
    _old_graph,
    _early_optimizer,
    _plain_parameters,
    _wrong_state,
    _cast,
    _replaced,
    _closed,
    _bad_norm,
)


def report() -> None:
    """A line per case: what it raised."""
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for case in CASES:
        try:
            case()
            raised = "nothing"
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        print(f"{case.__name__}: {raised}", flush=True)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort the process at interpreter exit


def _start(*flags: str) -> subprocess.Popen[str]:
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_optimised_python; test_optimised_python.report()"
    here = Path(__file__).parent
    program = [sys.executable, *flags, "-c", code, str(here), str(here.parent)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _lines(process: subprocess.Popen[str]) -> list[str]:
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return out.splitlines()


def test_without_asserts_the_same_errors_are_raised() -> None:
    usual, optimised = map(_lines, [_start(), _start("-O")])
    assert [line.partition(":")[0] for line in usual] == [case.__name__ for case in CASES]
    assert not [line for line in usual if line.split(": ")[1] not in ("ConfigError", "StateError")]
    assert optimised == usual
