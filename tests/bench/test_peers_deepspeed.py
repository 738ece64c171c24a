"""Against a stand-in: DeepSpeed is no dependency, so the tests have none."""

import sys
from types import ModuleType

import pytest

from overlap.bench.peers_deepspeed import cpu_adam


class Builder:
    """As DeepSpeed's: flags from a method, what is loaded kept by the base class."""

    flags: tuple[str, ...] = ()
    loaded: tuple[str, ...] | None = None

    def cxx_args(self):
        return list(self.flags)

    def load(self, verbose):
        assert not verbose
        Builder.loaded = tuple(self.cxx_args())


@pytest.fixture
def deepspeed(monkeypatch):
    """Install the stand-in; nothing that was found is kept for other tests."""
    modules = {name: ModuleType(name) for name in ("deepspeed", "deepspeed.ops", "deepspeed.ops.op_builder")}
    modules["deepspeed.ops.adam"] = ModuleType("deepspeed.ops.adam")
    modules["deepspeed"].__spec__ = sys.__spec__
    modules["deepspeed.ops.op_builder"].CPUAdamBuilder = Builder
    modules["deepspeed.ops.adam"].DeepSpeedCPUAdam = "the optimizer"
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    cpu_adam.cache_clear()
    yield Builder
    cpu_adam.cache_clear()


@pytest.mark.parametrize(
    ("flags", "used"), [(("-g", "-march=native"), ("-O3", "-g", "-march=native")), (("-O3", "-g"), ("-O3", "-g"))]
)
def test_the_extension_is_built_optimized(deepspeed, monkeypatch, flags, used):
    monkeypatch.setattr(deepspeed, "flags", flags)
    assert cpu_adam() == ("the optimizer", None)
    assert deepspeed.loaded == used


def test_what_does_not_build_says_why(deepspeed, monkeypatch):
    def fail(self, verbose):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(deepspeed, "load", fail)
    assert cpu_adam() == (None, "installed, but does not load: no compiler")


def test_not_installed_says_so(monkeypatch):
    monkeypatch.setattr("overlap.bench.peers_deepspeed.find_spec", lambda name: None)
    cpu_adam.cache_clear()
    assert cpu_adam() == (None, "not installed")
    cpu_adam.cache_clear()
