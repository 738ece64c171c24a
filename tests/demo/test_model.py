import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from overlap.demo.model import GPT, PRESETS, Block, GPTConfig

SMALL = GPTConfig(context=16, layers=2, heads=2, width=32)


def build(config=SMALL, seed=0):
    torch.manual_seed(seed)
    return GPT(config)


def tokens(batch=3, time=16):
    return torch.randint(0, 256, (batch, time), generator=torch.Generator().manual_seed(1))


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.87), ("small", 4.9), ("base", 12.7)])
def test_presets_have_the_size_they_claim(size, millions):
    with torch.device("meta"):
        model = GPT(PRESETS[size])
    assert parameters(model) / 1e6 == pytest.approx(millions, rel=0.02)


def test_logits_cover_every_byte_at_every_position():
    assert build()(tokens()).shape == (3, 16, 256)


def test_an_untrained_model_guesses_about_uniformly():
    loss = build()(tokens(), tokens())
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)


def test_no_position_sees_the_future():
    model, text = build(), tokens()
    changed = text.clone()
    changed[:, 10:] = 0
    assert torch.equal(model(text)[:, :10], model(changed)[:, :10])


def test_same_seed_same_weights():
    first, second, other = build(), build(), build(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)


def test_every_owner_of_parameters_can_be_materialised_from_meta():
    with torch.device("meta"):
        model = GPT(SMALL)
    model.to_empty(device="cpu")
    for module in model.modules():
        if list(module.parameters(recurse=False)):
            for parameter in module.parameters(recurse=False):
                nn.init.constant_(parameter, math.nan)
            module.reset_parameters()
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_tied_head_shares_the_embedding():
    tied, untied = build(replace(SMALL, tied=True)), build(SMALL)
    assert tied.head.weight is tied.tokens.weight
    assert parameters(untied) - parameters(tied) == tied.tokens.weight.numel()


def test_it_learns_a_repeating_text():
    model, text = build(replace(SMALL, layers=1)), torch.arange(16).repeat(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(15):
        optimizer.zero_grad()
        loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.0


def test_blocks_are_the_units():
    assert [type(block) for block in build().blocks] == [Block, Block]
