"""P1B2: which of 10 cancer types, from 28,204 SNP features.

    Dense 1024 -> 512 -> 256 sigmoid, L2 of 1e-5 on weights and activities -> Dense 10 sigmoid     29,540,618 parameters

Categorical cross-entropy, as in the original after a sigmoid; RMSprop 0.001, batches of 60, 768 epochs in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.benchmarks.benchmark import Benchmark
from farandole.benchmarks.parameters import ACTIVATIONS, OPTIMIZERS, Parameters, option
from farandole.benchmarks.samples import ArraySamples, TrainingData

__all__ = ["BENCHMARK", "P1B2"]


@dataclass(kw_only=True, slots=True)
class P1B2(Parameters):
    """P1B2's hyper-parameters."""

    epochs: int = option(768, "passes over the training data, of one rank alone")
    batch_size: int = option(60, "samples a rank takes in a step")
    learning_rate: float | None = option(0.001, "of one rank alone; None: the optimizer's own")
    optimizer: str = option("rmsprop", "which", OPTIMIZERS)
    loss: str = option("categorical_crossentropy", "a Keras loss by name")
    dense: tuple[int, ...] = option((1024, 512, 256), "widths of the dense layers")
    activation: str = option("sigmoid", "of the hidden layers", ACTIVATIONS)
    out_activation: str = option("sigmoid", "of the last layer", ACTIVATIONS)
    scaling: str = option("minmax", "of the features", ("maxabs", "minmax", "std", "none"))
    reg_l2: float = option(1e-5, "penalty on squares of weights and activities of hidden layers")
    val_split: float = option(0.1, "fraction of the training file kept for validation")


def load(folder: Path, parameters: P1B2) -> TrainingData:
    from farandole.data.candle.p1b2 import load as load_files

    data = load_files(
        folder,
        scaling=parameters.scaling,
        validation=parameters.val_split,
        feature_subsample=parameters.feature_subsample,
        feature_seed=parameters.rng_seed,
    )
    train, validation, test = (
        ArraySamples((part.x,), part.y) for part in (data.train, data.validation, data.test)
    )
    return TrainingData(
        train=train,
        validation=validation,
        test=test,
        features=train.inputs[0].shape[1],
        classes=data.classes,
        nbytes=sum(part.inputs[0].nbytes for part in (train, validation, test)),
    )


def build(parameters: P1B2, data: TrainingData) -> Any:
    import keras
    from keras import layers

    from farandole.benchmarks.layers import dropout, initializer

    model = keras.Sequential([keras.Input((data.features,))], name="p1b2")
    for width in parameters.dense:
        model.add(
            layers.Dense(
                width,
                parameters.activation,
                kernel_initializer=initializer(parameters.initialization),
                kernel_regularizer=keras.regularizers.L2(parameters.reg_l2),
                activity_regularizer=keras.regularizers.L2(parameters.reg_l2),
            )
        )
        if parameters.dropout:
            model.add(dropout(parameters.dropout))
    model.add(
        layers.Dense(
            len(data.classes),
            parameters.out_activation,
            kernel_initializer=initializer(parameters.initialization),
        )
    )
    return model


def metrics(parameters: P1B2, data: TrainingData) -> list[Any]:
    import keras

    return [keras.metrics.CategoricalAccuracy(name="accuracy")]


BENCHMARK = Benchmark(
    name="p1b2",
    title="cancer type, from SNPs: a regularised dense network",
    parameters=P1B2,
    presets={
        "demo": {"epochs": 48},
        "test": {"dense": (256, 128, 64), "epochs": 60},
        "paper": {},
    },
    load=load,
    build=build,
    loss=lambda parameters: str(parameters.loss),
    metrics=metrics,
    watched="accuracy",
    parallel="epochs",
    lr_scaling="linear",
    enough_epochs=16,
)
