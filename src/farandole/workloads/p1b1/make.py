"""P1B1: gene expression of cancer types, log(1 + FPKM-UQ), on a curved surface of two dimensions.

A sample is a point in a plane, near the place of its cancer type; every gene follows a few smooth steps
across that plane. Two numbers do describe a sample, so an autoencoder of width 2 can find them; the surface
bends through dozens of dimensions, so the best flat plane through it (PCA of width 2) cannot.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import numpy.typing as npt

from farandole.data.make.mixture import Mixture, mixed_rows
from farandole.data.make.sheet import Sheet, header_line, stream
from farandole.data.make.text import Format, joined
from farandole.data.tables import Size
from farandole.workloads.labels import TYPES, balanced, case_ids, gene_names
from farandole.workloads.p1b1 import FILES

__all__ = ["sheets"]

Floats = npt.NDArray[np.float64]

_STEPS = 48  # smooth steps across the plane
_STEPS_A_GENE = 3
_STEEPNESS = 3.0
_RADIUS = 2.0  # of the circle, on which the types lie
_SPREAD = 0.5  # of a type's samples around its place
_OFFSET = 2.0  # of steps from the middle: as far out as the types
_NOISE = 0.3
_SIGNAL = 1.0
_FORMAT = Format(decimals=2)


def sheets(size: Size, seed: int) -> list[Sheet]:
    """Train and test file: the same surface, other samples."""
    surface = _surface(size.features, stream(seed, 0))
    places, steps = _places(stream(seed, 3)), stream(seed, 4).normal(0, 1, (3, _STEPS))
    header = header_line(["case_id", "cancer_type", *gene_names(size.features)])
    files = FILES.files
    sheets = []
    for number, (role, rows) in enumerate((("train", size.rows), ("test", size.test_rows))):
        leads, along = _samples(rows, places, steps, stream(seed, 1, number))
        sheets.append(
            Sheet(
                name=files[role].name, header=header, rows=rows, columns=size.features, value_bytes=4.25,
                render=partial(mixed_rows, surface, _FORMAT, leads, along),
            )
        )  # fmt: skip
    return sheets


def _surface(genes: int, random: np.random.Generator) -> Mixture:
    silent = random.random(genes) < 0.35
    # Most silent genes are never seen: a rare value would outweigh all others once MinMax has stretched it.
    chance = np.where(silent, random.uniform(-0.4, 0.1, genes).clip(0), 1.0)
    return Mixture(
        level=np.where(silent, random.normal(5, 1, genes), random.normal(10, 2, genes)),
        present=np.round(chance * 65_536).astype(np.uint64),
        factor=random.integers(0, _STEPS, (genes, _STEPS_A_GENE)),
        weight=random.normal(0, _SIGNAL, (genes, _STEPS_A_GENE)),
        grain=np.ones(genes, np.int64), noise=_NOISE, absent=0, least=0,
    )  # fmt: skip


def _places(random: np.random.Generator) -> Floats:
    """Where the types lie in the plane: around a circle, so that none is between two others."""
    angle = 2 * math.pi * random.permutation(len(TYPES)) / len(TYPES)
    return _RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _samples(
    rows: int, places: Floats, steps: Floats, random: np.random.Generator
) -> tuple[npt.NDArray[np.bytes_], Floats]:
    """Each row's id and type, and how far it is along every step."""
    kind = balanced(rows, len(TYPES), random)
    point = places[kind] + random.normal(0, _SPREAD, (rows, 2))
    along = _STEEPNESS * (point[:, :1] * steps[0] + point[:, 1:] * steps[1] + _OFFSET * steps[2])
    return joined(case_ids(rows, random), np.array(TYPES, "S")[kind]), np.tanh(along)
