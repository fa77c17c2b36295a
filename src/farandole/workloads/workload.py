"""What a workload consists of: parameters, data, and a Keras model or a torch module, or both.

    WORKLOAD = Workload(
        name="spirals",
        title="two spirals told apart: a small dense network",
        parameters=Spirals,                                   # derives from Parameters
        load=load,                                            # (parameters, folder) -> TrainingData
        torch=TorchModel(build=build, loss=cross_entropy),    # (parameters, data) -> torch.nn.Module
    )

`farandole run my_model.py` trains it on any number of ranks. docs/workloads.md explains how to write one.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.data.tables import Shapes, TableSet
from farandole.errors import SettingsError
from farandole.workloads.parameters import Parameters, check_kinds, kinds
from farandole.workloads.samples import TrainingData

__all__ = ["APIS", "KerasModel", "TorchModel", "Workload", "deferred"]

APIS = ("keras", "torch")
PARALLEL = ("epochs", "steps")


def deferred(reference: str) -> Callable[..., Any]:
    """The function `module:name`, imported when it is first called: knowing a workload loads no framework."""
    module, name = reference.split(":")

    def found() -> Any:
        return getattr(importlib.import_module(module), name)

    def call(*values: Any, **named: Any) -> Any:
        return found()(*values, **named)

    call.__name__, call.__doc__ = name, f"{reference}."
    call.__dict__["found"] = found
    return call


def _expected(parameters: Any, shapes: Shapes) -> tuple[int, int]:
    """Of files that have the same features to train and to test on."""
    features = getattr(parameters, "feature_subsample", 0) or shapes["train"][1]
    return features, 4 * features * sum(rows for rows, _ in shapes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class KerasModel:
    """A model that Keras trains, on torch, TensorFlow or JAX."""

    build: Callable[[Any, TrainingData], Any]
    """(parameters, data) -> a Keras model, not compiled."""
    loss: Any = None
    """A Keras loss: its name, or a function of targets and outputs. None: the parameter `loss` names it."""
    metrics: Callable[[Any, TrainingData], list[Any]] = lambda parameters, data: []
    """(parameters, data) -> Keras metrics. Their states must be sums, so that several ranks' can be added."""
    optimizer: Callable[[Any, float], Any] | None = None
    """(parameters, rate) -> a Keras optimizer. None: the parameter `optimizer` names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchModel:
    """A plain torch module, or several, that our loop trains."""

    build: Callable[[Any, TrainingData], Any]
    """(parameters, data) -> a `torch.nn.Module`, or a dictionary of several by name."""
    loss: Callable[[Any, Any], Any] | None = None
    """(outputs, targets) -> one number, the mean over the samples of a batch."""
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """By name: (outputs, targets) -> one value per sample. Runs report the mean."""
    optimizer: Callable[[Any, Any, float], Any] | None = None
    """(parameters, module, rate) -> a torch optimizer. None: the parameter `optimizer` names it."""
    train_step: Callable[[Any], Mapping[str, Any]] | None = None
    """A training step of your own, for several modules or losses; it gets a `farandole.workloads.torch_batch.TorchBatch`."""
    test_step: Callable[[Any], Mapping[str, Any]] | None = None
    """The same for validation and test: loss and metrics of a batch, without steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Parameters, data and model, and how ranks share the training."""

    name: str
    """A word, used for folders, tables and pages."""
    title: str = ""
    """What it learns, in a line."""
    parameters: type[Parameters] = Parameters
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    """By name, the defaults each preset changes. The first is the default preset."""
    gives_way: Mapping[str, str] = field(default_factory=dict)
    """A preset sets the first of two parameters only if the user has not given the second."""
    load: Callable[..., TrainingData]
    """(parameters, folder) -> samples. Every rank calls it, and must get the same data."""
    prepare: Callable[[Any, Path], None] | None = None
    """(parameters, folder): runs once before any rank loads, for a download or an unpacking."""
    folder_optional: bool = False
    """Whether `load` makes data of its own where nobody names a folder, for which it gets None."""
    files: TableSet | None = None
    """Tables in a known layout, of which `farandole data make` writes synthetic ones."""
    on_request: Collection[str] = ()
    """Presets whose missing files are made only with --make-data."""
    roles: Callable[[Any], Collection[str] | None] = lambda parameters: None
    """parameters -> which of `files` are read. None: all."""
    expected: Callable[[Any, Shapes], tuple[int, int]] = _expected
    """(parameters, shapes of files) -> features and bytes of what `load` will return, known before files are read."""
    keras: KerasModel | None = None
    torch: TorchModel | None = None
    watched: str = "loss"
    """The metric by which runs are compared: `loss` (smaller is better), or another (larger is better)."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Further columns of tables, by the metric they show: {"sign_accuracy": "accuracy"}."""
    parallel: str = "steps"
    """What ranks divide: `steps` of each epoch, or `epochs`, each over all the data."""
    lr_scaling: str = "linear"
    """How the learning rate follows the number of ranks: linear, sqrt, cbrt or none."""
    enough_epochs: int = 1
    """With fewer epochs per rank the result is known to suffer; the run then warns."""
    seconds_a_sample: Mapping[str, float] = field(default_factory=dict)
    """By preset, seconds of a training step per sample on one core: how a study estimates its time."""
    candle: bool = False
    """Whether it accepts the names of CANDLE's config files and command lines."""

    def __post_init__(self) -> None:
        try:
            self._check()
        except SettingsError as error:
            raise SettingsError(f"workload {self.name!r}: {error}") from None

    def _check(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", self.name):
            raise SettingsError('name: expected a word of letters, digits, - and _, e.g. "spirals"')
        if self.keras is None and self.torch is None:
            raise SettingsError("it has no model. Give keras=KerasModel(build=...) or torch=TorchModel(build=..., loss=...).")
        if self.torch is not None and not (self.torch.loss or self.torch.train_step):
            raise SettingsError("TorchModel has neither a loss nor a train_step. Give loss=torch.nn.functional.cross_entropy, for one.")
        check_kinds(self.parameters)
        if not self.presets:
            raise SettingsError('presets are empty. Leave them out, or give e.g. {"small": {}, "full": {"epochs": 90}}.')
        known = kinds(self.parameters)
        for preset, values in self.presets.items():
            if unknown := [name for name in values if name not in known]:
                raise SettingsError(f"preset {preset!r} sets {', '.join(unknown)}: no parameter; known: {', '.join(sorted(known))}")
        if self.keras is not None and self.keras.loss is None and "loss" not in known:
            raise SettingsError('KerasModel has no loss. Give loss="mse", for one, or parameters with a field `loss`.')
        if self.parallel not in PARALLEL:
            raise SettingsError(f"parallel={self.parallel!r} is unknown. Use one of {', '.join(PARALLEL)}.")

    @property
    def apis(self) -> tuple[str, ...]:
        """keras, torch, or both; the first is the default."""
        return tuple(api for api in APIS if getattr(self, api) is not None)

    @property
    def default_preset(self) -> str:
        return next(iter(self.presets))

    def check_preset(self, name: str) -> None:
        if name not in self.presets:
            raise SettingsError(f"preset={name!r} is unknown. Use one of {', '.join(self.presets)}.")

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What preset `name` changes if the user has given `given`."""
        return {one: value for one, value in self.presets[name].items() if not given.get(self.gives_way.get(one, ""))}
