"""Where nothing is wrong nothing is reported: on CPU both models agree to the bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.ranks import Ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from verify.models import GPT_CONFIG, WIDTH, Block, CenteredBlock, Model, check, data, gpt, seeded, tokens

import overlap
from overlap.demo.model import GPT
from overlap.demo.model import Block as GPTBlock
from overlap.verify import verify

EXACT = {"rtol": 0.0, "atol": 0.0}
STAGES = (0, 1, 2, 3)


def _gpt(stage: int, dtype: torch.dtype | None) -> None:
    options = {"stage": stage, "unit": GPTBlock, "param_dtype": dtype, "replicate_max_numel": 24, "poison": True}
    report = check(gpt, tokens, options=options, **EXACT)
    assert report.findings == ()
    assert report.ok
    assert report.steps == 3
    assert report.losses[-1] != report.losses[0]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_gpt_agrees_to_the_bit(ranks: Ranks, world: int, stage: int, dtype: torch.dtype | None) -> None:
    ranks(world, _gpt, stage, dtype)


def _agrees(make: Callable[[], nn.Module], given: dict[str, Any]) -> None:
    report = check(make, **given)
    assert report.findings == (), report.text()


def _dropout() -> nn.Module:
    return seeded(lambda: nn.Dropout(0.5))


def _on_meta() -> nn.Module:
    with torch.device("meta"):
        return Model(lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False))


def _tied() -> nn.Module:
    torch.manual_seed(0)
    model = GPT(GPT_CONFIG)
    model.head.weight = model.tokens.weight
    return model


class _Recomputed(Model):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def _biased_before_norm() -> nn.Module:
    """A norm takes away whatever the bias before it adds."""
    torch.manual_seed(0)
    inner = (nn.Linear(WIDTH, 4 * WIDTH), nn.BatchNorm1d(4 * WIDTH, track_running_stats=False), nn.Linear(4 * WIDTH, 2))
    model = Model(Block)
    model.head = nn.Sequential(*inner)
    return model


def _clipping(params: Any) -> torch.optim.Optimizer:
    return overlap.AdamW([{"params": list(params), "lr": 1e-2}], max_grad_norm=0.1)


AGREEING: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "dropout draws the same in both": (_dropout, EXACT),
    "built on the meta device": (_on_meta, EXACT),
    "tied weights": (_tied, {"batches": tokens, **EXACT}),
    "recomputed blocks": (_Recomputed, EXACT),
    "a collective in forward": (lambda: seeded(CenteredBlock), EXACT),
    "bf16 weights that are trained": (lambda: seeded().bfloat16(), {"batches": lambda r, s: data(r, s).bfloat16()}),
    "bf16 on the wire": (seeded, {"options": {"reduce_dtype": torch.bfloat16}}),
    "bf16 gradients": (seeded, {"options": {"param_dtype": torch.bfloat16, "grad_dtype": torch.bfloat16}}),
    "outputs in fp32": (
        seeded,
        {"options": {"unit": None, "param_dtype": torch.bfloat16, "output_dtype": torch.float32}, **EXACT},
    ),
    "inputs as they are": (seeded, {"options": {"cast_forward_inputs": False}}),
    "the fused AdamW against torch's": (seeded, {"optimizer": "adamw", "steps": 5}),
    "the fused AdamW with groups and clipping": (seeded, {"optimizer": _clipping}),
    "an optimizer of the user": (seeded, {"optimizer": lambda params: torch.optim.Adam(params, lr=1e-2)}),
    "Adam where a gradient is nothing but rounding": (_biased_before_norm, {"optimizer": "adamw"}),
    "one unit": (seeded, {"options": {"unit": None}, **EXACT}),
    "batches that take turns": (seeded, {"batches": [data(0, step) for step in range(6)]}),
    "keyword arguments": (seeded, {"batches": lambda rank, step: {"x": data(rank, step)}}),
}


def _agrees_by_name(name: str) -> None:
    _agrees(*AGREEING[name])


@pytest.mark.parametrize("name", AGREEING)
def test_nothing_is_reported(ranks: Ranks, name: str) -> None:
    ranks(2, _agrees_by_name, name)


def _frozen() -> nn.Module:
    model = seeded()
    model.blocks[0].requires_grad_(False)
    return model


def _lists_frozen() -> None:
    report = check(_frozen)
    assert report.findings == ()
    assert report.frozen == ("blocks.0.linear.weight", "blocks.0.linear.bias")
    assert "2 frozen parameters, as asked" in report.text()


def test_frozen_parameters_are_known_and_not_complained_about(ranks: Ranks) -> None:
    ranks(2, _lists_frozen)


def _leaves_generators() -> None:
    torch.manual_seed(5)
    Model()
    expected = torch.rand(3)
    torch.manual_seed(5)
    verify(Model, data, steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_random_generators_go_on_as_after_one_build(ranks: Ranks) -> None:
    ranks(2, _leaves_generators)


def _hybrid() -> None:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    report = check(options={"mesh": mesh})
    assert report.findings == (), report.text()


def test_a_hybrid_mesh(ranks: Ranks) -> None:
    ranks(4, _hybrid)
