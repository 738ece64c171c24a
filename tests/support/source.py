"""The package's source as a graph of files: what each one imports, wherever it does, and which names it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Module:
    """One file of the package."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def __repr__(self) -> str:
        return self.name

    @property
    def room(self) -> str:
        """First name below the package: a subpackage or a top-level file; "" for the package itself."""
        return self.name.partition(".")[2].partition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def imports(self) -> frozenset[str]:
        """Full names of imported modules, ours and others'; at any depth, under ``TYPE_CHECKING`` too."""
        return frozenset(name for node in ast.walk(self.tree) for name in self._imported(node))

    @property
    def ours(self) -> frozenset[str]:
        """Which of the imports are files of the package."""
        return frozenset(name for name in self.imports if name in package())

    def _imported(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = self._base(node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if _is_module(inner) else base
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "find_spec"):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        names = self.name.split(".") + [""] * (self.path.name == "__init__.py")
        return ".".join([*names[: -node.level], *filter(None, [node.module])])


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@cache
def package() -> dict[str, Module]:
    """Every file by module name; kernels by the name they are imported under."""
    files = {path: path.relative_to(ROOT) for path in (ROOT / "overlap").rglob("*.py") if "kernels" not in path.parts}
    files |= {path: Path("overlap") / path.relative_to(ROOT) for path in (ROOT / "kernels").glob("*.py")}
    modules = (Module(_dotted(relative), path) for path, relative in sorted(files.items()))
    return {module.name: module for module in modules}


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def closure(start: str) -> set[str]:
    """A file and everything of the package that it imports, directly or not."""
    seen, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += package()[name].ours
    return seen


def foreign_privates(module: Module) -> set[str]:
    """Names with a leading underscore that a file uses but does not define: somebody else's insides."""
    used, defined = set(), set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.ctx, ast.Store)
            (defined if own else used).add(node.attr)
        elif isinstance(node, ast.Name | ast.FunctionDef | ast.ClassDef):
            name = node.id if isinstance(node, ast.Name) else node.name
            (used if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else defined).add(name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            used |= _private_parts(node)
            defined |= {alias.asname for alias in node.names if alias.asname} | _modules_named(node)
        elif isinstance(node, ast.Call) and _called(node) in ("getattr", "hasattr", "setattr", "delattr"):
            used |= {arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)}
    return {name for name in used - defined if name.startswith("_") and not name.startswith("__")}


def _is_module(name: str) -> bool:
    """Of the package; an extension module has a stub only."""
    return name in package() or (ROOT / name.replace(".", "/")).with_suffix(".pyi").exists()


def _modules_named(node: ast.Import | ast.ImportFrom) -> set[str]:
    """``from overlap import _compat`` makes the name of a module of ours one's own."""
    base = node.module if isinstance(node, ast.ImportFrom) else None
    return {alias.name for alias in node.names if _is_module(f"{base}.{alias.name}")}


def _private_parts(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Of an import from outside; our own private modules are ours to import."""
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
    outside = [name for name in modules if name.partition(".")[0] != "overlap"]
    return {part for name in outside for part in name.split(".")} | (set(names) if outside else set())
