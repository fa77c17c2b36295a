"""P1B3's files to arrays.

`P1B3_dose_response.csv` has NSC (the drug), CELLNAME, LOG_CONCENTRATION and GROWTH in percent; other files
describe cell lines and drugs. Rows with -5 <= LOG_CONCENTRATION <= -4 are kept and thinned out by growth: all
of those <= 0, 70% below 50, 18% up to 100, 1% above. In the other files columns without any value go, gaps
become the column's mean, and what remains is standardised. A row whose cell line or drug is not described is
dropped. Test: rows of test drugs in test cell lines. Training: rows of neither, 10% of them for validation.

    x = [LOG_CONCENTRATION, cell line..., drug...]      y = GROWTH / 100

A sample is put together when its batch is: two rows copied from two small tables.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.data.join import Names, Table, identifiers, joined, rows_of
from farandole.data.layout import NA
from farandole.data.scale import fill_gaps, scale
from farandole.data.split import check_validation, drawn, held_out, some_columns
from farandole.data.table_reader import read_table
from farandole.data.tables import Shapes
from farandole.errors import DataError
from farandole.workloads.p1b3 import CELL_FEATURES, DRUG_FEATURES, FILES, P1B3
from farandole.workloads.samples import Rows, TrainingData

__all__ = ["GrowthSamples", "P1B3Data", "cell_name", "expected", "load", "roles"]

SEED = 2017
_RESPONSE_BYTES = 24
"""Of a row, in memory."""

# Below this, copying rows one by one costs more than the copy in between that it saves.
WIDE_ROW_BYTES = 4096

# What stands for a missing value in one file or another.
GAPS = (*NA, "-")


@dataclass(frozen=True, slots=True)
class P1B3Data:
    """Small tables of cell lines and drugs, and which rows of them every sample is made of."""

    cells: NDArray[np.float32]
    drugs: NDArray[np.float32]
    cell_of: Rows
    """For each sample its row of `cells`."""
    drug_of: Rows
    log_concentration: NDArray[np.float32]
    growth: NDArray[np.float32]
    """y: GROWTH / 100."""

    @property
    def features(self) -> int:
        return 1 + int(self.cells.shape[1]) + int(self.drugs.shape[1])

    def gather(self, rows: Rows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """x (rows, features) and y (rows,) of the samples numbered `rows`."""
        x = np.empty((len(rows), self.features), np.float32)
        end_of_cell = 1 + self.cells.shape[1]
        x[:, 0] = self.log_concentration[rows]
        _copy_rows(self.cells, self.cell_of[rows], x[:, 1:end_of_cell])
        _copy_rows(self.drugs, self.drug_of[rows], x[:, end_of_cell:])
        return x, self.growth[rows]


@dataclass(frozen=True, slots=True)
class GrowthSamples:
    """Some of the samples."""

    data: P1B3Data
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        x, y = self.data.gather(self.rows[rows])
        return x, y[:, None]


def roles(parameters: P1B3) -> list[str]:
    """The files that are read for these features."""
    cells = [role for name in parameters.cell_features for role in CELL_FEATURES[name]]
    drugs = [role for name in parameters.drug_features for role in DRUG_FEATURES[name]]
    return ["dose_response", *cells, *drugs, "test_celllines", "test_drugs"]


def expected(parameters: P1B3, shapes: Shapes) -> tuple[int, int]:
    """Features of a sample and bytes of all tables, from the rows and features of each file."""
    features, nbytes = 1, _RESPONSE_BYTES * shapes["dose_response"][0]
    for chosen, files in ((parameters.cell_features, CELL_FEATURES), (parameters.drug_features, DRUG_FEATURES)):
        widths = [sum(shapes[role][1] for role in files[name]) for name in chosen]
        width = sum(min(width, parameters.feature_subsample or width) for width in widths)
        rows = min(shapes[role][0] for name in chosen for role in files[name])
        features, nbytes = features + width, nbytes + 4 * rows * width
    return features, nbytes


def load(parameters: P1B3, folder: str | Path, *, cache: bool | Path = True) -> TrainingData:
    check_validation(parameters.val_split)
    paths = FILES.find(folder, roles(parameters))
    responses = _Responses.read(paths["dose_response"], cache)
    responses = responses.at(_kept(responses, parameters, paths["dose_response"]))
    cells = _features(paths, parameters.cell_features, CELL_FEATURES, parameters, cache)
    drugs = _features(paths, parameters.drug_features, DRUG_FEATURES, parameters, cache)
    responses = responses.described_by(cells.names, drugs.names, paths["dose_response"])
    train, test = _train_and_test(responses, cells.names, drugs.names, paths, parameters)
    kept = len(train) - held_out(len(train), parameters.val_split)
    data = P1B3Data(
        cells=cells.values,
        drugs=drugs.values,
        cell_of=responses.cells,
        drug_of=responses.drugs,
        log_concentration=responses.log_concentration,
        growth=responses.growth / np.float32(100),
    )
    return TrainingData(
        train=GrowthSamples(data, train[:kept]),
        validation=GrowthSamples(data, train[kept:]),
        test=GrowthSamples(data, test),
        features=data.features,
        nbytes=data.cells.nbytes + data.drugs.nbytes + _RESPONSE_BYTES * len(data.growth),
    )


@dataclass(frozen=True, slots=True)
class _Responses:
    """The dose response by column."""

    drugs: Names
    cells: Names
    log_concentration: NDArray[np.float32]
    growth: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path, cache: bool | Path) -> _Responses:
        matrix = read_table(path, header=True, columns=["NSC", "CELLNAME"], na=GAPS, cache=cache)
        names = matrix.names or ()
        for column in ("LOG_CONCENTRATION", "GROWTH"):
            if column not in names:
                raise DataError(f"{path}: no column {column}; found NSC, CELLNAME, {', '.join(names)}")
        return cls(
            drugs=identifiers(path, matrix, "NSC"),
            cells=identifiers(path, matrix, "CELLNAME"),
            log_concentration=matrix.values[:, names.index("LOG_CONCENTRATION")],
            growth=matrix.values[:, names.index("GROWTH")],
        )

    def at(self, rows: Rows) -> _Responses:
        return _Responses(self.drugs[rows], self.cells[rows], self.log_concentration[rows], self.growth[rows])

    def described_by(self, cells: Names, drugs: Names, path: Path) -> _Responses:
        """The inner join: row numbers in place of names, rows without either dropped."""
        cell_of, drug_of = rows_of(self.cells, cells), rows_of(self.drugs, drugs)
        described = np.flatnonzero((cell_of >= 0) & (drug_of >= 0))
        if not described.size:
            raise DataError(
                f"{path}: no row has both a cell line and a drug that the other files describe. Here e.g. "
                f"cell line {self.cells[0]} and drug {self.drugs[0]}; there {cells[:1]} and {drugs[:1]}."
            )
        both = _Responses(drug_of, cell_of, self.log_concentration, self.growth)
        return both.at(described)


def _kept(responses: _Responses, parameters: P1B3, path: Path) -> Rows:
    """The rows in the range of concentrations, thinned out by growth."""
    concentration, growth = responses.log_concentration, responses.growth
    inside = (concentration >= parameters.min_logconc) & (concentration <= parameters.max_logconc)
    rows = np.flatnonzero(inside & np.isfinite(growth))
    if not rows.size:
        raise DataError(
            f"{path}: no row with a GROWTH has LOG_CONCENTRATION from {parameters.min_logconc} to "
            f"{parameters.max_logconc}; found {np.nanmin(concentration)} to {np.nanmax(concentration)}"
        )
    return rows[_balanced(growth[rows], SEED)] if parameters.subsample == "naive_balancing" else rows


def _balanced(growth: NDArray[np.float32], seed: int) -> Rows:
    """Rows to keep: every one that shrinks, and the fewer the better it grows."""
    shrinks = np.flatnonzero(growth <= 0)
    thinned = [
        (np.flatnonzero((growth > 0) & (growth < 50)), 0.7),
        (np.flatnonzero((growth >= 50) & (growth <= 100)), 0.18),
        (np.flatnonzero(growth > 100), 0.01),
    ]
    return np.concatenate([shrinks, *(rows[drawn(len(rows), seed, fraction)] for rows, fraction in thinned)])


def _features(
    paths: Mapping[str, Path],
    chosen: Sequence[str],
    files: Mapping[str, tuple[str, ...]],
    parameters: P1B3,
    cache: bool | Path,
) -> Table:
    """The chosen sets of features side by side, each filled, thinned out and scaled over the rows it has."""
    tables = []
    for name in chosen:
        table = joined([_read_table(paths[role], role, cache) for role in files[name]])
        if not len(table.names):
            raise DataError(f"{' and '.join(str(paths[role]) for role in files[name])}: no name in common")
        values = _some_columns(fill_gaps(table.values), parameters)
        scale([values], parameters.scaling, sources=[" + ".join(str(paths[role]) for role in files[name])])
        tables.append(Table(table.names, values))
    return joined(tables)


def _some_columns(values: NDArray[np.float32], parameters: P1B3) -> NDArray[np.float32]:
    """As many as asked for; all of them where there are no more."""
    wanted = min(parameters.feature_subsample, values.shape[1])
    return some_columns([values], wanted, parameters.rng_seed)[0]


def _read_table(path: Path, role: str, cache: bool | Path) -> Table:
    column = str(FILES.files[role].columns[0])
    matrix = read_table(path, header=True, columns=[column], na=GAPS, cache=cache)
    names = identifiers(path, matrix, column)
    if column == "CellLine":
        names = np.array([cell_name(str(name)) for name in names])
    _check_unique(path, column, names)
    return Table(names, matrix.values)


def _check_unique(path: Path, column: str, names: Names) -> None:
    known, first, count = np.unique(names, return_index=True, return_counts=True)
    if (count > 1).any():
        twice = int(np.argmax(count > 1))
        raise DataError(
            f"{path}: {column} {known[twice]} occurs {count[twice]} times, first in data row {first[twice] + 1}; "
            "expected every name once"
        )


def _train_and_test(
    responses: _Responses, cells: Names, drugs: Names, paths: Mapping[str, Path], parameters: P1B3
) -> tuple[Rows, Rows]:
    """Rows of neither a test cell line nor a test drug, and rows of both; each in random order."""
    listed_cells = rows_of(_listed(paths["test_celllines"], "CELLNAME"), cells)
    listed_drugs = rows_of(_listed(paths["test_drugs"], "NSC"), drugs)
    in_cell, in_drug = np.isin(responses.cells, listed_cells), np.isin(responses.drugs, listed_drugs)
    train = np.flatnonzero(~in_cell & ~in_drug)
    if parameters.test_cell_split:
        in_cell = np.isin(responses.cells, _some_of(responses.cells[train], parameters))
    test = np.flatnonzero(in_cell & in_drug)
    if not train.size or not test.size:
        raise DataError(
            f"{paths['test_celllines']} and {paths['test_drugs']} leave {train.size} rows to train on and "
            f"{test.size} to test on, of {len(responses.growth)}; expected some of each"
        )
    return train[drawn(len(train), SEED)], test[drawn(len(test), SEED)]


def _some_of(cells: Rows, parameters: P1B3) -> Rows:
    """A sample of the cell lines, drawn from them in the order in which they occur."""
    known, first = np.unique(cells, return_index=True)
    known = known[np.argsort(first)]
    return known[drawn(len(known), SEED, parameters.test_cell_split)]


def _listed(path: Path, column: str) -> Names:
    """The names below the header `column` of a short list."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.DictReader(file)
        if column not in (lines.fieldnames or ()):
            raise DataError(f"{path}: the first line is {lines.fieldnames}; expected the header {column}")
        return np.array([line[column].strip() for line in lines], dtype=np.str_)


def _copy_rows(table: NDArray[np.float32], rows: Rows, out: NDArray[np.float32]) -> None:
    # NumPy's take fills only contiguous arrays in place, and `out` is a slice of wider rows.
    if table.strides[0] < WIDE_ROW_BYTES:
        out[:] = table[rows]
        return
    for target, row in zip(out, rows):
        target[:] = table[row]


def cell_name(name: str) -> str:
    """A cell line as the dose response spells it: `BR.MCF7` of the tables is `BR:MCF7`."""
    return name.replace(".", ":")
