"""P1B2: variants by gene of ten cancer types; mostly 0.

Genes lie in blocks that are inherited as a whole: a sample carries one of two forms of each block, and one
form has more variants than the other. A cancer type is told by

* pairs of blocks: whether both have the same form. Each form alone is as common in every type, so a linear
  model sees nothing of it; a hidden layer does.
* single blocks whose one form is commoner in some types: the linear model's share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from farandole.data.make.compiled import compiled
from farandole.data.make.sheet import Sheet, bits, header_line, stream
from farandole.data.make.text import Format, joined
from farandole.data.tables import Size
from farandole.workloads.labels import TYPES, balanced, case_ids, gene_names
from farandole.workloads.p1b2 import FILES

__all__ = ["sheets"]

Forms = npt.NDArray[np.int64]

_PAIRS = 3
_SINGLES = 3
_BLOCKS = 2 * _PAIRS + _SINGLES
_PAIR_FAITH = 0.93  # how often a pair is as its type has it
_FIRST_FORM = 0.4  # how often the first block of a pair has the form with more variants
_SINGLE_FAITH = 0.75
_NOISE_GENES = 0.6  # share of genes in no block
_RARE, _COMMON = 0.01, 0.7  # chance of a variant by the block's form
_FORMAT = Format(decimals=0)


def _binary(digits: int, *numbers: int) -> npt.NDArray[np.int64]:
    return (np.array(numbers)[:, None] >> np.arange(digits)) & 1


# By type: which pairs agree, and which form of the single blocks is the commoner one. Types that share
# their pairs differ in every single block.
_PAIR_CODES = _binary(_PAIRS, 0, 1, 2, 3, 4, 5, 6, 7, 0, 7)
_SINGLE_CODES = _binary(_SINGLES, 5, 3, 6, 0, 7, 1, 4, 2, 2, 5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Genes:
    """What all samples share; one entry a gene."""

    block: npt.NDArray[np.int64]
    """The block the gene lies in; `_BLOCKS` for none."""
    chance: npt.NDArray[np.uint64]
    """(genes, 2): of a variant by the block's form, out of 65,536."""
    most: npt.NDArray[np.uint64]
    """The largest value of the gene: 1 for most, 2 to 24 for long genes."""


def sheets(size: Size, seed: int) -> list[Sheet]:
    """Train and test file: the same genes, other samples."""
    genes = _genes(size.features, stream(seed, 0))
    header = header_line(["case_id", "cancer_type", *gene_names(size.features)])
    files = FILES.files
    sheets = []
    for number, (role, rows) in enumerate((("train", size.rows), ("test", size.test_rows))):
        leads, forms = _samples(rows, stream(seed, 1, number))
        sheets.append(
            Sheet(
                name=files[role].name, header=header, rows=rows, columns=size.features, value_bytes=2.0,
                render=partial(_render, genes, leads, forms),
            )
        )  # fmt: skip
    return sheets


def _genes(count: int, random: np.random.Generator) -> Genes:
    block = random.permutation(np.arange(count) % _BLOCKS)
    block[random.random(count) < _NOISE_GENES] = _BLOCKS
    noise = np.repeat(random.uniform(0, 0.02, (count, 1)), 2, axis=1)
    inherited = np.stack([random.uniform(0, 2 * _RARE, count), random.uniform(0.7, 1.3, count) * _COMMON], axis=1)
    chance = np.where(block[:, None] == _BLOCKS, noise, inherited)
    return Genes(
        block=block,
        chance=np.round(chance * 65_536).astype(np.uint64),
        most=np.where(random.random(count) < 0.03, random.integers(2, 25, count), 1).astype(np.uint64),
    )


def _samples(rows: int, random: np.random.Generator) -> tuple[npt.NDArray[np.bytes_], Forms]:
    """Each row's id and type, and the form of each of its blocks, with one more for genes in no block."""
    kind = balanced(rows, len(TYPES), random)
    same = _PAIR_CODES[kind] ^ (random.random((rows, _PAIRS)) >= _PAIR_FAITH)
    first = (random.random((rows, _PAIRS)) < _FIRST_FORM).astype(np.int64)
    single = _SINGLE_CODES[kind] ^ (random.random((rows, _SINGLES)) >= _SINGLE_FAITH)
    forms = np.concatenate([first, first ^ same ^ 1, single, np.zeros((rows, 1), np.int64)], axis=1)
    return joined(case_ids(rows, random), np.array(TYPES, "S")[kind]), forms


def _render(
    genes: Genes, leads: npt.NDArray[np.bytes_], forms: Forms, rows: slice, random: np.random.Generator
) -> memoryview:
    values = np.empty((rows.stop - rows.start, len(genes.block)), np.int64)
    _vary(values, forms[rows], bits(random, *values.shape), genes.block, genes.chance, genes.most)
    return _FORMAT.rows(leads[rows], values)


@compiled
def _vary(
    values: npt.NDArray[np.int64], forms: Forms, words: npt.NDArray[np.uint64],
    block: npt.NDArray[np.int64], chance: npt.NDArray[np.uint64], most: npt.NDArray[np.uint64],
) -> None:  # fmt: skip
    low16 = np.uint64(0xFFFF)
    for row in range(values.shape[0]):
        for gene in range(values.shape[1]):
            word = words[row, gene]
            values[row, gene] = 0
            if (word & low16) < chance[gene, forms[row, block[gene]]]:
                values[row, gene] = 1 + (word >> np.uint64(16)) % most[gene]
