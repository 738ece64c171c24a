"""On a GPU: CuPy's own kernels, compiled from other source by another compiler, give the same."""

import math

import pytest
import torch
from ops.layouts import packed_slots
from ops.numeric import same_bits, values

from overlap import _cuda
from overlap.ops import cuda_face
from overlap.ops.cuda_face import routes
from overlap.ops.cuda_face.cupy_route import CupyRoute
from overlap.ops.image import image

pytestmark = pytest.mark.gpu

# bf16 needs ml_dtypes in CuPy; the reference covers it.
HALF, SINGLE = torch.float16, torch.float32


@pytest.fixture(autouse=True, params=["launcher", "cupy"])
def cupy(request, monkeypatch):
    """CuPy itself, while the face runs on one of its routes; both on torch's current stream."""
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    module, fatbin = pytest.importorskip("cupy"), image()
    assert fatbin is not None, "the kernels are not built: reinstall where nvcc is found"
    route = CupyRoute(fatbin) if request.param == "cupy" else _cuda.Launcher(routes.DRIVER, str(fatbin))
    monkeypatch.setattr(routes, "current", lambda: route)
    with module.cuda.Device(0), torch.cuda.stream(torch.cuda.Stream()) as _:
        stream = torch.cuda.current_stream()
        external = getattr(module.cuda.Stream, "from_external", None)
        with external(stream) if external else module.cuda.ExternalStream(stream.cuda_stream):
            yield module


def on_gpu(size, dtype):
    return values(size, dtype, torch.device("cuda"))


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
@pytest.mark.parametrize("bucket_dtype", [SINGLE, HALF])
def test_pack_and_unpack(cupy, dtype, bucket_dtype):
    grads = [on_gpu(70_007, dtype).view(7, -1), on_gpu(48 * 512, dtype).view(48, 512).t()]
    slots, width = packed_slots([tuple(grad.shape) for grad in grads], world=4, gap=8)
    bucket = torch.randn(4, width, device="cuda").to(bucket_dtype)
    add = cupy.ElementwiseKernel(
        "T old, U value, float32 scale",
        "T new",
        "new = T(__fadd_rn(float(old), __fmul_rn(float(value), scale)))",
        "add",
    )
    want = cupy.asarray(bucket.clone())
    for grad, slot in zip(grads, slots, strict=True):
        flat = cupy.asarray(grad).reshape(-1)
        for row in range(4):
            part = flat[row * slot.chunk : (row + 1) * slot.chunk]
            place = want[row, slot.offset : slot.offset + part.size]
            place[...] = add(place, part, cupy.float32(0.3))
    cuda_face.pack(grads, bucket, slots, 0.3, True)
    assert same_bits(bucket, torch.as_tensor(want, device="cuda"))
    backs = [torch.full_like(grad, math.nan) for grad in grads]
    cuda_face.unpack(bucket, backs, slots, 1.0)
    for back, slot in zip(backs, slots, strict=True):
        columns = want[:, slot.offset : slot.offset + slot.chunk].reshape(-1)[: slot.numel]
        expected = columns.astype(cupy.asarray(back).dtype).reshape(back.shape)
        assert same_bits(back, torch.as_tensor(expected, device="cuda"))


@pytest.mark.parametrize("dtype", [SINGLE, HALF])
@pytest.mark.parametrize("out_dtype", [SINGLE, HALF])
def test_reduce_sum(cupy, dtype, out_dtype):
    rows = on_gpu(7 * 100_003, dtype).view(7, -1)
    out = torch.full((rows.shape[1],), math.nan, device="cuda", dtype=out_dtype)
    norm = torch.zeros(2, dtype=torch.float64, device="cuda")
    cuda_face.reduce_sum(list(rows), out, 0.3, False, norm)
    in_order = cupy.ElementwiseKernel(
        "raw T rows, int64 count, int64 size, float32 scale",
        "U out",
        "float sum = float(rows[i]);"
        "for (long long k = 1; k < count; ++k) sum = __fadd_rn(sum, float(rows[k * size + i]));"
        "out = U(__fmul_rn(sum, scale));",
        "in_order",
    )
    want = cupy.empty(rows.shape[1], dtype=cupy.asarray(out).dtype)
    in_order(cupy.asarray(rows.contiguous()), *rows.shape, cupy.float32(0.3), want)
    assert same_bits(out, torch.as_tensor(want, device="cuda"))
    squares = cupy.ReductionKernel("T x", "float64 y", "double(x) * double(x)", "a + b", "y = a", "0", "squares")
    assert math.isclose(norm[0].item(), float(squares(want)), rel_tol=1e-12)
