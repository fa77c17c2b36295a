"""The repository as the policy tests see it: its files, its modules and what they import."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "SOURCE", "Import", "Module", "documents", "modules", "written_files"]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
NOT_WRITTEN_BY_HAND = {"build", "dist", "out", "__pycache__"}
HIDDEN_BUT_WRITTEN = {".ci", ".github", ".gitignore"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One imported name, absolute: `from .mpi import world` in farandole.comm.named.engine is `farandole.comm.bytes.mpi.world`."""

    name: str
    line: int

    def is_within(self, package: str) -> bool:
        return self.name == package or self.name.startswith(f"{package}.")


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module of the package."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(), filename=str(self.path))

    def imports(self) -> Iterator[Import]:
        """Every import at any depth, `import_module("name")` included."""
        for node in ast.walk(self.tree):
            line = getattr(node, "lineno", 0)
            yield from (Import(name=name, line=line) for name in self._imported_by(node))

    def _imported_by(self, node: ast.AST) -> list[str]:
        match node:
            case ast.Import(names=names):
                return [alias.name for alias in names]
            case ast.ImportFrom(names=names):
                return [f"{self._origin(node)}.{alias.name}" for alias in names]
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if ast.unparse(node.func).endswith(
                "import_module"
            ):
                return [name]
        return []

    def _origin(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parts = self.name.split(".")
        parents = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parents, *filter(None, [node.module])])


@cache
def modules() -> tuple[Module, ...]:
    return tuple(Module(name=_module_name(path), path=path) for path in sorted(SOURCE.rglob("*.py")))


def documents() -> list[Path]:
    return [path for path in written_files() if path.suffix == ".md"]


def written_files() -> list[Path]:
    """The files people wrote: no environments, caches or build products."""
    return sorted(path for path in _walk(ROOT) if path.is_file())


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        hidden = path.name.startswith(".") and path.name not in HIDDEN_BUT_WRITTEN
        if hidden or path.name in NOT_WRITTEN_BY_HAND or path.suffix == ".egg-info":
            continue
        yield path
        if path.is_dir():
            yield from _walk(path)


def _module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
