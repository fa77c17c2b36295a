"""P1B3: how a cell line grows under a drug, from its genes, the drug's descriptors and the dose.

    dense               29532 -> 1000 -> 500 -> 100 -> 50 -> 1, relu, dropout 0.1          30,088,701 parameters
    conv                two convolutions 10 x 10, stride 5, each with pooling 10 -> 1           1,231
    locally connected   the same with weights that differ from place to place                767,831

Weights N(0, 0.05); squared error, SGD 0.001, batches of 100, 1 epoch. A sample is put together when its batch is: the
original joined tables for every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.benchmarks.benchmark import Benchmark, Shapes
from farandole.benchmarks.nt3 import check_fits
from farandole.benchmarks.parameters import Parameters, option
from farandole.benchmarks.samples import Rows, TrainingData
from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.data.candle.p1b3 import P1B3Data, P1B3Settings

__all__ = ["BENCHMARK", "P1B3"]

DENSE = (1000, 500, 100, 50)
POOL = (10,)


@dataclass(kw_only=True, slots=True)
class P1B3(Parameters):
    """P1B3's hyper-parameters. With `conv` there are no dense layers unless `dense` asks for them."""

    learning_rate: float | None = option(0.001, "of one rank alone; None: the optimizer's own")
    dense: tuple[int, ...] | None = option(None, "widths of the dense layers")  # type: ignore[assignment]
    conv: tuple[int, ...] = option((), "filters, width and stride of each convolution")
    pool: tuple[int, ...] = option(POOL, "width of the maximum after each convolution")
    locally_connected: bool = option(False, "convolutions whose weights differ from place to place")
    dropout: float = option(0.1, "fraction of units dropped after a dense layer")
    initialization: str = option("normal", "of the weights; normal: N(0, 0.05)")
    scaling: str = option("std", "of the features", ("maxabs", "minmax", "std", "none"))
    cell_features: tuple[str, ...] = option(("expression",), "any of expression, mirna, proteome; or all")
    drug_features: tuple[str, ...] = option(("descriptors",), "any of descriptors, latent; or all")
    min_logconc: float = option(-5.0, "lowest log concentration to use")
    max_logconc: float = option(-4.0, "highest log concentration to use")
    subsample: str = option("naive_balancing", "thin out rows by growth, or not", ("naive_balancing", "none"))
    feature_subsample: int = option(0, "train on this many features of each set, drawn at random; 0: on all")
    test_cell_split: float = option(
        0.0, "test on this fraction of the training's cell lines; 0: on unseen ones"
    )
    val_split: float = option(0.1, "fraction of the training rows kept for validation")

    def __post_init__(self) -> None:
        if self.dense is None:
            self.dense = () if self.conv else DENSE
        Parameters.__post_init__(self)
        if len(self.conv) % 3 or min(self.conv, default=1) < 1:
            raise SettingsError(
                f"conv={list(self.conv)}: expected filters, width and stride for each convolution"
            )
        if self.conv and (len(self.pool) not in (1, len(self.conv) // 3) or min(self.pool) < 1):
            raise SettingsError(f"pool={list(self.pool)}: expected one width from 1 on, or one after each convolution")
        if not self.conv and (self.locally_connected or self.pool != POOL):
            what = "locally_connected=True" if self.locally_connected else f"pool={list(self.pool)}"
            raise SettingsError(f"{what}: there are no convolutions. Leave it out, or give some, e.g. conv=[10, 10, 5, 10, 10, 5].")

    @property
    def convolutions(self) -> list[tuple[int, int, int, int]]:
        """Filters, width, stride and pooling of each."""
        count = len(self.conv) // 3
        pools = self.pool * count if len(self.pool) == 1 else self.pool
        return list(zip(self.conv[::3], self.conv[1::3], self.conv[2::3], pools))


@dataclass(frozen=True, slots=True)
class GrowthSamples:
    """Some of the samples."""

    data: P1B3Data
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Rows) -> tuple[Any, Any]:
        x, y = self.data.gather(self.rows[rows])
        return x, y[:, None]


def _of_files(parameters: P1B3) -> P1B3Settings:
    from farandole.data.candle.p1b3 import P1B3Settings

    return P1B3Settings(
        cell_features=parameters.cell_features,
        drug_features=parameters.drug_features,
        scaling=parameters.scaling,
        min_logconc=parameters.min_logconc,
        max_logconc=parameters.max_logconc,
        balance=parameters.subsample == "naive_balancing",
        validation=parameters.val_split,
        test_cell_split=parameters.test_cell_split,
        feature_subsample=parameters.feature_subsample,
        feature_seed=parameters.rng_seed,
    )


def roles(parameters: P1B3) -> list[str]:
    from farandole.data.candle.p1b3 import roles as roles_of

    return roles_of(_of_files(parameters))


def expected(parameters: P1B3, shapes: Shapes) -> tuple[int, int]:
    from farandole.data.candle.p1b3 import expected as expected_of

    return expected_of(_of_files(parameters), shapes)


def load(folder: Path, parameters: P1B3) -> TrainingData:
    from farandole.data.candle.p1b3 import load as load_files

    data = load_files(folder, _of_files(parameters))
    return TrainingData(
        train=GrowthSamples(data, data.train),
        validation=GrowthSamples(data, data.validation),
        test=GrowthSamples(data, data.test),
        features=data.features,
        nbytes=data.cells.nbytes + data.drugs.nbytes + 24 * len(data.growth),
    )


def build(parameters: P1B3, data: TrainingData) -> Any:
    import keras
    from keras import layers

    from farandole.benchmarks.layers import dropout, initializer

    model = keras.Sequential([keras.Input((data.features,))], name="p1b3")
    if parameters.conv:
        _add_convolutions(model, parameters, data.features)
    for width in parameters.dense or ():
        model.add(
            layers.Dense(
                width, parameters.activation, kernel_initializer=initializer(parameters.initialization)
            )
        )
        if parameters.dropout:
            model.add(dropout(parameters.dropout))
    model.add(
        layers.Dense(1, parameters.out_activation, kernel_initializer=initializer(parameters.initialization))
    )
    return model


def _add_convolutions(model: Any, parameters: P1B3, features: int) -> None:
    from keras import layers

    from farandole.benchmarks.layers import Conv1D, LocallyConnected1D, convolution_and_pool, initializer

    kind = LocallyConnected1D if parameters.locally_connected else Conv1D
    check_fits(parameters.convolutions, features)
    model.add(layers.Reshape((features, 1)))
    for filters, width, stride, pool in parameters.convolutions:
        convolution = kind(
            filters, width, stride, kernel_initializer=initializer(parameters.initialization)
        )
        for layer in convolution_and_pool(convolution, pool, parameters.activation):
            model.add(layer)
    model.add(layers.Flatten())


def metrics(parameters: P1B3, data: TrainingData) -> list[Any]:
    from farandole.benchmarks.metrics import R2, SignAccuracy

    return [SignAccuracy(), R2(1)]


BENCHMARK = Benchmark(
    name="p1b3",
    title="growth of a cell line under a drug: a dense or convolutional regression",
    parameters=P1B3,
    presets={
        "demo": {"epochs": 4, "learning_rate": 0.01},
        "test": {"dense": (128, 64), "epochs": 6, "optimizer": "adam", "learning_rate": 0.001},
        "paper": {"test_cell_split": 0.15},  # as in CANDLE's own files
    },
    gives_way={"dense": "conv"},
    load=load,
    roles=roles,
    expected=expected,
    build=build,
    loss=lambda parameters: str(parameters.loss),
    metrics=metrics,
    watched="r2",
    parallel="steps",
    lr_scaling="linear",
    enough_epochs=1,
)
