"""A data set of several tables: the names, layouts and sizes of its files.

    FILES = TableSet(
        name="iris",
        files={"train": TableFile(name="iris.csv", rows=150, features=4, columns=("species",))},
        presets={"demo": Size(rows=150, features=4)},
    )
    FILES.find("data")                 # {"train": Path("data/iris.csv")}, or an error that says what is missing

What a reader insists on and what is free:

* required: the file names, the delimiter, a header or none, and the id and label columns (`columns`);
  train and test files with the same features in the same order.
* free: any number of rows, and any number of features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.errors import DataError, SettingsError

if TYPE_CHECKING:
    from farandole.data.make.sheet import Sheet

__all__ = ["Shapes", "Size", "TableFile", "TableSet"]

Shapes = Mapping[str, tuple[int, int]]
"""Rows and features of each file, by its role."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile:
    """One file: what its columns mean, and its shape at full size."""

    name: str
    rows: int
    features: int
    """Numeric columns, `columns` not counted."""
    columns: tuple[str | int, ...]
    """Ids and labels: by name, or by position where there is no header."""
    header: bool = True
    delimiter: str = ","
    na: tuple[str, ...] = ()
    """What stands for a missing value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How much data a preset asks for."""

    rows: int
    """Training rows."""
    test_rows: int = 0
    """Rows of the test file; 0 where there is none."""
    features: int
    """Feature columns of the first file; other tables keep their proportions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSet:
    """Files by role, how large each preset makes them, and what makes synthetic ones."""

    name: str
    files: Mapping[str, TableFile]
    presets: Mapping[str, Size]
    """The last one is the full size."""
    least: Size = Size(rows=1, features=1)
    """Below this the data has no structure left to learn."""
    sheets: Callable[[Size, int], list[Sheet]] | None = None
    """From a size and a seed to the content of synthetic files; None where none can be made."""
    compared: Collection[str] = ()
    """The roles whose files stand for all where readers are compared; none: all."""

    def find(self, folder: str | Path, roles: Collection[str] | None = None) -> dict[str, Path]:
        """The files in `folder` by role, made or real: those of `roles`, or all."""
        folder = Path(folder)
        paths = {role: folder / file.name for role, file in self.files.items() if roles is None or role in roles}
        missing = [path.name for path in paths.values() if not path.is_file()]
        if missing:
            raise DataError(self._what_to_do(folder, missing, some=len(missing) < len(paths)))
        return paths

    def shapes(self, folder: str | Path, roles: Collection[str] | None = None) -> dict[str, tuple[int, int]]:
        """Rows, roughly, and features of the files in `folder` that have any, told before they are read."""
        from farandole.data.expected import expected_shape
        from farandole.data.layout import ReadOptions

        paths = {role: path for role, path in self.find(folder, roles).items() if self.files[role].features}
        options = {role: ReadOptions(header=self.files[role].header, columns=self.files[role].columns) for role in paths}
        return {role: expected_shape(path, options[role]) for role, path in paths.items()}

    def size(self, preset: str, rows: int | None = None, features: int | None = None) -> Size:
        """The preset's, with `rows` or `features` replaced; test rows keep the ratio of the full size."""
        if preset not in self.presets:
            raise SettingsError(f"preset={preset!r} is unknown. Use one of {', '.join(self.presets)}.")
        size, full = self.presets[preset], self.full_size
        train = size.rows if rows is None else rows
        self._check("rows", train, self.least.rows)
        test = size.test_rows if rows is None else max(1, round(rows * full.test_rows / full.rows))
        width = size.features if features is None else features
        self._check("features", width, self.least.features)
        return Size(rows=train, test_rows=test if full.test_rows else 0, features=width)

    def features(self, role: str, size: Size) -> int:
        """Of one table at this size: all tables keep the proportions of the full size."""
        return max(8, round(self.files[role].features * size.features / self.full_size.features))

    @property
    def full_size(self) -> Size:
        return list(self.presets.values())[-1]

    def _check(self, option: str, value: int, least: int) -> None:
        if value < least:
            raise SettingsError(
                f"{option}={value} is too few for {self.name}: there is nothing to learn below {least}. "
                f"Type --{option} {least} or more, or leave it out."
            )

    def _what_to_do(self, folder: Path, missing: list[str], *, some: bool) -> str:
        """Where some files are there, perhaps somebody's own, none is to be made among them."""
        told = f"{self.name} needs {', '.join(missing)} in {folder}"
        if self.sheets is None:
            return f"{told}. Copy it there, or name its folder with --data-dir DIR."
        if some:
            return (
                f"{told}, beside what is there. Copy it there, or take a folder of synthetic files alone: "
                f"farandole data make {self.name} --out DIR"
            )
        where = "" if folder.is_dir() else " (there is no such folder)"
        return f"{told}{where}. Type: farandole data make {self.name} --out {folder} for synthetic files, or copy the real ones there."
