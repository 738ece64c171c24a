"""The random bits and the roundings of the reference, against definitions written down once more, exhaustively."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.numeric import CPU, few, seeds

from overlap.ops.reference.philox import philox, random_bits
from overlap.ops.reference.rounding import decode_minifloat, encode_minifloat, stochastic_bf16

ALL = torch.arange(1 << 16, dtype=torch.int32)
FORMATS = [(7, 126), (15, 255)]
MASK = 0xFFFFFFFF

# kat_vectors of Random123 (Salmon et al.): philox4x32, 10 rounds: counter, key, result.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def plain_philox(counter, key):
    """Philox4x32-10 in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [high >> 32 ^ c[1] ^ k[0], high & MASK, low >> 32 ^ c[3] ^ k[1], low & MASK]
        k = [k[0] + 0x9E3779B9 & MASK, k[1] + 0xBB67AE85 & MASK]
    return c


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, result):
    assert plain_philox(counter, key) == result
    words = philox(tuple(torch.tensor([word]) for word in counter), key[0] | key[1] << 32)
    assert [word.item() for word in words] == result


@few
@given(seeds, st.integers(0, 1 << 45), st.integers(0, 1 << 34), st.integers(0, 2), st.integers(0, 40))
def test_each_element_draws_by_its_global_index(seed, group, step, stream, size):
    drawn = random_bits(size, CPU, seed=seed, start=8 * group, step=step, stream=stream)
    want = []
    for e in range(8 * group, 8 * group + size):
        counter = [e >> 3 & MASK, e >> 35, step & MASK, stream]
        word = plain_philox(counter, [seed & MASK, seed >> 32])[(e & 7) >> 1]
        want.append(word >> 16 * (e & 1) & 0xFFFF)
    assert drawn.tolist() == want


def test_random_bits_are_even():
    """Each of 16 bits is set half of the time, give or take six standard deviations."""
    drawn = random_bits(1 << 18, CPU, seed=3, start=0, step=1, stream=0)
    ones = torch.stack([(drawn >> bit & 1).sum() for bit in range(16)])
    assert ((ones - (1 << 17)).abs() < 6 * (1 << 16) ** 0.5).all()


def interesting(count):
    """Finite fp32 of every exponent, without those that bf16 would round to infinity."""
    words = torch.randint(0, 0x7F7F0000, (count,), dtype=torch.int64).int()
    return torch.cat([words.view(torch.float32), -words.view(torch.float32), torch.tensor([0.0, -0.0, 1e-45])])


def test_bf16_rounds_to_a_neighbour_and_to_the_value_on_average():
    for value in interesting(8):
        rounded = stochastic_bf16(value.expand(1 << 16).contiguous(), ALL).double()
        below, above = rounded.aminmax()
        assert ((rounded == below) | (rounded == above)).all()
        assert (above.bfloat16().view(torch.int16) - below.bfloat16().view(torch.int16)).abs() <= 1
        # Over all random bits the mean is exact, and so is the float64 sum: two neighbours share an exponent.
        assert rounded.mean().item() == value.item()


def test_bf16_does_not_move_what_it_holds():
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).short().view(torch.bfloat16)
    for random in (0, 1, 0x8000, 0xFFFF):
        rounded = stochastic_bf16(every.float(), torch.full((1 << 16,), random, dtype=torch.int32))
        assert torch.equal(rounded.isnan(), every.isnan())
        finite = ~every.isnan()
        assert torch.equal(rounded.view(torch.int16)[finite], every.view(torch.int16)[finite])


@pytest.mark.parametrize(("bias", "largest"), FORMATS)
def test_minifloat_codes_come_back(bias, largest):
    codes = torch.arange(largest + 1, dtype=torch.uint8)
    decoded = decode_minifloat(codes, bias=bias)
    assert decoded[0] == 0
    assert (decoded.diff() > 0).all()
    randoms = (None, *(torch.full((largest + 1,), random, dtype=torch.int32) for random in (0, 0x8000, 0xFFFF)))
    for random in randoms:
        assert torch.equal(encode_minifloat(decoded, bias=bias, largest=largest, random=random), codes)


def test_minifloat_values():
    assert decode_minifloat(torch.tensor([126], dtype=torch.uint8), bias=7).item() == 448
    assert decode_minifloat(torch.tensor([255], dtype=torch.uint8), bias=15).item() == 122880
    assert decode_minifloat(torch.tensor([1], dtype=torch.uint8), bias=15).item() == 2.0**-17
    codes = torch.arange(127, dtype=torch.uint8)
    assert torch.equal(decode_minifloat(codes, bias=7), codes.view(torch.float8_e4m3fn).float())


def between(bias, count):
    """Values that the format must round, from its subnormals to its largest."""
    return torch.rand(count) * (torch.rand(count) * 24 - bias - 3).exp2()


@pytest.mark.parametrize(("bias", "largest"), FORMATS)
def test_minifloat_nearest_is_nearest_with_ties_to_even(bias, largest):
    table = decode_minifloat(torch.arange(largest + 1, dtype=torch.uint8), bias=bias).double()
    ties = (table[1:] + table[:-1]) / 2
    values = torch.cat([between(bias, 3000), ties.float(), table[-1:].float() * 2])
    codes = encode_minifloat(values, bias=bias, largest=largest, random=None).long()
    distance = (values.double()[:, None] - table).abs()
    nearest = distance.min(dim=1).values
    assert torch.equal(distance.gather(1, codes[:, None])[:, 0], nearest)
    tied = (distance == nearest[:, None]).sum(dim=1) == 2
    assert tied.sum() >= largest
    assert (codes[tied] % 2 == 0).all()


@pytest.mark.parametrize(("bias", "largest"), FORMATS)
def test_minifloat_stochastic_is_the_value_on_average(bias, largest):
    table = decode_minifloat(torch.arange(largest + 1, dtype=torch.uint8), bias=bias).double()
    for value in between(bias, 12).clamp(max=table[-1].item()):
        codes = encode_minifloat(value.expand(1 << 16).contiguous(), bias=bias, largest=largest, random=ALL).long()
        below, above = codes.min().item(), codes.max().item()
        assert above - below <= 1
        assert table[below] <= value
        step = (table[below + 1] - table[below]).item() if below < largest else 1.0
        # Random bits come in steps of 2^-16 of the distance between neighbours.
        assert table[codes].mean().item() == pytest.approx(value.item(), abs=step * 2.0**-15, rel=0)


def test_not_a_number_and_infinity_stay():
    values = torch.tensor([float("nan"), float("inf"), -float("inf")]).repeat_interleave(2)
    rounded = stochastic_bf16(values, torch.tensor([0, 0xFFFF] * 3, dtype=torch.int32))
    assert rounded[:2].isnan().all()
    assert rounded[2:].tolist() == [float("inf")] * 2 + [-float("inf")] * 2
