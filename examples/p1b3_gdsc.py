"""P1B3's network on real drug response: the logarithm of the IC50, of a cell line's genome and a drug (GDSC).

    python examples/p1b3_gdsc.py
    farandole launch -n 2 -- python examples/p1b3_gdsc.py --folds 2 --epochs 2

Pairs of a cell line and a drug are held out. Drugs are known by their number only: one input each.
"""

import argparse
from dataclasses import dataclass

import numpy as np

import real_data
from farandole.candle import p1b3
from farandole.workloads import TrainingData
from real_data import Features, Responses


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measured pairs; (cell lines, features) and which cell line and drug each pair is of."""

    genomes: np.ndarray
    cell_of: np.ndarray
    drug_of: np.ndarray
    drugs: int
    response: np.ndarray

    def __len__(self) -> int:
        return len(self.response)


@dataclass(frozen=True, slots=True)
class Samples:
    """Some of the pairs, put together when a batch is made of them."""

    pairs: Pairs
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.rows[rows]
        drug = np.eye(self.pairs.drugs, dtype=np.float32)[self.pairs.drug_of[chosen]]
        x = np.hstack([self.pairs.genomes[self.pairs.cell_of[chosen]], drug])
        return x, self.pairs.response[chosen, None]


def measured(features: Features, responses: Responses) -> Pairs:
    """Pairs of cell lines that both tables know; the tissue is one of a genome's features."""
    known = {cell: row for row, cell in enumerate(features.cells)}
    rows = [row for row, cell in enumerate(responses.cells) if cell in known]
    order = [known[responses.cells[row]] for row in rows]
    tissues = sorted(set(features.tissues))
    of_tissue = np.eye(len(tissues), dtype=np.float32)[[tissues.index(features.tissues[row]) for row in order]]
    values = responses.values[rows]
    cell_of, drug_of = np.nonzero(np.isfinite(values))
    genomes = np.hstack([features.values[order], of_tissue])
    return Pairs(genomes, cell_of, drug_of, values.shape[1], values[cell_of, drug_of])


def means_of_cell_and_drug(pairs: Pairs, train: np.ndarray, test: np.ndarray, rounds: int = 8) -> np.ndarray:
    """A number for each cell line plus one for each drug, fitted in turns."""
    guess = np.full(len(pairs), pairs.response[train].mean())
    for index in (pairs.drug_of, pairs.cell_of) * rounds:
        count = np.bincount(index[train], minlength=index.max() + 1)
        left = np.bincount(index[train], (pairs.response - guess)[train], index.max() + 1)
        guess += (left / np.maximum(count, 1))[index]
    return guess[test]


def r2(y: np.ndarray, guess: np.ndarray) -> float:
    return float(1 - np.mean((y - guess) ** 2) / y.var())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    real_data.add_options(parser, folds=5, epochs=4)
    options = parser.parse_args()
    package = real_data.fetched(real_data.fetched_gdsc, options.data_dir)
    pairs = measured(real_data.gdsc_features(package), real_data.gdsc_responses(package))
    width = pairs.genomes.shape[1] + pairs.drugs
    real_data.say(f"{len(pairs):,} pairs, {len(pairs.genomes)} cell lines, {pairs.drugs} drugs, {width} inputs")

    scores: dict[str, list[float]] = {"mean of the drug": [], "means of cell and drug": [], "P1B3's network": []}
    for number, test in enumerate(real_data.folds(pairs.drug_of, options.folds, options.seed)):
        rest = real_data.rest_of(test, len(pairs))
        rest = np.random.default_rng(options.seed).permutation(rest)
        held = len(rest) // 20
        data = TrainingData(
            train=Samples(pairs, rest[held:]), validation=Samples(pairs, rest[:held]), test=Samples(pairs, test),
            features=width, nbytes=pairs.genomes.nbytes,
        )  # fmt: skip
        given = {
            "epochs": options.epochs, "rng_seed": options.seed + number, "optimizer": "adam", "lr_scaling": "none",
            "learning_rate": 0.001, "initialization": "glorot_uniform", "batch_size": 200,
        }  # fmt: skip
        found = p1b3.run(p1b3.initialize_parameters(**given), data=data).record["final"]["test"]
        y = pairs.response[test]
        of_drug = np.bincount(pairs.drug_of[rest], pairs.response[rest]) / np.bincount(pairs.drug_of[rest])
        scores["P1B3's network"].append(found["r2"])
        scores["mean of the drug"].append(r2(y, of_drug[pairs.drug_of[test]]))
        scores["means of cell and drug"].append(r2(y, means_of_cell_and_drug(pairs, rest, test)))
    real_data.say("R2 on pairs that were held out:")
    for name, values in scores.items():
        real_data.say(real_data.shown(name, values))


if __name__ == "__main__":
    main()
