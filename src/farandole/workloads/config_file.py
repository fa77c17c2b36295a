"""CANDLE's config files: INI sections whose values are Python literals.

    [Global_Params]
    conv = [128, 20, 1, 128, 10, 1]
    optimizer = 'sgd'

All sections are merged. Values are read as literals and never evaluated. Names that mean nothing here are accepted,
because CANDLE's own files have them: some in any case, others only with the value that switches them off.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError

__all__ = ["ALIASES", "CANDLE_ONLY", "LISTS", "ignored", "literal", "read_config_file", "translated"]

ALIASES = {
    "drop": "dropout",
    "validation_split": "val_split",
    "penalty": "reg_l2",
    "out_act": "out_activation",
    "save": "output_dir",
    "save_path": "output_dir",
    "file_train": "train_data",
    "file_test": "test_data",
    "model_file": "config_file",
    "ckpt_restart_mode": "resume",
    "ckpt_directory": "checkpoint_dir",
    "ckpt_save_interval": "checkpoint_every",
    "ckpt_keep_limit": "checkpoint_keep",
    "ckpt_save_best_metric": "checkpoint_best",
}
"""Older names of the same things."""

WITHOUT_EFFECT = frozenset(
    [
        "base_lr",
        "data_url",
        "data_type",
        "experiment_id",
        "home_dir",
        "instance_directory",
        "logfile",
        "metrics",
        "model_name",
        "one_hot_dtrep",
        "perf_nvidia",
        "perf_top",
        "post_module",
        "pre_module",
        "profiling",
        "run_id",
        "solr_root",
        "use_cp",
        "use_tb",
        "verbose",
        "workers",
        "gpus",
        "ckpt_checksum",
        "restart",
        "label_noise",
        "url_p1b1",
        "feature_col",
        "feature_threshold",
        "std_dev",
        "classes",
        "datatype",
        "category_cutoffs",
    ]
)
"""Of CANDLE's own machinery, or fixed by the files."""

AS_HERE: dict[str, tuple[Any, ...]] = {
    "category_cutoffs": ([0.0], 0.0),
    "data_type": ("f32", "float32"),
    "data_url": ("",),
    "datatype": ("f32", "float32"),
    "gpus": ([],),
    "metrics": ("accuracy", ["accuracy"]),
    "url_p1b1": ("",),
}
"""Those of them that change a training of CANDLE's, with the values that ask for what is done here; None does as well."""

OFF = {
    "add_noise": (False,),
    "alpha_dropout": (False, 0),
    "batch_normalization": (False,),
    "cell_noise_sigma": (0,),
    "noise_correlated": (False,),
    "noise_factor": (0,),
    "noise_gaussian": (False,),
    "residual": (False,),
    "scramble": (False,),
    "tb": (False,),
    "tsne": (False,),
    "use_landmark_genes": (False,),
    "warmup_lr": (False,),
    "cp": (False,),
    "train_bool": (True,),
    "eval_bool": (True,),
    "ckpt_keep_mode": ("linear",),
    "ckpt_skip_epochs": (0,),
    "ckpt_save_weights_only": (False,),
}
"""What exists in CANDLE and not here, with the values that do without it; None does as well."""

LISTS = frozenset(["category_cutoffs", "gpus", "metrics"])
"""Those of which a command line may have several values."""

CANDLE_ONLY = WITHOUT_EFFECT | OFF.keys() | {"ckpt_save_best"}
"""Names that are no setting here."""


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The values of a config file, under its own names."""
    parser = configparser.ConfigParser(interpolation=None, default_section="")  # [DEFAULT] is one like the others
    try:
        with Path(path).open(encoding="utf-8") as file:
            parser.read_file(file)
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise SettingsError(f"{path} is no config file: {error}") from None
    return {
        name: literal(text, f"{path}: [{section}] {name}")
        for section in parser.sections()
        for name, text in parser.items(section)
    }


def ignored(values: Mapping[str, Any]) -> dict[str, Any]:
    """What would change a training of CANDLE's, and changes none here; as JSON has it."""
    found = {name: _plain(values[name]) for name in values if name in AS_HERE and values[name] is not None}
    return {name: value for name, value in found.items() if value not in AS_HERE[name]}


def _plain(value: Any) -> Any:
    """CANDLE's own dictionaries have classes of NumPy's in them."""
    value = getattr(value, "__name__", value)
    return value if isinstance(value, (str, int, float, list)) else repr(value)


def translated(values: Mapping[str, Any], known: Iterable[str], source: str) -> dict[str, Any]:
    """Older names replaced, names without effect left out; others than those in `known` are errors."""
    known = set(known)
    result: dict[str, Any] = {}
    for given, value in _checkpoint_names(values).items():
        name = given if given in known else ALIASES.get(given, given)
        if name in known:
            result[name] = value
        elif name in OFF:
            if value is not None and value not in OFF[name]:
                raise SettingsError(
                    f"{source}: {given}={value!r} is a feature of CANDLE that is not there; leave it out, or set it to "
                    f"{OFF[name][0]!r}"
                )
        elif name not in WITHOUT_EFFECT:
            raise SettingsError(f"{source}: unknown name {given!r}; known: {', '.join(sorted(known))}")
    return result


def _checkpoint_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """CANDLE's settings of checkpoints, where they are given another way here than under another name."""
    result = dict(values)
    save_best = result.pop("ckpt_save_best", None)
    if save_best is False:
        result.pop("ckpt_save_best_metric", None)
    elif save_best:
        result.setdefault("ckpt_save_best_metric", "val_loss")
    return result


def literal(text: str, what: str) -> Any:
    """A Python literal: a number, a quoted text, a list, True, False or None."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise SettingsError(
            f"{what} = {text!r} is no literal; expected e.g. 20, 0.001, 'relu', [200, 20], True or None"
        ) from None
