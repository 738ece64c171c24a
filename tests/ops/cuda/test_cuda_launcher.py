"""The launcher without a GPU: contexts, devices, streams, and what each failure says."""

import re
from array import array

import pytest
import torch
from ops.cuda.fake_driver import PRIMARY, fatbin

from overlap import _cuda
from overlap.ops.cuda_face import sizes


def squares(launcher, *, device=0, stream=0, kernel="sum_squares_fp32"):
    flat, partial = torch.full((10,), 2.0), torch.full((1,), float("nan"), dtype=torch.float64)
    launcher.sum_squares(kernel, device, stream, flat.data_ptr(), partial.data_ptr(), 10)
    return partial.item()


def move(launcher, *, words=1, blocks=1, world=1):
    table = array("Q", [0] * words)
    launcher.move("pack_fp32", 0, 0, table.buffer_info()[0], words, 0, 0, 0, 0, blocks, world, 0, 0, 1.0)


def test_the_compiled_constants_are_those_of_python():
    assert (_cuda.THREADS, _cuda.CAPACITY, _cuda.BLOCK, _cuda.TILE) == (
        sizes.THREADS,
        sizes.CAPACITY,
        sizes.BLOCK,
        sizes.TILE,
    )


def test_launches_on_the_stream_it_is_given(launcher, driver):
    assert squares(launcher, stream=0xABC0) == 40.0
    (launch,) = driver.launches
    assert (launch.stream, launch.threads, launch.grid) == (0xABC0, 256, (1, 1))


@pytest.mark.parametrize("before", [0, PRIMARY, PRIMARY + 1, 0x9999], ids=["none", "own", "other", "foreign"])
@pytest.mark.parametrize("device", [0, 1])
def test_runs_in_the_primary_context_and_leaves_what_was_current(launcher, driver, before, device):
    for _ in range(2):
        driver.reset(before)
        assert squares(launcher, device=device) == 40.0
        assert driver.launches[0].context == PRIMARY + device
        assert driver.depth == (before != 0)


def test_loads_once_per_device(launcher, driver):
    launcher.load(0)
    driver.fail("cuModuleLoadData", 200)
    assert squares(launcher) == 40.0
    with pytest.raises(RuntimeError, match="cuModuleLoadData must succeed, but got CUDA_ERROR_INVALID_IMAGE"):
        launcher.load(1)
    launcher.load(1)
    assert squares(launcher, device=1) == 40.0


LAUNCH_FAILED = "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)"
FAILURES = {
    ("cuDevicePrimaryCtxRetain", 101): "cuDevicePrimaryCtxRetain must succeed, but got CUDA_ERROR_INVALID_DEVICE; pass",
    ("cuCtxGetCurrent", 201): "cuCtxGetCurrent must succeed, but got CUDA_ERROR_INVALID_CONTEXT; use torch.cuda",
    ("cuModuleLoadData", 200): "cuModuleLoadData must succeed, but got CUDA_ERROR_INVALID_IMAGE; update the driver",
    (
        "cuModuleGetFunction",
        500,
    ): "cuModuleGetFunction(sum_squares_fp32) must succeed, but got CUDA_ERROR_NOT_FOUND",
    ("cuLaunchKernel", 719): f"cuLaunchKernel(sum_squares_fp32) must succeed, but got {LAUNCH_FAILED}; run with",
    ("cuLaunchKernel", 4242): "cuLaunchKernel(sum_squares_fp32) must succeed, but got error 4242; run with",
}


@pytest.mark.parametrize(("function", "result"), FAILURES)
def test_a_failing_driver_is_quoted_and_the_next_call_works(launcher, driver, function, result):
    driver.fail(function, result)
    with pytest.raises(RuntimeError, match=re.escape(FAILURES[function, result])):
        squares(launcher)
    assert driver.depth == 1, "a context was left behind"
    assert squares(launcher) == 40.0


def test_a_driver_that_does_not_start(driver):
    driver.fail("cuInit", 100)
    with pytest.raises(RuntimeError, match="cuInit must succeed, but got error 100; install an NVIDIA driver, or run"):
        _cuda.Launcher(str(driver.library), str(driver.image))


def test_no_driver(driver):
    with pytest.raises(RuntimeError, match=r"libabsent\.so\.1 must open, but got .*; install an NVIDIA driver, or"):
        _cuda.Launcher("libabsent.so.1", str(driver.image))


def test_a_library_that_is_no_driver(driver):
    with pytest.raises(RuntimeError, match=r"libc\.so\.6 must be a CUDA driver, but got no function cuInit; install"):
        _cuda.Launcher("libc.so.6", str(driver.image))


@pytest.mark.parametrize("image", [b"", b"\x50\xed\x55\xba", b"\x7fELF" + bytes(60), fatbin(bytes(100))[:-1]])
def test_an_image_that_is_not_whole(driver, tmp_path, image):
    path = tmp_path / "broken.fatbin"
    path.write_bytes(image)
    with pytest.raises(RuntimeError, match=f"must be a whole fatbin, but got {len(image)} bytes that are none; rein"):
        _cuda.Launcher(str(driver.library), str(path))


def test_an_image_that_is_missing(driver, tmp_path):
    with pytest.raises(RuntimeError, match="absent must be a whole fatbin, but got 0 bytes"):
        _cuda.Launcher(str(driver.library), str(tmp_path / "absent"))


def test_an_unknown_kernel(launcher):
    with pytest.raises(RuntimeError, match=r"cuModuleGetFunction\(sum_cubes\) must succeed, but got CUDA_ERROR_NOT_F"):
        squares(launcher, kernel="sum_cubes")


def test_refuses_what_does_not_fit_into_a_launch(launcher, driver):
    with pytest.raises(ValueError, match=r"addresses must fit into one launch \(505\), but got 506; split them"):
        move(launcher, words=506)
    with pytest.raises(ValueError, match="bucket must have at most 65535 rows, but got 65536; lay it out for"):
        move(launcher, world=65_536)
    with pytest.raises(ValueError, match="size must make at least one tile and fit a grid, but got 0"):
        launcher.sum_squares("sum_squares_fp32", 0, 0, 0, 0, 0)
    assert driver.launches == []


def test_the_fake_driver_notices_a_vector_out_of_place(launcher, driver):
    """Else no test here would: a CPU reads it all the same, a GPU does not."""
    row, out = torch.zeros(4097), torch.zeros(4096, dtype=torch.bfloat16)
    table = array("Q", [row[1:].data_ptr()])
    launcher.reduce_sum("reduce_sum_fp32_bf16", 0, 0, table.buffer_info()[0], 1, 0, out.data_ptr(), 0, 4096, 1.0, False)
    (launch,) = driver.launches
    wrong = bytearray(launch.arguments)
    wrong[40:44] = (1).to_bytes(4, "little")  # aligned
    assert driver.relaunch(0, bytes(wrong)) == 716
