"""What a study is asked to do: from the command line, or from a TOML file."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError
from farandole.launch.hosts import Host, as_option, parse_hosts
from farandole.optim.scaling import RULES
from farandole.study.points import AUTO, Point, as_name, as_setting, expand, is_launched, usable_cores
from farandole.train.importing import with_keras_backend
from farandole.workloads.finding import find_workload

__all__ = ["KINDS", "REPEATS", "SHORT_S", "StudySettings", "read_toml"]

KINDS = {
    "strong": ("ranks", "emulate_ranks"),
    "weak": ("ranks", "emulate_ranks"),
    "batch": ("batch_size", "batch_scaling"),
    "lr": ("rate", "lr_scaling"),
    "loaders": ("loader",),
}
"""Each kind, and the axes of which it needs one."""
SHORT_S = 120.0
"""A point that takes less is repeated by default."""
REPEATS = 3
_RANKS = ("ranks", "emulate_ranks")
_SPREADING = ("srun", "mpiexec", "mpirun", "aprun", "jsrun", "ibrun")
"""What starts ranks on all nodes of an allocation."""
_EXAMPLES = {
    **dict.fromkeys(("strong", "weak"), "--ranks 1,2,4 or --emulate-ranks 1,48"),
    "batch": "--batches 20,40, or of a workload --ranks 1,2, which varies batch_scaling, the rule by which batches follow the ranks",
    "lr": "--rates 0.001,0.01, or of a workload --ranks 1,2, which varies lr_scaling, the rule by which rates follow the ranks",
}


@dataclass(kw_only=True, slots=True)
class StudySettings:
    """A study: one workload or command, run at every combination of its axes."""

    kind: str
    benchmark: str = ""
    """A workload, as `farandole run` takes it; empty where a command is studied."""
    command: str = ""
    """A user's own program; `{ranks}`, `{batch_size}` and the like are replaced by a point's settings."""
    preset: str = ""
    """Empty: the workload's first."""
    framework: str = "torch"
    title: str = ""
    axes: dict[str, Sequence[Any]] = field(default_factory=dict)
    """What is varied: a list of values for each setting."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What is the same for all points."""
    repeats: int = 0
    """Runs of every point; 0: three where a point takes less than two minutes and no seeds are varied, or else one."""
    threads: int | str = AUTO
    """Of every rank; auto: those of a node over the most ranks that any point has on it, so that ranks are alike in all points."""
    ranks_per_node: int = 0
    """For jobs of a batch system; 0: all ranks on one node."""
    hosts: str = ""
    """Where ranks run, e.g. `a:2,b:2`; empty: on this machine."""
    idle_s: float = 0.0
    """Measure the idle node for so long before the first point; 0: do not."""
    out: Path | None = None
    """The folder of the results; None is one under out/."""
    name: str = field(init=False, default="command")
    """Of the workload."""
    allocated: Sequence[Host] = field(init=False, default=())
    """Hosts of a batch system's allocation in which the study runs, for programs that `farandole launch` starts."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.kind not in KINDS:
            raise SettingsError(f"kind={self.kind!r} is unknown. Use one of {', '.join(KINDS)}.")
        if bool(self.benchmark) == bool(self.command):
            raise SettingsError(
                f"study {self.kind}: name a workload (nt3, my_model.py, ...) or give --command 'python train.py', one of both"
            )
        if self.hosts and self.ranks_per_node:
            raise SettingsError("hosts and ranks_per_node: the hosts' slots say how many ranks each takes; leave the other out")
        if self.hosts and "{ranks}" in self.command:
            raise SettingsError("--hosts and {ranks} in --command: it starts its ranks itself, so it has to name the hosts. Leave one out")
        if self.ranks_per_node and "{ranks}" in self.command and Path(self.command.split()[0]).name not in _SPREADING:
            raise SettingsError(
                "--ranks-per-node and {ranks} in --command: it starts its ranks itself, perhaps all on the first node. Begin it with "
                f"{', '.join(_SPREADING[:-1])} or {_SPREADING[-1]}; or leave {{ranks}} out, and farandole launch starts them on every "
                "node, e.g. --command 'python train.py'; or leave --ranks-per-node out"
            )
        if self.benchmark:
            self._find()
        named = as_name if self.command else as_setting
        self.axes = {",".join(map(named, name.split(","))): _values(name, found) for name, found in self.axes.items()}
        self.settings = {named(name): _plain(name, value) for name, value in self.settings.items()}
        self._vary_rules()
        self._check_axes()
        self.title = self.title or self._title()
        self.out = self.out or Path("out", f"study-{self.kind}-{self.name}")

    def _find(self) -> None:
        with with_keras_backend(self.framework):
            known = find_workload(self.benchmark)
        self.name, self.preset = known.name, self.preset or known.default_preset

    def _check_types(self) -> None:
        """A file may hold anything."""
        for name in ("kind", "benchmark", "command", "preset", "framework", "title", "hosts"):
            if not isinstance(value := getattr(self, name), str):
                raise SettingsError(f"{name}={value!r}: expected text in quotes")
        for name in ("repeats", "ranks_per_node"):
            if type(value := getattr(self, name)) is not int or value < 0:
                raise SettingsError(f"{name}={value!r}: expected a whole number from 1 on, e.g. {name} = 2")
        if self.threads != AUTO and (type(self.threads) is not int or self.threads < 1):
            raise SettingsError(f"threads={self.threads!r}: expected a whole number from 1 on, or auto, e.g. threads = 2")
        if type(self.idle_s) not in (int, float) or not 0 <= self.idle_s < math.inf:
            raise SettingsError(f"idle_s={self.idle_s!r}: expected seconds, e.g. --idle 10, or idle_s = 10")

    def _vary_rules(self) -> None:
        """Ranks alone, in a study of batches or rates of a workload: what can vary is how these follow the ranks."""
        rule = KINDS[self.kind][-1]
        together = [value for axis, values in self.axes.items() if "," in axis for one in values if isinstance(one, list) for value in one[:1]]
        ranks = [value for name in _RANKS for value in (*self.axes.get(name, ()), self.settings.get(name, 1))] + together
        given = {*self.axes} & {*KINDS[self.kind]} or rule in self.settings
        if self.benchmark and not given and rule not in _RANKS and any(count not in (0, 1) for count in ranks):
            self.axes[rule] = list(RULES)

    @property
    def _varied(self) -> list[str]:
        """Settings, one by one, where some vary together."""
        return [name for axis in self.axes for name in axis.split(",")]

    def _check_axes(self) -> None:
        for axis, values in self.axes.items():
            names = axis.split(",")
            if len(names) > 1 and any(not isinstance(value, list) or len(value) != len(names) for value in values):
                raise SettingsError(f"axis {axis}: every value has to be a list of {len(names)}, e.g. {axis} = [[1, 2], [2, 1]]")
        if len({*self._varied}) < len(self._varied):
            raise SettingsError(f"axes {', '.join(self.axes)}: a setting is varied twice; give it under one of them")
        if self.threads != AUTO and "threads" in (*self._varied, *self.settings):
            raise SettingsError(f"threads={self.threads}: an axis or setting has threads already. Leave one out")
        both = sorted({*self._varied} & {*self.settings})
        if both:
            raise SettingsError(f"{', '.join(both)}: fixed and varied at once; give it under one of both")
        own = {"preset", "framework", "work", "output_dir", "nodes", *(["benchmark", "data", "hosts"] if self.benchmark else [])}
        own |= {"hosts"} if self.hosts else set()
        reserved = sorted({*self._varied, *self.settings} & own)
        if reserved:
            raise SettingsError(
                f"{', '.join(reserved)}: not to be given as a setting or axis; kind, benchmark, preset, framework, "
                "hosts and ranks_per_node say it"
            )
        unused = [name for name in (*self._varied, *self.settings) if name not in ("ranks", "threads") and f"{{{name}}}" not in self.command]
        if self.command and unused and self.kind != "loaders":
            raise SettingsError(
                f"--command does not use {', '.join(unused)}: all its points would be the same. Put {{{unused[0]}}} where the "
                "program takes it, or leave it out"
            )
        needed = KINDS[self.kind]
        if not any(name in self._varied for name in needed):
            raise SettingsError(f"study {self.kind} varies {' or '.join(needed)}: give e.g. {_EXAMPLES[self.kind]}")

    def points(self) -> list[Point]:
        """In the order in which they run; SettingsError where one cannot be run."""
        placed = {"hosts": as_option(parse_hosts(self.hosts))} if self.hosts else {}
        points = expand({**self.fixed, **placed, **self._threads()}, self.axes, 1, self._nodes)
        repeats = self.repeats or self._default_repeats(points)
        return [replace(point, repeat=repeat) for repeat in range(repeats) for point in points]

    def _default_repeats(self, points: Sequence[Point]) -> int:
        """As many as the folder's plan has, where it has one: a study that goes on does not change its mind."""
        from farandole.study.estimate import Estimate

        if planned := self._planned():
            return 1 + max(int(point["repeat"]) for point in planned)
        if self.command and self.kind != "loaders":
            return 1  # how long a program takes is known once it has run
        if self.is_repeated:
            return 1
        longest_s = max((Estimate().seconds([point]) for point in points), default=0.0)
        return REPEATS if longest_s < SHORT_S else 1

    @property
    def is_repeated(self) -> bool:
        """Seeds are repeats; of emulated ranks the time says nothing."""
        return len(self.axes.get("seed", ())) > 1 or "emulate_ranks" in (*self._varied, *self.settings)

    def _threads(self) -> dict[str, Any]:
        """The same for all ranks of all points, unless they are an axis or a setting."""
        if "threads" in (*self._varied, *self.settings) or self.kind == "loaders":
            return {}
        if self.threads != AUTO:
            return {"threads": self.threads}
        given = [usable_cores() if count == AUTO else count for count in (*self.axes.get("ranks", ()), self.settings.get("ranks", 1))]
        counts = [count for count in given if type(count) is int and count > 0] or [1]
        return {"threads": self._threads_before() or max(1, usable_cores() // max(self._most_on_a_node(count) for count in counts))}

    def _threads_before(self) -> int:
        """Of the folder's plan, where all of its points have as many: more of them are to be like those."""
        found = {point["settings"].get("threads") for point in self._planned()}
        threads = found.pop() if len(found) == 1 else None
        return threads if isinstance(threads, int) else 0

    def _planned(self) -> list[dict[str, Any]]:
        from farandole.study.folder import StudyFolder

        folder = StudyFolder(self.out) if self.out is not None else None
        return folder.plan()["points"] if folder is not None and folder.exists else []

    def _most_on_a_node(self, ranks: int) -> int:
        """Hosts are filled in the order in which they are named."""
        slots = [host.slots for host in parse_hosts(self.hosts)] if self.hosts else []
        return max((min(slot, ranks) for slot in slots), default=-(-ranks // self._nodes(ranks)))

    def _nodes(self, ranks: int) -> int:
        if self.ranks_per_node:
            return -(-ranks // self.ranks_per_node)
        allocated = self.allocated if is_launched(self.command) else ()
        taken = list(itertools.accumulate(host.slots for host in (parse_hosts(self.hosts) if self.hosts else allocated)))
        if self.hosts and ranks > taken[-1]:
            raise SettingsError(f"{ranks} ranks, and {self.hosts} has room for {taken[-1]}: name more hosts or slots")
        return 1 + sum(ranks > until for until in taken[:-1])

    @property
    def fixed(self) -> dict[str, Any]:
        """What all points have in common, as far as it was given."""
        if self.command:
            return {"command": self.command, **self.settings}
        work = "weak" if self.kind == "weak" else "strong"
        return {
            "benchmark": self.benchmark, "preset": self.preset, "framework": self.framework, "work": work, **self.settings
        }  # fmt: skip

    def _title(self) -> str:
        what = {"strong": "strong scaling", "weak": "weak scaling", "batch": "batch sizes", "lr": "learning rates", "loaders": "loaders compared"}
        name = f"{self.name} ({self.preset})" if self.benchmark else self.command
        return f"{name}: {what[self.kind]}"


def _values(name: str, found: Any) -> list[Any]:
    values = [_plain(name, value) for value in (found if isinstance(found, (list, tuple)) else [found])]
    if not values:
        raise SettingsError(f"axis {name} has no values: give a list, e.g. {name} = [1, 2]")
    if len({repr(value) for value in values}) < len(values):
        raise SettingsError(f"axis {name} has a value twice: {values}")
    return values


def _plain(name: str, value: Any) -> Any:
    """As it is read again from a study's folder."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        raise SettingsError(f"{name}={value!r}: expected numbers, words, or lists of them") from None


def read_toml(path: Path, **over: Any) -> dict[str, Any]:
    """A study file's content, checked for names nobody knows; `over` goes over it."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML: {error}") from error
    known = ["kind", "title", *LOADERS] if content.get("kind") == "loaders" else [one.name for one in fields(StudySettings) if one.init]
    unknown = [name for name in content if name not in known]
    if unknown:
        raise SettingsError(f"{path}: unknown key {', '.join(map(repr, unknown))}; known: {', '.join(sorted(known))}")
    if "kind" not in content:
        raise SettingsError(f"{path}: kind is missing. Use one of {', '.join(KINDS)}.")
    for name in ("axes", "settings"):
        if not isinstance(content.get(name, {}), Mapping):
            raise SettingsError(f"{path}: [{name}] must be a table, e.g.\n[{name}]\nbatch_size = ...")
    if content["kind"] == "loaders":
        _check_loaders(path, content)
    for name in ("out", "data_dir"):
        if name in content:
            content[name] = _path(path, name, content[name])
    content.setdefault("out", Path("out", f"study-{path.stem}"))
    return content | {name: value for name, value in over.items() if value is not None}


def _path(file: Path, name: str, value: Any) -> Path:
    if not isinstance(value, str):
        raise SettingsError(f'{file}: {name}={value!r}: expected a folder in quotes, e.g. {name} = "{name}"')
    return Path(value)


def _check_loaders(path: Path, content: Mapping[str, Any]) -> None:
    if "benchmarks" not in content:
        raise SettingsError(f'{path}: benchmarks is missing. Give a list of workloads, e.g. benchmarks = ["nt3", "p1b2"].')
    for name, (kind, example) in _LISTS.items():
        values = content.get(name, [])
        if not isinstance(values, list) or any(type(value) is not kind for value in values):
            raise SettingsError(f"{path}: {name}={values!r}: expected a list, e.g. {name} = {example}")
    if type(repeats := content.get("repeats", 1)) is not int:
        raise SettingsError(f"{path}: repeats={repeats!r}: expected a whole number, e.g. repeats = 3")


_LISTS = {"benchmarks": (str, '["nt3"]'), "loaders": (str, '["pandas", "fast"]'), "ranks": (int, "[1, 2]")}
LOADERS = ("benchmarks", "preset", "loaders", "ranks", "repeats", "out", "data_dir")
"""Keys of a file whose kind is loaders."""
