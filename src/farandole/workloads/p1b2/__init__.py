"""P1B2: which of 10 cancer types, from 28,204 SNP features.

    Dense 1024 -> 512 -> 256 sigmoid, L2 of 1e-5 on weights and activities -> Dense 10 sigmoid     29,540,618 parameters

Categorical cross-entropy, as in the original after a sigmoid; RMSprop 0.001, batches of 60, 768 epochs in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from farandole.data.tables import Size, TableSet
from farandole.workloads.cancer_types import labelled_file
from farandole.workloads.parameters import ACTIVATIONS, OPTIMIZERS, SCALINGS, CandleParameters, option
from farandole.workloads.workload import KerasModel, Workload, deferred

__all__ = ["FILES", "P1B2", "WORKLOAD"]


@dataclass(kw_only=True, slots=True)
class P1B2(CandleParameters):
    """P1B2's hyper-parameters."""

    epochs: int = option(768, "passes over the training data, of one rank alone")
    batch_size: int = option(60, "samples a rank takes in a step")
    learning_rate: float | None = option(0.001, "of one rank alone; None: the optimizer's own")
    optimizer: str = option("rmsprop", "which", OPTIMIZERS)
    loss: str = option("categorical_crossentropy", "a Keras loss by name")
    dense: tuple[int, ...] = option((1024, 512, 256), "widths of the dense layers")
    activation: str = option("sigmoid", "of the hidden layers", ACTIVATIONS)
    out_activation: str = option("sigmoid", "of the last layer", ACTIVATIONS)
    scaling: str = option("minmax", "of the features", SCALINGS)
    reg_l2: float = option(1e-5, "penalty on squares of weights and activities of hidden layers")
    val_split: float = option(0.1, "fraction of the training file kept for validation")


FILES = TableSet(
    name="p1b2",
    files={
        "train": labelled_file("P1B2.train.csv", 3_000, 28_204),
        "test": labelled_file("P1B2.test.csv", 1_000, 28_204),
    },
    presets={
        "demo": Size(rows=1_800, test_rows=600, features=2_000),
        "test": Size(rows=1_800, test_rows=600, features=480),
        "paper": Size(rows=3_000, test_rows=1_000, features=28_204),
    },
    least=Size(rows=30, test_rows=10, features=160),
    sheets=deferred("farandole.workloads.p1b2.make:sheets"),
)

WORKLOAD = Workload(
    name="p1b2",
    title="cancer type, from SNPs: a regularised dense network",
    parameters=P1B2,
    presets={
        "demo": {"epochs": 48},
        "test": {"dense": (256, 128, 64), "epochs": 60},
        "paper": {},
    },
    on_request=("paper",),
    files=FILES,
    load=deferred("farandole.workloads.p1b2.data:load"),
    keras=KerasModel(
        build=deferred("farandole.workloads.p1b2.model:build"), metrics=deferred("farandole.workloads.p1b2.model:metrics")
    ),
    watched="accuracy",
    parallel="epochs",
    lr_scaling="linear",
    enough_epochs=16,
    seconds_a_sample={"demo": 4e-4, "test": 1e-4, "paper": 8e-3},
    candle=True,
)
