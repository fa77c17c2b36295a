"""Sequences of tokens, each made when it is asked for: a random phrase, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from farandole.errors import SettingsError
from farandole.workloads.gpt2 import Gpt2
from farandole.workloads.samples import Rows, TrainingData

__all__ = ["Phrases", "load"]

_PHRASES = (4, 16)
"""Their least and most tokens."""
_RARER = 4  # the higher a token's number, as words are
Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Phrases:
    """A sequence follows from the seed and its number. The target of a token is the next one."""

    samples: int
    context: int
    vocabulary: int
    seed: tuple[int, int]
    at_hand: ClassVar[bool] = True

    def __len__(self) -> int:
        return self.samples

    def batch(self, rows: Rows) -> tuple[Tokens, Tokens]:
        made = np.stack([self._sequence(int(row)) for row in rows])
        return made[:, :-1].copy(), made[:, 1:].copy()

    def _sequence(self, row: int) -> Tokens:
        random = np.random.default_rng([*self.seed, row])
        chosen = random.random(random.integers(*_PHRASES)) ** _RARER
        return np.resize((chosen * self.vocabulary).astype(np.int64), self.context + 1)


def load(parameters: Gpt2, folder: Path | None) -> TrainingData:
    if folder is not None:
        raise SettingsError(f"data_dir={folder}: tokens are made on the fly, and no files are read. Leave it out.")
    shape, tests = (parameters.context, parameters.vocabulary), max(parameters.batch_size, parameters.sequences // 10)
    train, test = (Phrases(count, *shape, (parameters.rng_seed, part)) for part, count in enumerate((parameters.sequences, tests)))
    return TrainingData(train=train, test=test, features=parameters.context)
