"""NT3's network on real gene expression: ALL or AML, two kinds of leukaemia (Golub and others, 1999).

    pip install rdata
    python examples/nt3_golub.py
    farandole launch -n 2 -- python examples/nt3_golub.py

38 samples of 3,051 genes: few enough for one sample to be 3% of the accuracy.
"""

import argparse

import numpy as np

import real_data
from farandole.candle import nt3
from farandole.workloads import ArraySamples, TrainingData


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    real_data.add_options(parser, folds=4, epochs=12)
    options = parser.parse_args()
    x, labels = real_data.golub(real_data.fetched(real_data.fetched_golub, options.data_dir))
    real_data.say(f"{len(x)} samples, {x.shape[1]} genes, {np.sum(labels == 0)} ALL, {np.sum(labels == 1)} AML")

    one_hot = np.eye(2, dtype=np.float32)[labels]
    right: dict[str, list[int]] = {"more common kind": [], "logistic regression": [], "NT3's network": []}
    for number, test in enumerate(real_data.folds(labels, options.folds, options.seed)):
        train = real_data.rest_of(test, len(x))
        scaled = x / np.abs(x[train]).max(axis=0)
        held_out = ArraySamples(scaled[test][:, :, None], one_hot[test])
        data = TrainingData(
            train=ArraySamples(scaled[train][:, :, None], one_hot[train]), validation=held_out, test=held_out,
            features=x.shape[1], classes=("ALL", "AML"), nbytes=x.nbytes,
        )  # fmt: skip
        given = {
            "epochs": options.epochs, "rng_seed": options.seed + number, "batch_size": 8, "optimizer": "adam",
            "learning_rate": 0.0003, "reduce_lr": False, "parallel": "steps", "lr_scaling": "none",
        }  # fmt: skip
        found = nt3.run(nt3.initialize_parameters(**given), data=data).record["final"]["test"]
        guess = real_data.logistic_regression(scaled[train], labels[train], 0.01)(scaled[test])
        right["NT3's network"].append(round(found["accuracy"] * len(test)))
        right["more common kind"].append(int(np.sum(labels[test] == np.bincount(labels[train]).argmax())))
        right["logistic regression"].append(int(np.sum(guess == labels[test])))
    real_data.say("samples told right when they were held out:")
    for name, counts in right.items():
        real_data.say(f"{name:<28}{sum(counts):3d} of {len(x)} ({sum(counts) / len(x):.3f})")


if __name__ == "__main__":
    main()
