import pytest

from overlap.bench.step.contenders import CONTENDERS, FLOOR
from overlap.bench.step.settings import StepSettings
from overlap.errors import ConfigError

DEFAULTS = {
    "net": "none",
    "ranks": 2,
    "contenders": None,
    "dtype": "fp32",
    "size": "base",
    "batch": None,
    "rounds": 7,
    "steps": 2,
    "seed": 0,
    "tolerance": None,
    "options": None,
    "memory": True,
}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"contenders": "ours-3,fsdp3"}, r"contenders must be one of .*, but got fsdp3; did you mean fsdp2\?"),
        ({"net": "1gb"}, "net must be none or a rate"),
        ({"dtype": "fp16"}, "dtype must be one of fp32, bf16, but got fp16"),
        ({"size": "bas"}, r"size must be one of .*; did you mean base\?"),
        ({"rounds": 4}, "rounds must be at least 5, but got 4"),
        ({"ranks": 0}, "ranks must be positive"),
        ({"batch": 0}, "batch must be positive"),
        ({"steps": 0}, "steps must be positive"),
        ({"options": ["prefech=2"]}, r"option must be one of .*; did you mean 'prefetch'\?"),
        ({"options": ["prefetch"]}, "--set must be NAME=VALUE"),
        ({"options": ["prefetch=0"]}, "prefetch must be an integer of at least 1"),
        ({"options": ["stage=2"]}, "--set must leave param_dtype, reduce_dtype, stage alone, but got stage"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
    ],
)
def test_what_cannot_be_measured_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        StepSettings.parse(**{**DEFAULTS, **given})


def test_the_floor_always_takes_part_and_nobody_twice():
    settings = StepSettings.parse(**{**DEFAULTS, "contenders": f"ddp, ours-3,ddp,{FLOOR}"})
    assert settings.contenders == (FLOOR, "ddp", "ours-3")
    assert StepSettings.parse(**DEFAULTS).contenders == tuple(CONTENDERS)


def test_settings_cross_to_the_ranks_unchanged():
    settings = StepSettings.parse(
        **{**DEFAULTS, "net": "200mbit", "dtype": "bf16", "batch": 3, "options": ["prefetch=2"]}
    )
    assert StepSettings.from_json(settings.to_json()) == settings
    assert settings.engine_options == {"prefetch": 2}


def test_a_peer_is_compared_with_one_of_ours_that_shards_as_much_if_it_shards():
    peers = [spec for spec in CONTENDERS.values() if spec.rival is not None]
    assert peers
    for spec in peers:
        assert CONTENDERS[spec.rival].ours
        assert CONTENDERS[spec.rival].stage == max(spec.stage, 1)
        assert CONTENDERS[spec.rival].bf16_reduce == spec.bf16_reduce
