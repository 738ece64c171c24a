import random

import pytest
import torch

from overlap.bench.host.idle import IdleCommunicator
from overlap.bench.host.results import rows_of
from overlap.bench.host.settings import HostSettings, HostTask, Shape
from overlap.errors import ConfigError
from overlap.shard.piece import Piece


def test_the_asked_shape_in_every_world_and_two_more_to_see_how_it_grows():
    settings = HostSettings.parse(worlds="8, 64,8", units=64, params=9, rounds=15)
    asked = Shape(64, 9)
    assert settings.cases() == [(8, asked), (64, asked), (8, Shape(16, 9)), (8, Shape(64, 18))]


@pytest.mark.parametrize("worlds", ["1", "2000", "eight", "", "8,"])
def test_worlds_that_cannot_be_are_refused(worlds):
    with pytest.raises(ConfigError, match="worlds must be numbers from 2 to 1024"):
        HostSettings.parse(worlds=worlds, units=64, params=9, rounds=15)


@pytest.mark.parametrize("name", ["units", "params", "rounds"])
def test_nothing_is_not_measured(name):
    given = {"worlds": "8", "units": 64, "params": 9, "rounds": 15, name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be positive"):
        HostSettings.parse(**given)


def test_a_task_crosses_to_its_process_unchanged():
    task = HostTask(world=8, units=4, params=9, rounds=3, out="somewhere")
    assert HostTask.from_json(task.to_json()) == task


def figures() -> dict[str, float]:
    names = ("pass_s", "update_s", "pass_calls", "update_calls", "update_launches")
    return {name: random.uniform(10, 20) for name in names}


def test_the_plain_model_is_taken_off_the_passes_and_not_off_the_update():
    plain, ours, peer = {**figures(), "pass_s": 1.0, "pass_calls": 5}, figures(), figures()
    units = random.randint(1, 99)
    mine, theirs = rows_of(8, Shape(units, 9), {"plain": plain, "ours": ours, "fsdp2": peer})
    assert (mine.contender, theirs.contender) == ("ours", "fsdp2")
    assert mine.host_us == pytest.approx(1e6 * (ours["pass_s"] - 1.0) / units)
    assert mine.python_calls == pytest.approx((ours["pass_calls"] - 5) / units)
    assert mine.optimizer_us == pytest.approx(1e6 * ours["update_s"] / units)
    assert mine.of_fsdp2_host == pytest.approx((ours["pass_s"] - 1.0) / (peer["pass_s"] - 1.0))
    assert mine.of_fsdp2_optimizer == pytest.approx(ours["update_s"] / peer["update_s"])
    assert (theirs.of_fsdp2_host, theirs.of_fsdp2_optimizer) == (None, None)


def test_idle_ranks_echo_what_is_read_and_move_no_parameters():
    comm = IdleCommunicator("gather", 0, 3)
    local = torch.randn(4)
    facts, parameters, out = torch.zeros(12), torch.zeros(12), torch.ones(4)
    comm.all_gather([Piece(local, facts)], "control")
    comm.all_gather([Piece(local, parameters)], "gather")
    comm.reduce_scatter(torch.ones(3, 4), out, "reduce")
    assert torch.equal(facts.view(3, 4), local.expand(3, 4))
    assert not parameters.any()
    assert not out.any()
