"""Hyper-parameters: typed fields with a word of help each.

    @dataclass(kw_only=True)
    class Mine(Parameters):
        epochs: int = option(20, "passes over the training data")
        width: int = option(64, "units of the hidden layer")

Values come from presets, config files (`config_file.py`) and command lines, each over the one before; `parameters_from` puts
them into the types the fields have.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from farandole.errors import SettingsError

__all__ = [
    "ACTIVATIONS", "OPTIMIZERS", "SCALINGS", "CandleParameters", "Parameters", "check_kinds", "converted", "kinds", "option", "parameters_from",
]  # fmt: skip

OPTIMIZERS = ("sgd", "rmsprop", "adam", "adagrad", "adadelta", "adamax", "nadam", "lars")
SCALINGS = ("maxabs", "minmax", "std", "none")
ACTIVATIONS = (
    "celu", "elu", "exponential", "gelu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "linear",
    "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softmax", "softplus", "softsign",
    "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "swish", "tanh", "tanh_shrink",
)  # fmt: skip
"""Those of Keras 3.15, known here so that a wrong one is refused before ranks have loaded Keras."""

Known = TypeVar("Known", bound="Parameters")


def option(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    """A field with what `--help` says of it."""
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices})


@dataclass(kw_only=True, slots=True)
class Parameters:
    """What every workload has."""

    epochs: int = option(1, "passes over the training data, of one rank alone")
    batch_size: int = option(100, "samples a rank takes in a step")
    learning_rate: float | None = option(None, "of one rank alone; None: the optimizer's own")
    optimizer: str = option("sgd", "which", OPTIMIZERS)
    shuffle: bool = option(True, "another order of the samples in every epoch")
    rng_seed: int = option(2017, "of initial weights, orders and dropout")
    reduce_lr: bool = option(False, "divide the rate by 10 when the validation loss has stood still for 10 epochs")
    train_steps: int = option(0, "at most this many steps in an epoch; 0: all")
    val_steps: int = option(0, "at most this many batches of validation on a rank; 0: all")
    test_steps: int = option(0, "at most this many batches of test on a rank; 0: all")
    timeout: int = option(-1, "end training with the epoch in which this many seconds have passed; -1: never")

    def __post_init__(self) -> None:
        self._at_least(1, "epochs", "batch_size")
        self._at_least(0, "train_steps", "val_steps", "test_steps", "rng_seed")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise SettingsError(f"learning_rate={self.learning_rate}: expected a number above 0, e.g. 0.001")
        for name, kind in _fields(type(self)).items():
            choices, value = kind.metadata.get("choices"), getattr(self, name)
            if choices and value not in choices:
                raise SettingsError(f"{name}={value!r} is unknown. Use one of {', '.join(choices)}.")

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise SettingsError(f"{name}={getattr(self, name)}: expected {least} or more")

    def as_dict(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in _fields(type(self))}


@dataclass(kw_only=True, slots=True)
class CandleParameters(Parameters):
    """What CANDLE's benchmarks have besides."""

    loss: str = option("mse", "a Keras loss by name")
    dense: tuple[int, ...] = option((), "widths of the dense layers")
    activation: str = option("relu", "of the hidden layers", ACTIVATIONS)
    out_activation: str = option("linear", "of the last layer", ACTIVATIONS)
    dropout: float = option(0.0, "fraction of units dropped after a dense layer")
    initialization: str = option("glorot_uniform", "of the weights; normal: N(0, 0.05)")
    scaling: str = option("maxabs", "of the features", SCALINGS)
    feature_subsample: int = option(0, "train on this many features, drawn at random; 0: on all")

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        self._at_least(0, "feature_subsample")
        if any(width < 1 for width in self.dense):
            raise SettingsError(f"dense={list(self.dense)}: expected widths of 1 or more, e.g. [200, 20]")
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"dropout={self.dropout}: expected a fraction from 0 to below 1, e.g. 0.1")
        if (penalty := getattr(self, "reg_l2", 0.0)) < 0:
            raise SettingsError(f"reg_l2={penalty}: expected 0 or more, e.g. 0.00001")
        kept = getattr(self, "val_split", None)
        if kept is not None and kept != _fields(type(self))["val_split"].default and not 0 < kept < 1:
            raise SettingsError(f"val_split={kept}: expected a fraction between 0 and 1, e.g. 0.1")


def _fields(cls: type[Parameters]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)}


def kinds(cls: type[Any]) -> dict[str, Any]:
    """The type of each field."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def check_kinds(cls: type[Any]) -> None:
    """Refuse a class that is none of parameters, or has fields of types that no command line can give."""
    if not (isinstance(cls, type) and issubclass(cls, Parameters)):
        raise SettingsError(f"parameters={cls!r}: expected a class that derives from farandole.workloads.Parameters")
    try:
        known = kinds(cls)
    except Exception as error:
        raise SettingsError(f"{cls.__name__}: the types of its fields cannot be told: {error}") from error
    for name, kind in known.items():
        if not _is_plain_kind(kind):
            told = getattr(kind, "__name__", None) or str(kind)
            raise SettingsError(
                f"{cls.__name__}.{name} is of type {told}: expected int, float, bool, str, a tuple of one of them such as "
                "tuple[int, ...], or one of these | None"
            )


def _is_plain_kind(kind: Any) -> bool:
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return len(parts) == 2 and parts[1] is Ellipsis and parts[0] in _WORDS
    if type(None) in parts:
        rest = [part for part in parts if part is not type(None)]
        return len(rest) == 1 and _is_plain_kind(rest[0])
    return kind in _WORDS


def parameters_from(cls: type[Known], values: Mapping[str, Any]) -> Known:
    """Of class `cls`, with defaults for what `values` does not name; an unknown name lists the known ones."""
    known = kinds(cls)
    unknown = [name for name in values if name not in known]
    if unknown:
        raise SettingsError(
            f"unknown hyper-parameter {', '.join(map(repr, unknown))}; known: {', '.join(sorted(known))}"
        )
    return cls(**{name: converted(name, known[name], value) for name, value in values.items()})


def converted(name: str, kind: Any, value: Any) -> Any:
    """A literal in the type of its field; an error that says what was expected."""
    parts = typing.get_args(kind)
    if type(None) in parts:
        if value is None:
            return None
        kind = next(part for part in parts if part is not type(None))
    if typing.get_origin(kind) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(converted(name, typing.get_args(kind)[0], item) for item in items)
    if kind is float and type(value) is int:
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is bool and value in (0, 1):
        return bool(value)
    if not isinstance(value, kind) or (type(value) is bool) != (kind is bool):
        raise SettingsError(f"{name}={value!r}: expected {_WORDS.get(kind, kind.__name__)}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a name"}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
