"""The files of the four CANDLE Pilot1 benchmarks: names, layouts and sizes.

`farandole data make` writes files of these layouts; readers look for them with `find`. Whoever has the
real files copies them into the same folder. What a reader insists on and what is free:

* required: the file names, the delimiter, a header or none, and the id and label columns (`columns`);
  train and test files with the same features in the same order.
* free: any number of rows, and any number of features.

P1B3's tables write a cell line as `BR.MCF7`, its dose response and test lists as `BR:MCF7`: join them
through `cell_name`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from farandole.errors import DataError, SettingsError

__all__ = ["BENCHMARKS", "PRESETS", "Benchmark", "Size", "TableFile", "benchmark", "cell_name", "find"]

PRESETS = ("demo", "test", "paper")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile:
    """One file: what its columns mean, and its shape at the paper's size."""

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
    """Training rows; for P1B3, rows of the dose response."""
    test_rows: int
    """Rows of the test file; 0 for P1B3, whose test set is a list of drugs and cell lines."""
    features: int
    """Feature columns; for P1B3, genes (the other tables keep the paper's proportions)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """The files of a benchmark by role, and how large each preset makes them."""

    name: str
    files: Mapping[str, TableFile]
    presets: Mapping[str, Size]
    least: Size
    """Below this the data has no structure left to learn."""

    def scaled(self, preset: str, rows: int | None, features: int | None) -> Size:
        """The preset's size with `rows` or `features` replaced; test rows keep the paper's ratio."""
        if preset not in self.presets:
            raise SettingsError(f"preset={preset!r} is unknown. Use one of {', '.join(self.presets)}.")
        size, paper = self.presets[preset], self.presets["paper"]
        train = size.rows if rows is None else rows
        self._check("rows", train, self.least.rows)
        test = size.test_rows if rows is None else max(1, round(rows * paper.test_rows / paper.rows))
        width = size.features if features is None else features
        self._check("features", width, self.least.features)
        return Size(rows=train, test_rows=test if paper.test_rows else 0, features=width)

    def features(self, role: str, size: Size) -> int:
        """Of one table at this size: all tables keep the paper's proportions."""
        return max(8, round(self.files[role].features * size.features / self.presets["paper"].features))

    def _check(self, option: str, value: int, least: int) -> None:
        if value < least:
            raise SettingsError(
                f"{option}={value} is too few for {self.name}: there is nothing to learn below {least}. "
                f"Type --{option} {least} or more, or leave it out."
            )


_MISSING = ("na", "-", "")


def _labelled(name: str, rows: int, features: int) -> TableFile:
    return TableFile(name=name, rows=rows, features=features, columns=("case_id", "cancer_type"))


def _expression(name: str, rows: int) -> TableFile:
    return TableFile(name=name, rows=rows, features=60_483, columns=(0,), header=False)


def _cells(assay: str, features: int, *, rows: int = 60) -> TableFile:
    name = f"P1B3_cellline_{assay}.tsv"
    return TableFile(
        name=name, rows=rows, features=features, columns=("CellLine",), delimiter="\t", na=_MISSING
    )


def _listed(name: str, column: str, rows: int) -> TableFile:
    return TableFile(name=name, rows=rows, features=0, columns=(column,))


# The presets. `demo` is small enough for the benchmark's own network to train on a laptop (NT3 at a higher rate).
# `test` does in seconds with a small network: few features, because they are what a step costs, and as many
# rows as it takes for the test set (>= 150 rows) to tell the network from a linear model beyond chance.
_NT3 = Benchmark(
    name="nt3",
    files={"train": _expression("nt_train2.csv", 1_120), "test": _expression("nt_test2.csv", 280)},
    presets={
        "demo": Size(rows=480, test_rows=120, features=600),
        "test": Size(rows=640, test_rows=160, features=400),
        "paper": Size(rows=1_120, test_rows=280, features=60_483),
    },
    least=Size(rows=16, test_rows=4, features=60),
)
_P1B1 = Benchmark(
    name="p1b1",
    files={
        "train": _labelled("P1B1.dev.train.csv", 3_000, 60_483),
        "test": _labelled("P1B1.dev.test.csv", 1_000, 60_483),
    },
    presets={
        "demo": Size(rows=900, test_rows=300, features=2_000),
        "test": Size(rows=600, test_rows=200, features=400),
        "paper": Size(rows=3_000, test_rows=1_000, features=60_483),
    },
    least=Size(rows=20, test_rows=7, features=20),
)
_P1B2 = Benchmark(
    name="p1b2",
    files={
        "train": _labelled("P1B2.train.csv", 3_000, 28_204),
        "test": _labelled("P1B2.test.csv", 1_000, 28_204),
    },
    presets={
        "demo": Size(rows=1_800, test_rows=600, features=2_000),
        "test": Size(rows=1_800, test_rows=600, features=480),
        "paper": Size(rows=3_000, test_rows=1_000, features=28_204),
    },
    least=Size(rows=30, test_rows=10, features=160),
)
_P1B3 = Benchmark(
    name="p1b3",
    files={
        "dose_response": TableFile(
            name="P1B3_dose_response.csv", rows=2_328_562, features=2, columns=("NSC", "CELLNAME"), na=_MISSING
        ),
        "expressions": _cells("expressions", 25_722),
        "mirna": _cells("mirna", 453),
        "proteome": _cells("proteome", 9_370, rows=59),
        "kinome": _cells("kinome", 390, rows=59),
        "descriptors": TableFile(
            name="P1B3_drug_descriptors.tsv",
            rows=7_602,
            features=3_809,
            columns=("NAME",),
            delimiter="\t",
            na=_MISSING,
        ),
        "latent": TableFile(name="P1B3_drug_latent.csv", rows=7_202, features=292, columns=("NSC",)),
        "test_celllines": _listed("P1B3_test_celllines.txt", "CELLNAME", 3),
        "test_drugs": _listed("P1B3_test_drugs.txt", "NSC", 666),
    },
    presets={
        "demo": Size(rows=100_000, test_rows=0, features=1_000),
        "test": Size(rows=40_000, test_rows=0, features=200),
        "paper": Size(rows=2_328_562, test_rows=0, features=25_722),
    },
    least=Size(rows=2_000, test_rows=0, features=20),
)

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType({b.name: b for b in (_NT3, _P1B1, _P1B2, _P1B3)})


def benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise SettingsError(f"no benchmark is called {name!r}. Use one of {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def cell_name(name: str) -> str:
    """A cell line as the dose response spells it: `BR.MCF7` of the tables is `BR:MCF7`."""
    return name.replace(".", ":")


def find(name: str, folder: str | Path, roles: Collection[str] | None = None) -> dict[str, Path]:
    """The benchmark's files in `folder` by role, made or real: those of `roles`, or all."""
    folder = Path(folder)
    paths = {role: folder / file.name for role, file in benchmark(name).files.items() if roles is None or role in roles}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise DataError(_what_to_do(name, folder, missing, some=len(missing) < len(paths)))
    return paths


def _what_to_do(name: str, folder: Path, missing: list[str], *, some: bool) -> str:
    """Where some files are there, perhaps somebody's own, none is to be made among them."""
    if some:
        return (
            f"{name} needs {', '.join(missing)} in {folder}, beside what is there. Copy it there, or take a folder of synthetic "
            f"files alone: farandole data make {name} --out DIR"
        )
    where = folder if folder.is_dir() else f"{folder} (there is no such folder)"
    return (
        f"{name} needs {', '.join(missing)} in {where}. Type: farandole data make {name} --out {folder} "
        "for synthetic files, or copy the real ones there."
    )
