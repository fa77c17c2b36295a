"""Names and labels of samples that say nothing about each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["TYPES", "balanced", "case_ids", "gene_names"]

TYPES = ("BRCA", "COAD", "GBM", "HNSC", "KIRC", "LGG", "LUAD", "OV", "UCEC", "others")
"""The nine commonest cancer types, and the rest."""


def balanced(rows: int, classes: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """As many of each class as of any other, give or take one, in random order."""
    return random.permutation(np.arange(rows) % classes)


def case_ids(rows: int, random: np.random.Generator) -> npt.NDArray[np.bytes_]:
    """Distinct ids in random order: neither id nor position tells the class."""
    numbers = random.choice(16**6, size=rows, replace=False)
    return np.array([b"TCGA-%06X" % number for number in numbers])


def gene_names(genes: int) -> list[str]:
    return [f"ENSG{number:011d}" for number in range(1, genes + 1)]
