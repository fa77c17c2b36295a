"""How large a benchmark's tables will be, before they are read."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from farandole.data.candle.files import benchmark, find
from farandole.data.expected import expected_shape
from farandole.data.layout import ReadOptions

__all__ = ["table_shapes"]


def table_shapes(name: str, folder: Path, roles: Collection[str] | None = None) -> dict[str, tuple[int, int]]:
    """Rows, roughly, and features of the files in `folder`, by role: those of `roles`, or all that have features."""
    files = benchmark(name).files
    paths = {role: path for role, path in find(name, folder, roles).items() if files[role].features}
    options = {role: ReadOptions(header=files[role].header, columns=files[role].columns) for role in paths}
    return {role: expected_shape(path, options[role]) for role, path in paths.items()}
