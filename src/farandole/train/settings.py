"""What `farandole run` is asked to do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.data.loaders import CACHED
from farandole.data.loaders import LOADERS as OTHER_LOADERS
from farandole.data.tables import TableSet
from farandole.errors import SettingsError
from farandole.optim.scaling import RULES
from farandole.results.runs import training_api
from farandole.train.checkpoints import FOLDER, RESUME, kept, parsed_when
from farandole.train.importing import with_keras_backend
from farandole.workloads.config_file import ignored, read_config_file, translated
from farandole.workloads.finding import find_workload
from farandole.workloads.parameters import Parameters, converted, kinds, parameters_from
from farandole.workloads.workload import PARALLEL, Workload

__all__ = ["FILES", "FRAMEWORKS", "LOADERS", "WORK", "RunSettings", "plain_values"]

FRAMEWORKS = ("torch", "tensorflow", "jax")
LOADERS = (CACHED, *OTHER_LOADERS)
WORK = ("strong", "weak")


@dataclass(kw_only=True, slots=True)
class RunSettings:
    """A run: a workload with its hyper-parameters, and how ranks share the work."""

    benchmark: str
    """The workload, as people type it: a name, a file such as my_model.py:WORKLOAD, or a module."""
    preset: str = ""
    """Which of the workload's presets. Empty: its first."""
    api: str = ""
    """What trains it: keras, or torch for a plain torch module. Empty: the first that the workload has."""
    framework: str = "torch"
    """What Keras computes with."""
    data_dir: Path | None = None
    """The folder of the files; None is one of the preset's own."""
    make_data: bool = False
    """Make files that are missing, also those of presets that are made on request alone."""
    loader: str = CACHED
    """What reads the files: our reader with its cache, or, to compare, another one."""
    output_dir: Path | None = None
    """The run directory; None keeps nothing."""
    parallel: str = ""
    """What ranks divide: epochs, each with all the data, or the steps of each epoch. Empty: as in the papers."""
    work: str = "strong"
    """strong: N ranks do together what one does alone; weak: each of them does."""
    lr_scaling: str = ""
    """How the rate follows the number of ranks. Empty: as in the papers."""
    batch_scaling: str = "none"
    """How a rank's batch follows the number of ranks."""
    warmup_epochs: int = 0
    """Epochs over which the rate grows from that of one rank."""
    threads: int = 0
    """Threads a rank computes with; 0: as the launcher gives, which is OMP_NUM_THREADS or the rank's share of the cores."""
    emulate_ranks: int = 0
    """Train as this many ranks would; 0: as the ranks there are."""
    checkpoint_every: str = ""
    """How often to save a checkpoint: 5 (epochs), 100steps, 600s, 10m, auto. Empty: never."""
    checkpoint_dir: Path | None = None
    """Their folder; None is one in the run directory."""
    checkpoint_keep: int = 3
    """How many of the newest stay."""
    checkpoint_best: str = ""
    """The metric by which the best one stays as well, e.g. val_loss. Empty: none does."""
    resume: str = "auto"
    """auto: go on from the newest checkpoint where there is one; required: refuse to begin without; off: refuse to begin with,
    whether this run makes any or not."""
    parameters: Parameters
    """The workload's hyper-parameters."""
    ignored: dict[str, Any] = field(default_factory=dict)
    """What was given, would change a training of CANDLE's, and changes none here."""
    workload: Workload = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = self.workload = find_workload(self.benchmark)
        self.parallel = self.parallel or known.parallel
        self.lr_scaling = self.lr_scaling or known.lr_scaling
        self.preset = self.preset or known.default_preset
        known.check_preset(self.preset)
        self._check_api()
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise SettingsError(
                    f"{name}={getattr(self, name)!r} is unknown. Use one of {', '.join(choices)}."
                )
        for name in ("warmup_epochs", "emulate_ranks", "threads"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name}={getattr(self, name)}: expected 0 or more")
        if self.checkpoint_dir or self.checkpoint_best or self.resume == "required":
            self.checkpoint_every = self.checkpoint_every or "1"
        if self.checkpoint_every:
            parsed_when(self.checkpoint_every)
        kept(self.checkpoint_keep, self.checkpoint_best)
        if self.preset in known.on_request and self.data_dir is None and not self.make_data:
            raise SettingsError(
                f"preset={self.preset} needs the files of {known.name}: type --data-dir DIR for those you have, or --make-data "
                "for synthetic ones of the same size."
            )

    def _check_api(self) -> None:
        there = self.workload.apis
        self.api = self.api or there[0]
        if self.api not in there:
            raise SettingsError(f"api={self.api!r}: {self.workload.name} has a model for {' and '.join(there)}. Use api={there[0]}, or leave it out.")
        if self.api == "torch" and self.framework != "torch":
            raise SettingsError(f"framework={self.framework}: a plain torch module is trained by torch alone. Leave it out, or use api=keras.")

    @classmethod
    def from_flat(cls, given: Mapping[str, Any]) -> RunSettings:
        """From one dictionary of settings and hyper-parameters, as CANDLE's supervisors pass it.

        A preset's hyper-parameters are overridden by those of `config_file`, and these by the others.
        """
        known = _workload_of(given)
        of_run, of_model = _settings_kinds(), kinds(known.parameters)
        values = plain_values(given)
        preset = str(values.get("preset") or known.default_preset)
        known.check_preset(preset)
        if "checkpoint_keep" in values or values.get("resume", "off") != "off":
            values.setdefault("checkpoint_every", "1")  # whoever says which stay wants them, as with the other settings
        model = {name: value for name, value in values.items() if name in of_model}
        run = {
            name: converted(name, of_run[name], _path(of_run[name], v))
            for name, v in values.items()
            if name in of_run
        }
        parameters = parameters_from(known.parameters, known.preset(preset, model) | model)
        return cls(**run, parameters=parameters, ignored=_ignored(given) if known.candle else {})

    def as_flat(self) -> dict[str, Any]:
        """What `from_flat` takes, in plain values."""
        run = {name: getattr(self, name) for name in _settings_kinds()}
        plain = {k: str(v) if isinstance(v, Path) else v for k, v in run.items()}
        return plain | self.parameters.as_dict() | self.ignored

    @property
    def trained_by(self) -> str:
        return str(training_api({"benchmark": self.benchmark, "framework": self.framework, "api": self.api}))

    @property
    def tables(self) -> TableSet:
        """The workload's files, where it has any."""
        assert self.workload.files is not None
        return self.workload.files

    @property
    def checkpoint_place(self) -> Path | None:
        """Where checkpoints are, whether this run makes any or not; None where it has no folder at all."""
        return self.checkpoint_dir or (self.output_dir and self.output_dir / FOLDER)

    @property
    def checkpoint_folder(self) -> Path | None:
        """None where no checkpoints are made."""
        return self.checkpoint_place if self.checkpoint_every else None

    @property
    def makes_data(self) -> bool:
        return self.make_data or self.preset not in self.workload.on_request

    @property
    def data_folder(self) -> Path:
        return self.data_dir or Path("out", "data", f"{self.workload.name}-{self.preset}")


