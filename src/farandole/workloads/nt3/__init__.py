"""NT3: normal or tumor tissue, from the expression of 60,483 genes, by a convolution along the genes.

    Conv 128 x 20 relu -> pool 1 -> Conv 128 x 10 relu -> pool 10 -> Dense 200 relu, dropout 0.1
    -> Dense 20 relu, dropout 0.1 -> Dense 2 softmax            154,922,918 parameters

Categorical cross-entropy, SGD 0.001, batches of 20, 384 epochs in the paper. The rate is divided by 10 when the
validation loss has stood still for 10 epochs. As published, validation is on the test set; `val_split` takes samples from
the training file instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from farandole.data.tables import Size, TableFile, TableSet
from farandole.errors import SettingsError
from farandole.workloads.parameters import ACTIVATIONS, CandleParameters, option
from farandole.workloads.workload import KerasModel, Workload, deferred

__all__ = ["FILES", "NT3", "WORKLOAD"]


@dataclass(kw_only=True, slots=True)
class NT3(CandleParameters):
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
        CandleParameters.__post_init__(self)
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


def _expression(name: str, rows: int) -> TableFile:
    return TableFile(name=name, rows=rows, features=60_483, columns=(0,), header=False)


# The presets. `demo` is small enough for the benchmark's own network to train on a laptop (here at a higher rate). `test` does in
# seconds with a small network: few features, because they are what a step costs, and as many rows as it takes for the test set
# (>= 150 rows) to tell the network from a linear model beyond chance.
FILES = TableSet(
    name="nt3",
    files={"train": _expression("nt_train2.csv", 1_120), "test": _expression("nt_test2.csv", 280)},
    presets={
        "demo": Size(rows=480, test_rows=120, features=600),
        "test": Size(rows=640, test_rows=160, features=400),
        "paper": Size(rows=1_120, test_rows=280, features=60_483),
    },
    least=Size(rows=16, test_rows=4, features=60),
    sheets=deferred("farandole.workloads.nt3.make:sheets"),
)


WORKLOAD = Workload(
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
    on_request=("paper",),
    files=FILES,
    load=deferred("farandole.workloads.nt3.data:load"),
    keras=KerasModel(
        build=deferred("farandole.workloads.nt3.model:build"), metrics=deferred("farandole.workloads.nt3.model:metrics")
    ),
    watched="accuracy",
    parallel="epochs",
    lr_scaling="linear",
    enough_epochs=8,
    seconds_a_sample={"demo": 6e-3, "test": 4e-4, "paper": 2.0},
    candle=True,
)
