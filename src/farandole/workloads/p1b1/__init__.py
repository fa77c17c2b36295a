"""P1B1: gene expression squeezed through a narrow layer and restored.

    ae     60483 -> 2000 -> 600 -> 2 -> 600 -> 2000 -> 60483, relu, sigmoid at the end       244,400,085 parameters
    vae    the latent values drawn from N(mean, exp(log variance)); loss: mean of cross-entropy + KL / inputs  244,401,287
    cvae   as vae, with the cancer type one-hot beside the inputs and beside the latent values  + 2,600 a type

Squared error (ae), Adam 0.001, batches of 100, 384 epochs in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from farandole.data.tables import Size, TableSet
from farandole.errors import SettingsError
from farandole.workloads.cancer_types import labelled_file
from farandole.workloads.parameters import ACTIVATIONS, OPTIMIZERS, SCALINGS, CandleParameters, option
from farandole.workloads.workload import KerasModel, Workload, deferred

__all__ = ["FILES", "P1B1", "WORKLOAD"]

MODELS = ("ae", "vae", "cvae")
CROSS_ENTROPY = "binary_crossentropy"


@dataclass(kw_only=True, slots=True)
class P1B1(CandleParameters):
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
    scaling: str = option("minmax", "of the features", SCALINGS)
    val_split: float = option(0.1, "fraction of the training file kept for validation")

    def __post_init__(self) -> None:
        CandleParameters.__post_init__(self)
        self._at_least(1, "latent_dim")
        if self.model != "ae" and self.scaling != "minmax":
            raise SettingsError(
                f"scaling={self.scaling!r}: the cross-entropy of {self.model} needs minmax, values in [0, 1]"
            )
        if self.model != "ae" and self.loss not in ("mse", CROSS_ENTROPY):  # mse: of CANDLE's files for all three
            raise SettingsError(
                f"loss={self.loss!r}: {self.model} has a loss of its own, {CROSS_ENTROPY} and KL. Leave it out, or use model=ae."
            )
        if self.model != "ae":
            self.loss = CROSS_ENTROPY


FILES = TableSet(
    name="p1b1",
    files={
        "train": labelled_file("P1B1.dev.train.csv", 3_000, 60_483),
        "test": labelled_file("P1B1.dev.test.csv", 1_000, 60_483),
    },
    presets={
        "demo": Size(rows=900, test_rows=300, features=2_000),
        "test": Size(rows=600, test_rows=200, features=400),
        "paper": Size(rows=3_000, test_rows=1_000, features=60_483),
    },
    least=Size(rows=20, test_rows=7, features=20),
    sheets=deferred("farandole.workloads.p1b1.make:sheets"),
)

WORKLOAD = Workload(
    name="p1b1",
    title="gene expression through a bottleneck of 2: an autoencoder",
    parameters=P1B1,
    presets={
        "demo": {"epochs": 48},
        # With relu one of the two latent values may be 0 for ever, and a network this small does not recover.
        "test": {"dense": (200, 100), "activation": "elu", "batch_size": 50, "epochs": 80},
        "paper": {},
    },
    on_request=("paper",),
    files=FILES,
    load=deferred("farandole.workloads.p1b1.data:load"),
    keras=KerasModel(
        build=deferred("farandole.workloads.p1b1.model:build"), metrics=deferred("farandole.workloads.p1b1.model:metrics")
    ),
    watched="correlation",
    parallel="epochs",
    lr_scaling="linear",
    enough_epochs=4,
    seconds_a_sample={"demo": 1e-3, "test": 1e-4, "paper": 0.12},
    candle=True,
)
