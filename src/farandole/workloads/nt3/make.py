"""NT3: matched pairs of normal and tumor tissue, RNA-seq (FPKM-UQ), genes in the order of the genome.

What tells a tumor, and to whom:

* copy number: in a tumor whole segments of neighbouring genes are amplified together, other segments in
  every tumor. In normal tissue as many genes are up as much, each for itself. No gene's distribution
  differs, so a linear model sees nothing; a convolution over neighbours does.
* signature: a few genes are a little up or down in tumors. This is the linear model's share.

Around that: levels that span orders of magnitude, silent genes, drop-outs, pathways that a patient's two
samples share, and a few tumors without amplified segments, so that no model is always right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from farandole.data.make.compiled import compiled
from farandole.data.make.sheet import Sheet, bits, normal_table, stream
from farandole.data.make.text import Format
from farandole.data.tables import Size
from farandole.workloads.nt3 import FILES

__all__ = ["sheets"]

Floats = npt.NDArray[np.float64]

_SEGMENT_GENES = 24  # a little more than the 20 genes that NT3's first convolution sees
_GAIN = 1.3  # log fold change of an amplified gene
_AMPLIFIED = (-0.01, 0.39)  # share of the genome that is, by sample; below 0: none, as in one of forty
_NOISE = 0.3
_PATHWAYS = 12
_SIGNATURE_SHARE = 0.08
_LINEAR_MARGIN = 0.8  # standard normal quantile of the accuracy that a linear model should get, about 0.8
_FORMAT = Format(decimals=4, point=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Genome:
    """What all samples share; one entry a gene."""

    level: Floats
    """Mean log expression."""
    present: npt.NDArray[np.uint64]
    """Chance of a non-zero value, out of 65,536."""
    loading: Floats
    """How strongly the gene follows its pathway."""
    pathway: npt.NDArray[np.int64]
    segment: npt.NDArray[np.int64]
    signature: Floats
    """Log fold change in tumors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """The rows of one file."""

    tumor: npt.NDArray[np.int64]
    amplified: npt.NDArray[np.uint64]
    """Share of amplified segments (tumor) or genes (normal), out of 65,536."""
    activity: Floats
    """(rows, pathways), the same for both samples of a patient."""


def sheets(size: Size, seed: int) -> list[Sheet]:
    """Train and test file; no patient is in both."""
    genome = _genome(size, stream(seed, 0))
    files = FILES.files
    return [
        Sheet(
            name=files[role].name, header=b"", rows=rows, columns=size.features, value_bytes=8.8,
            render=partial(_render, genome, _samples(rows, stream(seed, 1, number))),
        )
        for number, (role, rows) in enumerate((("train", size.rows), ("test", size.test_rows)))
    ]  # fmt: skip


def _genome(size: Size, random: np.random.Generator) -> Genome:
    genes = size.features
    silent = random.random(genes) < 0.3
    return Genome(
        level=np.where(silent, random.normal(6.0, 1.0, genes), random.normal(10.0, 1.7, genes)),
        present=np.round(np.where(silent, random.uniform(0, 0.15, genes), random.uniform(0.92, 1, genes)) * 65_536).astype(np.uint64),
        loading=random.normal(0, 0.15, genes),
        pathway=random.integers(0, _PATHWAYS, genes),
        segment=np.arange(genes) // _SEGMENT_GENES,
        signature=_signature(size, silent, random),
    )  # fmt: skip


def _signature(size: Size, silent: npt.NDArray[np.bool_], random: np.random.Generator) -> Floats:
    """As strong as a linear model needs to get it right about four times in five.

    A linear classifier is right with the normal quantile d / (2 sqrt(d + c)), d being the squared distance
    of the classes and c what fitting p genes to n rows costs. c was measured with logistic and ridge
    regression for p/n from 0.6 to 54; solving for d makes the task about as hard at every size.
    """
    quantile, cost = 2 * _LINEAR_MARGIN, 7 * (size.features / size.rows) ** 1.45
    distance = (quantile**2 + math.sqrt(quantile**4 + 4 * quantile**2 * cost)) / 2
    chosen = ~silent & (random.random(size.features) < _SIGNATURE_SHARE)
    share = sum(_AMPLIFIED) / 2
    spread = math.sqrt(_NOISE**2 + _GAIN**2 * share * (1 - share))
    step = spread * math.sqrt(distance / max(1, chosen.sum()))
    return np.where(chosen, random.choice([-step, step], size.features), 0.0)


def _samples(rows: int, random: np.random.Generator) -> Samples:
    patients = random.normal(0, 1, ((rows + 1) // 2, _PATHWAYS))
    order = random.permutation(rows)  # the two samples of a patient, and the classes, lie anywhere
    return Samples(
        tumor=(np.arange(rows) % 2)[order],
        amplified=np.round(random.uniform(*_AMPLIFIED, rows).clip(0) * 65_536).astype(np.uint64),
        activity=patients[np.arange(rows) // 2][order],
    )


def _render(
    genome: Genome, samples: Samples, rows: slice, random: np.random.Generator
) -> memoryview:
    tumor, count = samples.tumor[rows], rows.stop - rows.start
    values = np.empty((count, len(genome.level)), np.int64)
    _express(
        values, tumor, samples.amplified[rows], samples.activity[rows],
        bits(random, count, len(genome.level)), bits(random, count, int(genome.segment[-1]) + 1), normal_table(),
        genome.level, genome.present, genome.loading, genome.pathway, genome.segment, genome.signature,
    )  # fmt: skip
    return _FORMAT.rows(tumor.astype("S1"), values)


@compiled
def _express(
    values: npt.NDArray[np.int64], tumor: npt.NDArray[np.int64], amplified: npt.NDArray[np.uint64],
    activity: Floats, gene_bits: npt.NDArray[np.uint64], segment_bits: npt.NDArray[np.uint64], normal: Floats,
    level: Floats, present: npt.NDArray[np.uint64], loading: Floats, pathway: npt.NDArray[np.int64],
    segment: npt.NDArray[np.int64], signature: Floats,
) -> None:  # fmt: skip
    low16 = np.uint64(0xFFFF)
    for row in range(values.shape[0]):
        for gene in range(values.shape[1]):
            word = gene_bits[row, gene]
            if (word & low16) >= present[gene]:
                values[row, gene] = 0
                continue
            noise = normal[(word >> np.uint64(16)) & low16]
            expression = level[gene] + loading[gene] * activity[row, pathway[gene]] + _NOISE * noise
            fate = word >> np.uint64(32)  # normal tissue: each gene has its own, tumors: each segment
            if tumor[row]:
                fate = segment_bits[row, segment[gene]]
                expression += signature[gene]
            if (fate & low16) < amplified[row]:
                expression += _GAIN
            values[row, gene] = int(math.exp(expression) * 10_000 + 0.5)
