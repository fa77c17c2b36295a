"""P1B1: gene expression squeezed through a narrow layer and restored.

    ae     60483 -> 2000 -> 600 -> 2 -> 600 -> 2000 -> 60483, relu, sigmoid at the end       244,400,085 parameters
    vae    the latent values drawn from N(mean, exp(log variance)); loss: mean of cross-entropy + KL / inputs  244,401,287
    cvae   as vae, with the cancer type one-hot beside the inputs and beside the latent values  + 2,600 a type

Squared error (ae), Adam 0.001, batches of 100, 384 epochs in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.benchmarks.benchmark import Benchmark
from farandole.benchmarks.parameters import ACTIVATIONS, OPTIMIZERS, Parameters, option
from farandole.benchmarks.samples import ArraySamples, TrainingData
from farandole.errors import SettingsError

__all__ = ["BENCHMARK", "P1B1"]

MODELS = ("ae", "vae", "cvae")
CROSS_ENTROPY = "binary_crossentropy"


@dataclass(kw_only=True, slots=True)
class P1B1(Parameters):
    """P1B1's hyper-parameters."""

    epochs: int = option(384, "passes over the training data, of one rank alone")
    optimizer: str = option("adam", "which", OPTIMIZERS)
    model: str = option("ae", "plain, variational or conditional", MODELS)
    dense: tuple[int, ...] = option(
        (2000, 600), "widths of the encoder's layers, and of the decoder's, reversed"
    )
    latent_dim: int = option(2, "width of the narrowest layer")
    epsilon_std: float = option(1.0, "deviation of the noise by which latent values are drawn")
    out_activation: str = option("sigmoid", "of the last layer", ACTIVATIONS)
    scaling: str = option("minmax", "of the features", ("maxabs", "minmax", "std", "none"))
    val_split: float = option(0.1, "fraction of the training file kept for validation")

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        self._at_least(1, "latent_dim")
        if self.model != "ae" and self.scaling != "minmax":
            raise SettingsError(
                f"scaling={self.scaling!r}: the cross-entropy of {self.model} needs minmax, values in [0, 1]"
            )
        if self.model != "ae" and self.loss not in ("mse", CROSS_ENTROPY):  # mse: of CANDLE's files for all three
            raise SettingsError(
                f"loss={self.loss!r}: {self.model} has a loss of its own, {CROSS_ENTROPY} and KL. Leave it out, or use model=ae."
            )


def load(folder: Path, parameters: P1B1) -> TrainingData:
    from farandole.data.candle.p1b1 import load as load_files

    data = load_files(
        folder,
        scaling=parameters.scaling,
        validation=parameters.val_split,
        feature_subsample=parameters.feature_subsample,
        feature_seed=parameters.rng_seed,
    )

    def samples(part: Any) -> ArraySamples:
        return ArraySamples((part.x, part.y) if parameters.model == "cvae" else (part.x,), None)

    train, validation, test = samples(data.train), samples(data.validation), samples(data.test)
    return TrainingData(
        train=train,
        validation=validation,
        test=test,
        features=train.inputs[0].shape[1],
        classes=data.classes,
        nbytes=sum(part.inputs[0].nbytes for part in (train, validation, test)),
    )


def build(parameters: P1B1, data: TrainingData) -> Any:
    import keras
    from keras import layers

    from farandole.benchmarks.layers import initializer

    genes = keras.Input((data.features,), name="genes")
    cancer_type = (
        keras.Input((len(data.classes),), name="cancer_type") if parameters.model == "cvae" else None
    )

    def beside_type(values: Any) -> Any:
        return values if cancer_type is None else layers.Concatenate()([values, cancer_type])

    encoded = _hidden(beside_type(genes), parameters.dense, parameters)
    latent = _latent(encoded, parameters, data.features)
    decoded = _hidden(beside_type(latent), parameters.dense[::-1], parameters)
    restored = layers.Dense(
        data.features, parameters.out_activation, kernel_initializer=initializer(parameters.initialization)
    )(decoded)
    return keras.Model(
        genes if cancer_type is None else (genes, cancer_type), restored, name=parameters.model
    )


def _hidden(values: Any, widths: tuple[int, ...], parameters: P1B1) -> Any:
    from keras import layers

    from farandole.benchmarks.layers import dropout, initializer

    for width in widths:
        values = layers.Dense(
            width, parameters.activation, kernel_initializer=initializer(parameters.initialization)
        )(values)
        if parameters.dropout:
            values = dropout(parameters.dropout)(values)
    return values


def _latent(encoded: Any, parameters: P1B1, features: int) -> Any:
    from keras import layers

    from farandole.benchmarks.layers import Latent, initializer

    def narrow(activation: str, name: str) -> Any:
        dense = layers.Dense(
            parameters.latent_dim,
            activation,
            kernel_initializer=initializer(parameters.initialization),
            name=name,
        )
        return dense(encoded)

    if parameters.model == "ae":
        return narrow(parameters.activation, "latent")
    return Latent(features, parameters.epsilon_std)(
        (narrow("linear", "z_mean"), narrow("linear", "z_log_var"))
    )


def loss(parameters: P1B1) -> str:
    return parameters.loss if parameters.model == "ae" else CROSS_ENTROPY


def metrics(parameters: P1B1, data: TrainingData) -> list[Any]:
    import keras

    from farandole.benchmarks.metrics import R2, Correlation

    return [keras.metrics.MeanSquaredError(name="mse"), R2(data.features), Correlation()]


BENCHMARK = Benchmark(
    name="p1b1",
    title="gene expression through a bottleneck of 2: an autoencoder",
    parameters=P1B1,
    presets={
        "demo": {"epochs": 48},
        # With relu one of the two latent values may be 0 for ever, and a network this small does not recover.
        "test": {"dense": (200, 100), "activation": "elu", "batch_size": 50, "epochs": 80},
        "paper": {},
    },
    load=load,
    build=build,
    loss=loss,
    metrics=metrics,
    watched="correlation",
    parallel="epochs",
    lr_scaling="linear",
    enough_epochs=4,
)
