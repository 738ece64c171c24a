"""As much of CuPy as the second route uses, over the fake driver: arguments by value, current device and stream.

Checked against the source of CuPy 14: ``cupy/cuda/function.pyx`` passes a NumPy array by the address of its data, and
refuses any of more than one element.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_size_t, c_uint, c_void_p
from types import SimpleNamespace

import numpy as np
from ops.cuda.fake_driver import FakeDriver


class FakeCupy:
    """Stands in for the module ``cupy``."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.stream = 0
        self.cuda = SimpleNamespace(Device=self._device, Stream=SimpleNamespace(from_external=self._external))

    def RawModule(self, *, path: str) -> "FakeModule":  # noqa: N802 (CuPy's name)
        return FakeModule(self, path)

    @contextmanager
    def _device(self, index: int) -> Iterator[None]:
        functions, context = self.driver.functions, c_size_t()
        assert functions.cuDevicePrimaryCtxRetain(byref(context), index) == 0
        functions.cuCtxPushCurrent_v2(context)
        yield
        functions.cuCtxPopCurrent_v2(byref(context))

    @contextmanager
    def _external(self, stream: object) -> Iterator[None]:
        version, handle = stream.__cuda_stream__()
        assert version == 0
        before, self.stream = self.stream, handle
        yield
        self.stream = before


class FakeModule:
    """``cupy.RawModule``: loaded on a device at its first use there."""

    def __init__(self, cupy: FakeCupy, path: str) -> None:
        self.cupy, self.path = cupy, path
        self.loaded: dict[int, c_void_p] = {}

    def compile(self) -> c_void_p:
        functions, context = self.cupy.driver.functions, c_size_t()
        functions.cuCtxGetCurrent(byref(context))
        if context.value not in self.loaded:
            with open(self.path, "rb") as file:
                image = c_char_p(file.read())
            module = c_void_p()
            result = functions.cuModuleLoadData(byref(module), image)
            if result != 0:
                raise RuntimeError(f"CUDADriverError: {result}")
            self.loaded[context.value] = module
        return self.loaded[context.value]

    def get_function(self, name: str) -> "FakeKernel":
        return FakeKernel(self, name)


class FakeKernel:
    """``cupy.RawKernel``."""

    def __init__(self, module: FakeModule, name: str) -> None:
        self.module, self.name = module, name
        self.handle()

    def handle(self) -> c_void_p:
        function = c_void_p()
        functions = self.module.cupy.driver.functions
        assert functions.cuModuleGetFunction(byref(function), self.module.compile(), self.name.encode()) == 0
        return function

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[np.ndarray, ...]) -> None:
        assert all(isinstance(value, np.ndarray) and value.size == 1 for value in arguments)
        pointers = (c_void_p * len(arguments))(*(value.__array_interface__["data"][0] for value in arguments))
        cupy = self.module.cupy
        shape = [c_uint(value) for value in [*grid, 1, 1][:3] + [*block, 1, 1][:3]]
        launch = cupy.driver.functions.cuLaunchKernel
        assert launch(self.handle(), *shape, c_uint(0), c_size_t(cupy.stream), pointers, None) == 0
