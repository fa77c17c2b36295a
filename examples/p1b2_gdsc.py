"""P1B2's network on real genomes: which tissue a cancer cell line is of, by its mutations and copy numbers (GDSC).

    python examples/p1b2_gdsc.py
    farandole launch -n 2 -- python examples/p1b2_gdsc.py --folds 3

Chosen by cross-validation within the training part of each fold: the network's layers and when to stop it, the penalty of the logistic regression beside it. Both are then trained on all of that part.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import real_data
from farandole.candle import p1b2
from farandole.workloads import ArraySamples, TrainingData
from real_data import Features

PENALTIES = (0.001, 0.003, 0.01)
SETTINGS: tuple[dict[str, Any], ...] = ({"dense": [1024, 512, 256]}, {"dense": [1024]})
"""P1B2's three layers, or the first of them alone; both with far more regularisation than P1B2's 3,000 samples need."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Cell lines: features, the numbers of their tissues and the tissues' names."""

    x: np.ndarray
    labels: np.ndarray
    names: list[str]

    def samples(self, rows: np.ndarray) -> ArraySamples:
        return ArraySamples(self.x[rows], np.eye(len(self.names), dtype=np.float32)[self.labels[rows]])


def common(features: Features, least: int) -> Lines:
    """Those of tissues with at least `least` cell lines."""
    counts = Counter(features.tissues)
    names = sorted(name for name, count in counts.items() if count >= least)
    rows = [row for row, tissue in enumerate(features.tissues) if tissue in names]
    return Lines(features.values[rows], np.array([names.index(features.tissues[row]) for row in rows]), names)


def trained(lines: Lines, train: np.ndarray, judge: np.ndarray, epochs: int, seed: int, settings: Any) -> list[float]:
    """Accuracy on `judge` after every epoch; nothing is decided by it in training."""
    held_out = lines.samples(judge)
    data = TrainingData(
        train=lines.samples(train), validation=held_out, test=held_out, features=lines.x.shape[1],
        classes=tuple(lines.names), nbytes=lines.x.nbytes,
    )  # fmt: skip
    given = {
        "epochs": epochs, "rng_seed": seed, "parallel": "steps", "lr_scaling": "none", "activation": "relu",
        "out_activation": "softmax", "batch_size": 30, "dropout": 0.5, "reg_l2": 0.001, **settings,
    }  # fmt: skip
    return p1b2.run(p1b2.initialize_parameters(**given), data=data).history["val_accuracy"]


def network(lines: Lines, parts: list[np.ndarray], rest: np.ndarray, test: np.ndarray, epochs: int, seed: int) -> float:
    """With the settings and the epoch that are best on the parts of `rest`."""
    curves = [
        np.mean([trained(lines, np.setdiff1d(rest, part), part, epochs, seed, given) for part in parts], axis=0)
        for given in SETTINGS
    ]
    best = int(np.argmax([curve.max() for curve in curves]))
    stop = int(curves[best].argmax()) + 1
    real_data.say(f"chosen: {SETTINGS[best]}, {stop} epochs ({curves[best].max():.3f} within the training part)")
    return trained(lines, rest, test, stop, seed, SETTINGS[best])[-1]


def linear(lines: Lines, parts: list[np.ndarray], rest: np.ndarray, test: np.ndarray) -> float:
    """With the penalty that is best on the parts of `rest`."""
    x, labels = lines.x, lines.labels

    def accuracy(train: np.ndarray, judge: np.ndarray, penalty: float) -> float:
        guess: Callable[[Any], Any] = real_data.logistic_regression(x[train], labels[train], penalty)
        return float(np.mean(guess(x[judge]) == labels[judge]))

    within = [np.mean([accuracy(np.setdiff1d(rest, part), part, penalty) for part in parts]) for penalty in PENALTIES]
    return accuracy(rest, test, PENALTIES[int(np.argmax(within))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    real_data.add_options(parser, folds=5, epochs=16)
    parser.add_argument("--parts", type=int, default=3, help="of the cross-validation within a fold; default: 3")
    parser.add_argument("--least", type=int, default=10, help="leave out tissues with fewer cell lines; default: 10")
    options = parser.parse_args()
    package = real_data.fetched(real_data.fetched_gdsc, options.data_dir)
    lines = common(real_data.gdsc_features(package), options.least)
    x, labels = lines.x, lines.labels
    real_data.say(f"{len(x)} cell lines, {x.shape[1]} features, {len(lines.names)} tissues")

    scores: dict[str, list[float]] = {"most common tissue": [], "logistic regression": [], "P1B2's network": []}
    for number, test in enumerate(real_data.folds(labels, options.folds, options.seed)):
        rest = real_data.rest_of(test, len(x))
        parts = [rest[part] for part in real_data.folds(labels[rest], options.parts, options.seed)]
        scores["most common tissue"].append(float(np.mean(labels[test] == np.bincount(labels[rest]).argmax())))
        scores["logistic regression"].append(linear(lines, parts, rest, test))
        scores["P1B2's network"].append(network(lines, parts, rest, test, options.epochs, options.seed + number))
    real_data.say("accuracy on cell lines that were held out:")
    for name, values in scores.items():
        real_data.say(real_data.shown(name, values))


if __name__ == "__main__":
    main()