FILES = ("train_data", "test_data")
"""Names of CANDLE's that are compared with those of the files here, and say nothing else."""


def plain_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `from_flat` takes, under the names of the fields here; those of `config_file` below the others."""
    known = _workload_of(given)
    names = {*_settings_kinds(), *kinds(known.parameters), "config_file", *FILES}
    values: dict[str, Any] = {}
    for source, found in _sources(given).items():
        values |= translated(found, names, source)
    values.pop("config_file", None)
    _check_files(known, values)
    if "framework" in values:
        values["framework"] = _framework(values["framework"])
    if values.get("checkpoint_every") in (0, "0"):  # CANDLE's default
        del values["checkpoint_every"]
    if type(values.get("checkpoint_every")) is int:  # of epochs, where it need not be text
        values["checkpoint_every"] = str(values["checkpoint_every"])
    return {name: value for name, value in values.items() if name not in FILES}


def _workload_of(given: Mapping[str, Any]) -> Workload:
    """An error names parameters that `farandole run` would not tell from its own settings."""
    with with_keras_backend(str(given.get("framework") or FRAMEWORKS[0])):
        known = find_workload(str(given.get("benchmark", "")))
    taken = sorted(_settings_kinds().keys() & kinds(known.parameters).keys())
    if taken:
        raise SettingsError(f"workload {known.name!r}: `farandole run` has a setting {taken[0]!r}: give the parameter another name.")
    return known


def _sources(given: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The values of `config_file` and those beside it, which go over them."""
    file = given.get("config_file") or given.get("model_file")
    return ({str(file): read_config_file(file)} if file else {}) | {"settings": given}


def _ignored(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for values in _sources(given).values():
        found |= values
    return ignored(found)


def _check_files(known: Workload, values: Mapping[str, Any]) -> None:
    """CANDLE's files go by fixed names here, in a folder of the user's choice: others are not passed over in silence."""
    there = [file.name for file in known.files.files.values()] if known.files else []
    for option in FILES:
        if option in values and values[option] not in there:
            reads = f"reads {', '.join(there)}. Put them into one folder and type" if there else "has no such files. Its data is in"
            raise SettingsError(f"{option}={values[option]!r}: {known.name} {reads} --data-dir DIR.")


def _framework(given: Any) -> Any:
    """By the names of CANDLE's supervisors, too: `keras` is what it is loaded with in this process, or else the default."""
    if given == "keras":
        loaded = sys.modules.get("keras")
        return FRAMEWORKS[0] if loaded is None else loaded.backend.backend()
    return "torch" if given == "pytorch" else given


_CHOICES = {
    "framework": FRAMEWORKS,
    "loader": LOADERS,
    "parallel": PARALLEL,
    "work": WORK,
    "lr_scaling": tuple(RULES),
    "batch_scaling": tuple(RULES),
    "resume": RESUME,
}


def _settings_kinds() -> dict[str, Any]:
    return {name: kind for name, kind in kinds(RunSettings).items() if name not in ("parameters", "ignored", "workload")}


def _path(kind: Any, value: Any) -> Any:
    is_path = Path in getattr(kind, "__args__", ())
    return Path(value) if is_path and isinstance(value, str) else value
