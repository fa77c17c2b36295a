"""What a benchmark consists of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.benchmarks.parameters import Parameters
from farandole.benchmarks.samples import TrainingData

__all__ = ["Benchmark", "Shapes"]

Shapes = Mapping[str, tuple[int, int]]
"""Rows and features of each file, by its role."""


def _expected(parameters: Parameters, shapes: Shapes) -> tuple[int, int]:
    """Of files that have the same features to train and to test on."""
    features = parameters.feature_subsample or shapes["train"][1]
    return features, 4 * features * sum(rows for rows, _ in shapes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """Data, model and metrics, and how the papers parallelise it."""

    name: str
    title: str
    parameters: type[Parameters]
    presets: Mapping[str, Mapping[str, Any]]
    """What each preset changes of the parameters' defaults."""
    gives_way: Mapping[str, str] = field(default_factory=dict)
    """Parameters that a preset sets only where another one is not given."""
    load: Callable[[Path, Any], TrainingData]
    """From the files in a folder. Collective where farandole runs on several ranks."""
    roles: Callable[[Any], Collection[str] | None] = lambda parameters: None
    """Which of its files it reads; None: all."""
    expected: Callable[[Any, Shapes], tuple[int, int]] = _expected
    """Features and `nbytes` of what `load` will give, from what is known of the files before they are read."""
    build: Callable[[Any, TrainingData], Any]
    """The Keras model, not compiled."""
    loss: Callable[[Any], str]
    metrics: Callable[[Any, TrainingData], list[Any]]
    """Keras metrics whose states are sums, so that those of several ranks can be added up."""
    watched: str
    """The metric by which runs are compared; larger is better."""
    parallel: str
    """What ranks divide: `epochs`, or the `steps` of each."""
    lr_scaling: str
    """How the rate follows the number of ranks."""
    enough_epochs: int
    """Below this many epochs a rank the papers found the result to suffer."""

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What preset `name` changes where `given` is asked for besides."""
        return {one: value for one, value in self.presets[name].items() if not given.get(self.gives_way.get(one, ""))}
