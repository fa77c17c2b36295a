"""P1B3: growth of cell lines under drugs, and tables that describe the cell lines and the drugs.

A dose lets growth fall from 100 % along a Hill curve. Where the curve falls (log IC50) depends on the drug,
on the cell line, and on how well the two fit: the product of what both have hidden in their tables. Means
by cell line and by drug miss that fit; a network that sees both tables does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from farandole.data.make.mixture import Mixture, mixed_rows
from farandole.data.make.sheet import Sheet, header_line, stream
from farandole.data.make.text import MISSING, Format, joined
from farandole.data.tables import Size, TableFile
from farandole.workloads.p1b3 import FILES
from farandole.workloads.p1b3.data import cell_name

__all__ = ["sheets"]

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Names = npt.NDArray[np.bytes_]

_TISSUES = ("BR", "CNS", "CO", "LC", "LE", "ME", "OV", "PR", "RE")
# Four of five doses lie in the range that P1B3 keeps; with this IC50 and slope, thinning out then leaves about
# a million rows, about as many above as below zero growth, as the real file does: its sign is worth predicting.
_DOSES = np.array([-4.0, -4.3, -4.6, -5.0, -6.0])
_IC50, _SLOPE = -4.1, 0.7
_MOST_CELLS = 60
_TESTED = 0.97  # share of all drugs x cell lines x doses that were measured
_FIT = 3  # hidden traits that a drug and a cell line may have in common
_OWN = 1  # one more, which makes it strong or weak on its own
_OTHER = 6  # and some that have nothing to do with growth
_DRUG_EFFECT, _CELL_EFFECT, _FIT_EFFECT = 0.45, 0.25, 0.65
_NOISE = 18.0  # per cent of growth
_DOSE_FORMAT = Format(decimals=4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """Who was tested: names, hidden traits, and one entry a measurement."""

    cells: Names
    drugs: Names
    cell_traits: Floats
    drug_traits: Floats
    cell: Indices
    drug: Indices
    dose: Indices


def sheets(size: Size, seed: int) -> list[Sheet]:
    screen = _screen(size.rows, seed)
    return [
        _dose_response(screen),
        *(_cell_table(role, screen, size, stream(seed, 5, i)) for i, role in enumerate(_CELL_TABLES)),
        *(_drug_table(role, screen, size, stream(seed, 6, i)) for i, role in enumerate(_DRUG_TABLES)),
        *_test_lists(screen, stream(seed, 7)),
    ]


# Role, share of rows in the table, share of values in it, what stands for the others, decimals.
_CELL_TABLES = {
    "expressions": (1.0, 1.0, "", 3),
    "mirna": (1.0, 0.99, "-", 2),
    "proteome": (0.98, 0.9, "", 4),
    "kinome": (0.98, 0.9, "", 4),
}
_DRUG_TABLES = {"descriptors": (0.95, 0.98, "na", 3), "latent": (0.9, 1.0, "", 6)}


def _screen(rows: int, seed: int) -> Screen:
    # Few measurements are spread over fewer cell lines too: a network needs many drugs to learn from.
    cells = min(_MOST_CELLS, max(8, int(math.sqrt(rows) / 9)))
    drugs = max(20, math.ceil(rows / (cells * len(_DOSES) * _TESTED)))
    random = stream(seed, 0)
    chosen = random.permutation(drugs * cells * len(_DOSES))[:rows]
    traits = _FIT + _OWN + _OTHER
    return Screen(
        cells=np.array([f"{_TISSUES[i % len(_TISSUES)]}.C{i + 1:02d}" for i in range(cells)], "S"),
        drugs=(1 + random.choice(799_999, drugs, replace=False)).astype("S"),
        cell_traits=random.normal(0, 1, (cells, traits)),
        drug_traits=random.normal(0, 1, (drugs, traits)),
        drug=chosen // (cells * len(_DOSES)),
        cell=chosen // len(_DOSES) % cells,
        dose=chosen % len(_DOSES),
    )


def _dose_response(screen: Screen) -> Sheet:
    file = FILES.files["dose_response"]
    return Sheet(
        name=file.name, header=header_line(["NSC", "CELLNAME", "LOG_CONCENTRATION", "GROWTH"]),
        rows=len(screen.dose), columns=2, value_bytes=12.0, render=partial(_measure, screen),
    )  # fmt: skip


def _measure(screen: Screen, rows: slice, random: np.random.Generator) -> memoryview:
    drug, cell = screen.drug[rows], screen.cell[rows]
    concentration = _DOSES[screen.dose[rows]]
    growth = _growth(screen.drug_traits[drug], screen.cell_traits[cell], concentration)
    growth = np.round(growth + random.normal(0, _NOISE, len(drug))).clip(-100, 270)
    values = np.stack([concentration, growth], axis=1) * 10**_DOSE_FORMAT.decimals
    spelled = np.array([cell_name(name.decode()) for name in screen.cells], "S")
    return _DOSE_FORMAT.rows(joined(screen.drugs[drug], spelled[cell]), np.round(values).astype(np.int64))


def _growth(drug: Floats, cell: Floats, concentration: Floats) -> Floats:
    """Per cent; 100 without effect, -100 when every cell is dead."""
    fit = (drug[:, :_FIT] * cell[:, :_FIT]).sum(axis=1) / math.sqrt(_FIT)
    ic50 = _IC50 + _DRUG_EFFECT * drug[:, _FIT] + _CELL_EFFECT * cell[:, _FIT] - _FIT_EFFECT * fit
    growth: Floats = 100 - 200 / (1 + 10 ** (_SLOPE * (ic50 - concentration)))
    return growth


def _cell_table(role: str, screen: Screen, size: Size, random: np.random.Generator) -> Sheet:
    known, present, missing, decimals = _CELL_TABLES[role]
    form = Format(decimals=decimals, delimiter="\t", missing=missing)
    rows = np.arange(len(screen.cells))[: math.ceil(known * len(screen.cells))]
    return _table(role, form, present, size, screen.cells[rows], screen.cell_traits[rows], random)


def _drug_table(role: str, screen: Screen, size: Size, random: np.random.Generator) -> Sheet:
    known, present, missing, decimals = _DRUG_TABLES[role]
    delimiter = FILES.files[role].delimiter
    form = Format(decimals=decimals, delimiter=delimiter, missing=missing)
    rows = np.arange(len(screen.drugs))[: math.ceil(known * len(screen.drugs))]
    return _table(role, form, present, size, screen.drugs[rows], screen.drug_traits[rows], random)


def _table(
    role: str, form: Format, present: float, size: Size, names: Names, traits: Floats, random: np.random.Generator
) -> Sheet:
    file = FILES.files[role]
    features = FILES.features(role, size)
    mixture = _mixture(features, traits.shape[1], present, form, random)
    return Sheet(
        name=file.name, header=_header(file, features), rows=len(names), columns=features, value_bytes=6.0,
        render=partial(mixed_rows, mixture, form, names, traits),
    )  # fmt: skip


def _header(file: TableFile, features: int) -> bytes:
    stem = file.name.rsplit("_", 1)[1].split(".")[0]
    return header_line([str(file.columns[0]), *(f"{stem}{i + 1}" for i in range(features))], file.delimiter)


def _mixture(features: int, traits: int, present: float, form: Format, random: np.random.Generator) -> Mixture:
    whole = random.random(features) < 0.3
    return Mixture(
        level=random.normal(5, 2, features),
        present=np.full(features, round(present * 65_536), np.uint64),
        factor=random.integers(0, traits, (features, 2)),
        weight=random.normal(0, 1.5, (features, 2)),
        grain=np.where(whole & (form.missing == "na"), 10**form.decimals, 1),
        noise=0.7, absent=MISSING, least=-(10**12),
    )  # fmt: skip


def _test_lists(screen: Screen, random: np.random.Generator) -> list[Sheet]:
    cells = random.choice(screen.cells, max(2, len(screen.cells) // 20), replace=False)
    drugs = random.choice(screen.drugs, max(2, len(screen.drugs) // 12), replace=False)
    spelled = np.array([cell_name(name.decode()) for name in cells], "S")
    files = FILES.files
    return [_list(files["test_celllines"], spelled), _list(files["test_drugs"], drugs)]


def _list(file: TableFile, names: Names) -> Sheet:
    return Sheet(
        name=file.name, header=header_line([str(file.columns[0])]), rows=len(names), columns=1, value_bytes=8.0,
        render=lambda rows, random: Format(decimals=0).rows(
            names[rows], np.empty((rows.stop - rows.start, 0), np.int64)
        ),
    )  # fmt: skip
