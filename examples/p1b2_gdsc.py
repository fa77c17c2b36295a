"""P1B2's network on real genomes: which tissue a cancer cell line is of, by its mutations and copy numbers (GDSC).

    python examples/p1b2_gdsc.py
    farandole launch -n 2 -- python examples/p1b2_gdsc.py --folds 3
"""

import argparse
from collections import Counter

import numpy as np

import real_data
from farandole.benchmarks.samples import ArraySamples, TrainingData
from farandole.candle import p1b2
from real_data import Features

PENALTIES = (0.003, 0.01, 0.03)


def common(features: Features, least: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Features, numbers of tissues and their names, of tissues with at least `least` cell lines."""
    counts = Counter(features.tissues)
    names = sorted(name for name, count in counts.items() if count >= least)
    rows = [row for row, tissue in enumerate(features.tissues) if tissue in names]
    return features.values[rows], np.array([names.index(features.tissues[row]) for row in rows]), names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    real_data.add_options(parser, folds=5, epochs=6)
    parser.add_argument("--least", type=int, default=10, help="leave out tissues with fewer cell lines; default: 10")
    options = parser.parse_args()
    package = real_data.fetched(real_data.fetched_gdsc, options.data_dir)
    x, labels, names = common(real_data.gdsc_features(package), options.least)
    real_data.say(f"{len(x)} cell lines, {x.shape[1]} features, {len(names)} tissues")

    one_hot = np.eye(len(names), dtype=np.float32)[labels]
    scores: dict[str, list[float]] = {"most common tissue": [], "logistic regression": [], "P1B2's network": []}
    for number, test in enumerate(real_data.folds(labels, options.folds, options.seed)):
        rest = real_data.rest_of(test, len(x))
        held = real_data.folds(labels[rest], 10, options.seed)[0]
        validation, train = rest[held], np.delete(rest, held)
        parts = {
            name: ArraySamples((x[rows],), one_hot[rows])
            for name, rows in {"train": train, "validation": validation, "test": test}.items()
        }
        data = TrainingData(**parts, features=x.shape[1], classes=tuple(names), nbytes=x.nbytes)
        given = {
            "epochs": options.epochs, "rng_seed": options.seed + number, "parallel": "steps", "lr_scaling": "none",
            "activation": "relu", "out_activation": "softmax", "batch_size": 30, "dropout": 0.3,
        }  # fmt: skip
        found = p1b2.run(p1b2.initialize_parameters(**given), data=data).record["final"]["test"]
        scores["P1B2's network"].append(found["accuracy"])
        scores["most common tissue"].append(float(np.mean(labels[test] == np.bincount(labels[rest]).argmax())))
        scores["logistic regression"].append(linear(x, labels, train, validation, test))
    real_data.say("accuracy on cell lines that were held out:")
    for name, values in scores.items():
        real_data.say(real_data.shown(name, values))


def linear(x: np.ndarray, labels: np.ndarray, train: np.ndarray, validation: np.ndarray, test: np.ndarray) -> float:
    """With the penalty that validates best."""
    models = [real_data.logistic_regression(x[train], labels[train], penalty) for penalty in PENALTIES]
    best = max(models, key=lambda model: float(np.mean(model(x[validation]) == labels[validation])))
    return float(np.mean(best(x[test]) == labels[test]))


if __name__ == "__main__":
    main()
