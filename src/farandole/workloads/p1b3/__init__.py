"""P1B3: how a cell line grows under a drug, from its genes, the drug's descriptors and the dose.

    dense               29532 -> 1000 -> 500 -> 100 -> 50 -> 1, relu, dropout 0.1          30,088,701 parameters
    conv                two convolutions 10 x 10, stride 5, each with pooling 10 -> 1           1,231
    locally connected   the same with weights that differ from place to place                767,831

Weights N(0, 0.05); squared error, SGD 0.001, batches of 100, 1 epoch. A sample is put together when its batch is: the
original joined tables for every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farandole.data.tables import Size, TableFile, TableSet
from farandole.errors import SettingsError
from farandole.workloads.parameters import SCALINGS, CandleParameters, option
from farandole.workloads.workload import KerasModel, Workload, deferred

__all__ = ["CELL_FEATURES", "DRUG_FEATURES", "FILES", "P1B3", "WORKLOAD"]

CELL_FEATURES = {"expression": ("expressions",), "mirna": ("mirna",), "proteome": ("proteome", "kinome")}
DRUG_FEATURES = {"descriptors": ("descriptors",), "latent": ("latent",)}
"""Sets of features, and the files that make them up."""
DENSE = (1000, 500, 100, 50)
POOL = (10,)


@dataclass(kw_only=True, slots=True)
class P1B3(CandleParameters):
    """P1B3's hyper-parameters. With `conv` there are no dense layers unless `dense` asks for them."""

    learning_rate: float | None = option(0.001, "of one rank alone; None: the optimizer's own")
    dense: tuple[int, ...] | None = option(None, "widths of the dense layers")  # type: ignore[assignment]
    conv: tuple[int, ...] = option((), "filters, width and stride of each convolution")
    pool: tuple[int, ...] = option(POOL, "width of the maximum after each convolution")
    locally_connected: bool = option(False, "convolutions whose weights differ from place to place")
    dropout: float = option(0.1, "fraction of units dropped after a dense layer")
    initialization: str = option("normal", "of the weights; normal: N(0, 0.05)")
    scaling: str = option("std", "of the features", SCALINGS)
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
        CandleParameters.__post_init__(self)
        if len(self.conv) % 3 or min(self.conv, default=1) < 1:
            raise SettingsError(
                f"conv={list(self.conv)}: expected filters, width and stride for each convolution"
            )
        if self.conv and (len(self.pool) not in (1, len(self.conv) // 3) or min(self.pool) < 1):
            raise SettingsError(f"pool={list(self.pool)}: expected one width from 1 on, or one after each convolution")
        if not self.conv and (self.locally_connected or self.pool != POOL):
            what = "locally_connected=True" if self.locally_connected else f"pool={list(self.pool)}"
            raise SettingsError(f"{what}: there are no convolutions. Leave it out, or give some, e.g. conv=[10, 10, 5, 10, 10, 5].")
        self.cell_features = _chosen("cell_features", self.cell_features, CELL_FEATURES)
        self.drug_features = _chosen("drug_features", self.drug_features, DRUG_FEATURES)
        if not self.min_logconc <= self.max_logconc:
            raise SettingsError(f"min_logconc={self.min_logconc} is above max_logconc={self.max_logconc}: no row would be left")
        if not 0 <= self.test_cell_split <= 1:
            raise SettingsError(f"test_cell_split={self.test_cell_split}: expected a fraction from 0 to 1")

    @property
    def convolutions(self) -> list[tuple[int, int, int, int]]:
        """Filters, width, stride and pooling of each."""
        count = len(self.conv) // 3
        pools = self.pool * count if len(self.pool) == 1 else self.pool
        return list(zip(self.conv[::3], self.conv[1::3], self.conv[2::3], pools))


def _chosen(setting: str, names: tuple[str, ...], known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if "all" in names:
        return tuple(known)
    if not names or not set(names) <= set(known):
        raise SettingsError(f"{setting}={names!r}: expected a list of {', '.join(known)}, or ['all']")
    return names


_MISSING = ("na", "-", "")


def _cells(assay: str, features: int, *, rows: int = 60) -> TableFile:
    name = f"P1B3_cellline_{assay}.tsv"
    return TableFile(name=name, rows=rows, features=features, columns=("CellLine",), delimiter="\t", na=_MISSING)


def _listed(name: str, column: str, rows: int) -> TableFile:
    return TableFile(name=name, rows=rows, features=0, columns=(column,))


FILES = TableSet(
    name="p1b3",
    files={
        "dose_response": TableFile(
            name="P1B3_dose_response.csv", rows=2_328_562, features=2, columns=("NSC", "CELLNAME"), na=_MISSING
        ),
        "expressions": _cells("expressions", 25_722),
        "mirna": _cells("mirna", 453),
        "proteome": _cells("proteome", 9_370, rows=59),
        "kinome": _cells("kinome", 390, rows=59),
        "descriptors": TableFile(
            name="P1B3_drug_descriptors.tsv", rows=7_602, features=3_809, columns=("NAME",), delimiter="\t", na=_MISSING
        ),
        "latent": TableFile(name="P1B3_drug_latent.csv", rows=7_202, features=292, columns=("NSC",)),
        "test_celllines": _listed("P1B3_test_celllines.txt", "CELLNAME", 3),
        "test_drugs": _listed("P1B3_test_drugs.txt", "NSC", 666),
    },
    presets={
        "demo": Size(rows=100_000, features=1_000),
        "test": Size(rows=40_000, features=200),
        "paper": Size(rows=2_328_562, features=25_722),
    },
    least=Size(rows=2_000, features=20),
    sheets=deferred("farandole.workloads.p1b3.make:sheets"),
    compared=("dose_response", "expressions", "descriptors"),  # the tallest, the widest and the largest
)

WORKLOAD = Workload(
    name="p1b3",
    title="growth of a cell line under a drug: a dense or convolutional regression",
    parameters=P1B3,
    presets={
        "demo": {"epochs": 4, "learning_rate": 0.01},
        "test": {"dense": (128, 64), "epochs": 6, "optimizer": "adam", "learning_rate": 0.001},
        "paper": {"test_cell_split": 0.15},  # as in CANDLE's own files
    },
    gives_way={"dense": "conv"},
    on_request=("paper",),
    files=FILES,
    load=deferred("farandole.workloads.p1b3.data:load"),
    roles=deferred("farandole.workloads.p1b3.data:roles"),
    expected=deferred("farandole.workloads.p1b3.data:expected"),
    keras=KerasModel(
        build=deferred("farandole.workloads.p1b3.model:build"), metrics=deferred("farandole.workloads.p1b3.model:metrics")
    ),
    watched="r2",
    figures={"sign_accuracy": "accuracy"},
    parallel="steps",
    lr_scaling="linear",
    enough_epochs=1,
    seconds_a_sample={"demo": 1e-4, "test": 5e-5, "paper": 5e-3},
    candle=True,
)
