"""How strides are merged, and that division by multiplication is division."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from ops.layouts import laid_out
from ops.numeric import CPU, torch_seeds

from overlap.ops.cuda_face.dims import dims_of, merged

sizes = st.integers(2, 1 << 62) | st.integers(1, 61).flatmap(lambda bit: st.sampled_from([2**bit, 2**bit + 1]))
numbers = st.integers(0, (1 << 63) - 1)


@given(sizes, numbers, st.integers(-2, 2))
def test_multiplication_divides(size, number, near):
    (dim,) = merged((size,), (2,))
    assert 0 < dim.magic < 1 << 64
    assert dim.shift >= 0
    # Any number, and those around a multiple, where a quotient changes.
    for n in (number, (1 << 63) - 1, min(max(number // size * size + near, 0), (1 << 63) - 1)):
        assert n * dim.magic >> 64 >> dim.shift == n // size


@given(torch_seeds, st.data())
def test_merged_dimensions_find_every_element(seed, data):
    torch.manual_seed(seed)
    tensor = data.draw(laid_out(CPU, torch.float32, expanded=True, most=300))
    dims = dims_of(tensor)
    if not dims:
        assert tensor.is_contiguous()
        return
    offsets = torch.zeros(tensor.numel(), dtype=torch.int64)
    rest = torch.arange(tensor.numel())
    for dim in reversed(dims):
        offsets += rest % dim.size * dim.stride
        rest //= dim.size
    memory = tensor.as_strided((int(offsets.max()) + 1,), (1,), tensor.storage_offset())
    assert not rest.any()
    assert torch.equal(memory[offsets], tensor.reshape(-1))


def test_merges_what_one_stride_walks():
    channels_last = torch.empty(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert [dim[:2] for dim in dims_of(channels_last)] == [(4, 192), (3, 1), (64, 3)]
    assert [dim[:2] for dim in dims_of(torch.empty(6, 10)[:, ::2])] == [(30, 2)]
    assert [dim[:2] for dim in dims_of(torch.empty(1).expand(5, 4))] == [(20, 0)]
    assert dims_of(torch.empty(5, 1, 4).transpose(0, 1)) == ()
    assert dims_of(None) == ()
