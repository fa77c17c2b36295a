"""NT3: normal or tumor tissue, from the expression of 60,483 genes, by a convolution along the genes.

    Conv 128 x 20 relu -> pool 1 -> Conv 128 x 10 relu -> pool 10 -> Dense 200 relu, dropout 0.1
    -> Dense 20 relu, dropout 0.1 -> Dense 2 softmax            154,922,918 parameters

Categorical cross-entropy, SGD 0.001, batches of 20, 384 epochs in the paper. The rate is divided by 10 when the
validation loss has stood still for 10 epochs. As published, validation is on the test set; `val_split` takes samples from
the training file instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.benchmarks.benchmark import Benchmark
from farandole.benchmarks.parameters import ACTIVATIONS, Parameters, option
from farandole.benchmarks.samples import ArraySamples, TrainingData
from farandole.errors import SettingsError

__all__ = ["BENCHMARK", "NT3"]


@dataclass(kw_only=True, slots=True)
class NT3(Parameters):
    """NT3's hyper-parameters."""

    epochs: int = option(384, "passes over the training data, of one rank alone")
    batch_size: int = option(20, "samples a rank takes in a step")
    learning_rate: float | None = option(0.001, "of one rank alone; None: the optimizer's own")
    loss: str = option("categorical_crossentropy", "a Keras loss by name")
    conv: tuple[int, ...] = option((128, 20, 1, 128, 10, 1), "filters, width and stride of each convolution")
    pool: tuple[int, ...] = option((1, 10), "width of the maximum after each convolution")
    dense: tuple[int, ...] = option((200, 20), "widths of the dense layers")
    out_activation: str = option("softmax", "of the last layer", ACTIVATIONS)
    dropout: float = option(0.1, "fraction of units dropped after a dense layer")
    reduce_lr: bool = option(
        True, "divide the rate by 10 when the validation loss has stood still for 10 epochs"
    )
    val_split: float = option(0.0, "fraction of the training file kept for validation; nt3: 0 validates on the test set, as published")

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        if len(self.conv) % 3 or min(self.conv, default=1) < 1:
            raise SettingsError(
                f"conv={list(self.conv)}: expected filters, width and stride for each convolution"
            )
        if len(self.pool) != len(self.conv) // 3 or min(self.pool, default=1) < 1:
            raise SettingsError(
                f"pool={list(self.pool)}: expected {len(self.conv) // 3} widths, one after each convolution of conv="
                f"{list(self.conv)}"
            )

    @property
    def convolutions(self) -> list[tuple[int, int, int, int]]:
        """Filters, width, stride and pooling of each."""
        return list(zip(self.conv[::3], self.conv[1::3], self.conv[2::3], self.pool))


def load(folder: Path, parameters: NT3) -> TrainingData:
    from farandole.data.candle.nt3 import load as load_files

    data = load_files(
        folder,
        scaling=parameters.scaling,
        validation=parameters.val_split,
        feature_subsample=parameters.feature_subsample,
        feature_seed=parameters.rng_seed,
    )
    train, test = (ArraySamples((part.x,), part.y) for part in (data.train, data.test))
    validation = ArraySamples((data.validation.x,), data.validation.y) if parameters.val_split else test
    parts = (train, validation, test) if parameters.val_split else (train, test)
    return TrainingData(
        train=train,
        validation=validation,
        test=test,
        features=train.inputs[0].shape[1],
        classes=data.classes,
        nbytes=sum(part.inputs[0].nbytes for part in parts),
    )


def build(parameters: NT3, data: TrainingData) -> Any:
    import keras
    from keras import layers

    from farandole.benchmarks.layers import Conv1D, convolution_and_pool, dropout, initializer

    def start() -> Any:
        return initializer(parameters.initialization)

    model = keras.Sequential([keras.Input((data.features, 1))], name="nt3")
    check_fits(parameters.convolutions, data.features)
    for filters, width, stride, pool in parameters.convolutions:
        convolution = Conv1D(filters, width, stride, kernel_initializer=start())
        for layer in convolution_and_pool(convolution, pool, parameters.activation):
            model.add(layer)
    model.add(layers.Flatten())
    for width in parameters.dense:
        model.add(layers.Dense(width, parameters.activation, kernel_initializer=start()))
        if parameters.dropout:
            model.add(dropout(parameters.dropout))
    model.add(layers.Dense(len(data.classes), parameters.out_activation, kernel_initializer=start()))
    return model


def check_fits(convolutions: Sequence[tuple[int, int, int, int]], features: int) -> None:
    """Refuse convolutions (filters, width, stride, pooling) that leave nothing of the features."""
    length = features
    for _, width, stride, pool in convolutions:
        for window, step in ((width, stride), (pool, pool)):
            if length < window:
                raise SettingsError(
                    f"{features} features are too few for these convolutions: {length} values are left where {window} "
                    "are needed. Use smaller widths in conv and pool, or more features."
                )
            length = (length - window) // step + 1


def metrics(parameters: NT3, data: TrainingData) -> list[Any]:
    import keras

    return [keras.metrics.CategoricalAccuracy(name="accuracy")]


BENCHMARK = Benchmark(
    name="nt3",
    title="normal or tumor, from gene expression: a 1-D convolutional network",
    parameters=NT3,
    presets={
        # SGD at the paper's rate needs hundreds of epochs.
        "demo": {"epochs": 16, "optimizer": "adam", "learning_rate": 0.0005},
        "test": {
            "conv": (16, 20, 1, 16, 10, 1),
            "epochs": 16,
            "optimizer": "adam",
            "learning_rate": 0.001,
        },
        "paper": {},
    },
    load=load,
    build=build,
    loss=lambda parameters: str(parameters.loss),
    metrics=metrics,
    watched="accuracy",
    parallel="epochs",
    lr_scaling="linear",
    enough_epochs=8,
)
