"""What a workload consists of: parameters, data, and a Keras model or a torch module, or both.

    WORKLOAD = Workload(
        name="spirals",
        title="two spirals told apart: a small dense network",
        parameters=Spirals,                                   # derives from Parameters
        load=load,                                            # (parameters, folder) -> TrainingData
        torch=TorchModel(build=build, loss=cross_entropy),    # (parameters, data) -> torch.nn.Module
    )

`farandole run my_model.py` trains it on any number of ranks. docs/workloads.md tells how to write one.
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

    def call(*values: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*values, **named)

    call.__name__, call.__doc__ = name, f"{reference}."
    return call


def _expected(parameters: Any, shapes: Shapes) -> tuple[int, int]:
    """Of files that have the same features to train and to test on."""
    features = getattr(parameters, "feature_subsample", 0) or shapes["train"][1]
    return features, 4 * features * sum(rows for rows, _ in shapes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class KerasModel:
    """A model that Keras trains, on torch, TensorFlow or JAX."""

    build: Callable[[Any, TrainingData], Any]
    """From parameters and data to a Keras model that is not compiled."""
    loss: Any = None
    """A Keras loss: its name, or a function of targets and outputs. None: the parameter `loss` names it."""
    metrics: Callable[[Any, TrainingData], list[Any]] = lambda parameters, data: []
    """From parameters and data to Keras metrics whose states are sums, so that those of several ranks can be added up."""
    optimizer: Callable[[Any, float], Any] | None = None
    """From parameters and a rate to a Keras optimizer; None: the parameter `optimizer` names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchModel:
    """A plain torch module, or several, that our loop trains."""

    build: Callable[[Any, TrainingData], Any]
    """From parameters and data to a `torch.nn.Module`, or to a dictionary of several by name."""
    loss: Callable[[Any, Any], Any] | None = None
    """From what the module gives and targets to one number: the mean over the samples of a batch."""
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """By name, from what the module gives and targets to one value for each sample; what is told is their mean."""
    optimizer: Callable[[Any, Any, float], Any] | None = None
    """From parameters, a module and a rate to a torch optimizer; None: the parameter `optimizer` names it."""
    train_step: Callable[[Any], Mapping[str, Any]] | None = None
    """What is done with a batch where it is not one module and one loss, see `farandole.train.torch_loop.Turn`."""
    test_step: Callable[[Any], Mapping[str, Any]] | None = None
    """The same for validation and test: the loss and metrics of a batch, each one value a sample or a mean over them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Parameters, data and model, and how ranks share the training."""

    name: str
    """A word: of folders, tables and pages."""
    title: str = ""
    """What it learns, in a line."""
    parameters: type[Parameters] = Parameters
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    """What each preset changes of the parameters' defaults; the first one is taken where none is named."""
    gives_way: Mapping[str, str] = field(default_factory=dict)
    """Parameters that a preset sets only where another one is not given."""
    load: Callable[..., TrainingData]
    """From parameters and the data's folder to samples; every rank calls it, all together."""
    prepare: Callable[[Any, Path], None] | None = None
    """What is done once before any rank loads, such as a download: from parameters and the data's folder."""
    files: TableSet | None = None
    """Tables with a layout that is known, of which `farandole data make` writes synthetic ones."""
    on_request: Collection[str] = ()
    """Presets for which files that are missing are made only where somebody says so."""
    roles: Callable[[Any], Collection[str] | None] = lambda parameters: None
    """Which of `files` are read; None: all."""
    expected: Callable[[Any, Shapes], tuple[int, int]] = _expected
    """Features and `nbytes` of what `load` will give, from what is known of `files` before they are read."""
    keras: KerasModel | None = None
    torch: TorchModel | None = None
    watched: str = "loss"
    """The metric by which runs are compared: a loss, where smaller is better, or another, where larger is."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Other metrics that tables tell, by their names there: {"sign_accuracy": "accuracy"}."""
    parallel: str = "steps"
    """What ranks divide: the `steps` of each epoch, or `epochs`, each with all the data."""
    lr_scaling: str = "linear"
    """How the rate follows the number of ranks."""
    enough_epochs: int = 1
    """Below this many epochs a rank the result is known to suffer."""
    seconds_a_sample: Mapping[str, float] = field(default_factory=dict)
    """By preset, about how long a training step takes for each sample on one core: what a study guesses its time by."""
    candle: bool = False
    """Whether it takes names that only CANDLE's config files and command lines have."""

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
        """What can train it; the first one does where nobody says."""
        return tuple(api for api in APIS if getattr(self, api) is not None)

    @property
    def default_preset(self) -> str:
        return next(iter(self.presets))

    def check_preset(self, name: str) -> None:
        if name not in self.presets:
            raise SettingsError(f"preset={name!r} is unknown. Use one of {', '.join(self.presets)}.")

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What preset `name` changes where `given` is asked for besides."""
        return {one: value for one, value in self.presets[name].items() if not given.get(self.gives_way.get(one, ""))}
