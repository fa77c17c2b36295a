"""The points of a study: every combination of its axes, each a run with settings of its own.

A point is known by a hash of its settings, so that a study that is typed again finds what it has measured already.
Names are those of `farandole run`, but for two short ones: `rate` (learning_rate) and `seed` (rng_seed).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farandole.errors import FarandoleError, SettingsError
from farandole.launch.allocation import allocated_hosts
from farandole.launch.hosts import Host, all_local, parse_hosts
from farandole.results.cases import described
from farandole.results.numbers import count
from farandole.workloads.config_file import ALIASES, CANDLE_ONLY

if TYPE_CHECKING:
    from farandole.train.settings import RunSettings

__all__ = [
    "AUTO", "LONG", "OWN", "Point", "as_name", "as_setting", "expand", "is_crowded", "is_here", "is_launched", "program_words", "resolved",
    "run_settings", "run_words", "usable_cores", "warning_of",
]  # fmt: skip

AUTO = "auto"
"""For `ranks`, where they emulate others: as many as there are cores for, and as divide those."""
LONG = {"rate": "learning_rate", "seed": "rng_seed"}
"""Our word for a setting, and the run's."""
_SHORT = {long: short for short, long in LONG.items()}
_RATE = "rate"
"""None is the optimizer's own, not the preset's; of other settings it is what the run does by itself."""
_RANKS = ("ranks", "nodes")
_THREADS = "threads"
OWN = (*_RANKS, "hosts", "data")
"""Settings of a point that are no settings of a run.

`data` says which data it is, wherever that lies: on other files it is measured anew.

Hosts that somebody has named, with their slots, are a part of what is measured: on other machines, or with other ranks on each,
it is measured anew. Those that a batch system chooses, new ones for every job, are not: there `nodes` says how ranks are divided.
"""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_TOLD = (
    "benchmark", "preset", "framework", "epochs", "batch_size", "learning_rate", "rng_seed", "parallel", "work",
    "lr_scaling", "batch_scaling", "emulate_ranks", "warmup_epochs", "loader", "threads",
)  # fmt: skip
"""What is kept of every run's settings, whether given or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One run of a study."""

    settings: Mapping[str, Any]
    repeat: int = 0
    key: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or _key_of(self.settings))

    @property
    def name(self) -> str:
        return f"{self.key}-{self.repeat}"

    def as_dict(self) -> dict[str, Any]:
        return {"key": self.key, "settings": dict(self.settings), "repeat": self.repeat}


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def is_here(settings: Mapping[str, Any], hosts: str) -> bool:
    """Whether all ranks of a point are on this machine, whose cores and meters then tell of them."""
    return settings["nodes"] == 1 and all_local(_hosts_of(settings, hosts)[:1])


def _hosts_of(settings: Mapping[str, Any], hosts: str) -> list[Host]:
    """Those on which the ranks of a point are started, the first ones first; empty: on this machine."""
    if hosts:
        return parse_hosts(hosts)
    return allocated_hosts(os.environ) if is_launched(settings.get("command", "")) else []


def is_launched(command: str) -> bool:
    """Whether `farandole launch` starts the ranks of a program, and so on an allocation's hosts where there is one."""
    return bool(command) and "{ranks}" not in command


def is_crowded(settings: Mapping[str, Any], hosts: str) -> bool:
    """More threads than cores; of other machines nobody here knows."""
    return is_here(settings, hosts) and settings["ranks"] * (settings.get(_THREADS) or 1) > usable_cores()


def warning_of(crowded: Iterable[Mapping[str, Any]]) -> str:
    """What to say of points with more threads than cores."""
    told = dict.fromkeys(f"{one['ranks']} x {one.get(_THREADS) or 1}" for one in crowded)
    return (
        f"warning: {', '.join(told)} ranks x threads on {count(usable_cores(), 'core')}: oversubscribed, and marked so; such times say "
        "nothing of ranks with a core for every thread"
    )


def _key_of(settings: Mapping[str, Any]) -> str:
    """12 hex digits."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def as_name(word: str) -> str:
    """The study's name for a setting, whichever was given."""
    return _SHORT.get(word, word)


def as_setting(word: str) -> str:
    """The same where it is one of `farandole run`, which takes older names as well."""
    return as_name(ALIASES.get(word, word))


def expand(
    fixed: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    repeats: int,
    nodes_of: Callable[[int], int] = lambda ranks: 1,
) -> list[Point]:
    """All combinations; the first axis varies slowest, but repeats slowest of all, so that no case has one bad hour.

    `nodes_of` says on how many nodes so many ranks are.
    """
    combinations = [{**fixed, **_together(axes, values)} for values in itertools.product(*axes.values())]
    settings = [_resolved(found, nodes_of) for found in combinations]
    keys = [_key(found, given) for found, given in zip(settings, combinations)]
    return [Point(settings=found, repeat=repeat, key=key) for repeat in range(repeats) for found, key in zip(settings, keys)]


def _together(axes: Iterable[str], values: Sequence[Any]) -> dict[str, Any]:
    """An axis may be of several settings that vary together: `ranks,threads` has pairs for values."""
    found: dict[str, Any] = {}
    for axis, value in zip(axes, values):
        names = axis.split(",")
        found |= dict(zip(names, value)) if len(names) > 1 else {axis: value}
    return found


def _key(settings: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Of what was asked for: on another machine `auto` is other ranks, which train the same."""
    return _key_of({**settings, **dict.fromkeys(_RANKS, AUTO)} if given.get("ranks") == AUTO else settings)


def _resolved(given: Mapping[str, Any], nodes_of: Callable[[int], int]) -> dict[str, Any]:
    ranks = given.get("ranks", 1)
    if ranks == AUTO and given.get("emulate_ranks"):
        ranks = _dividing(given["emulate_ranks"])
    if type(ranks) is not int or ranks < 1:
        raise SettingsError(f"ranks={ranks!r}: expected whole numbers from 1 on, e.g. --ranks 1,2,4")
    placed = {name: given[name] for name in ("hosts", "data") if name in given}
    own = {"ranks": ranks, "nodes": nodes_of(ranks), **placed}
    rest = {name: value for name, value in given.items() if name not in OWN}
    if "command" in rest:
        program_words(own | rest)
        return own | rest
    try:
        found = own | resolved(rest, ranks)
        return found if "data" in found else found | {"data": _data_of(found)}
    except FarandoleError as error:
        raise SettingsError(f"{described(own | rest, given)}: {error}") from error


def _data_of(settings: Mapping[str, Any]) -> str:
    """Of the files it trains on, and of the file that a user's workload is written in."""
    from farandole.data.identity import data_identity, folder_identity
    from farandole.workloads.finding import source_of

    run = run_settings(settings)
    if run.workload.files is None:
        found = folder_identity(run.data_folder)
    else:
        found = data_identity(run.workload.files, run.data_folder, run.workload.roles(run.parameters), run.preset)
    return "-".join(filter(None, (found, source_of(run.benchmark))))


def run_settings(settings: Mapping[str, Any], **over: Any) -> RunSettings:
    """Of a point that runs a workload."""
    from farandole.train.settings import RunSettings

    return RunSettings.from_flat({LONG.get(name, name): value for name, value in settings.items() if name not in OWN} | over)


def _dividing(emulated: Any) -> int:
    """The most ranks that there are cores for and that share `emulated` ones equally."""
    if type(emulated) is not int or emulated < 1:
        raise SettingsError(f"emulate_ranks={emulated!r}: expected whole numbers from 1 on, e.g. --emulate-ranks 1,48")
    return max(n for n in range(1, usable_cores() + 1) if emulated % n == 0)


def program_words(settings: Mapping[str, Any]) -> list[str]:
    """The user's program, with the point's settings in place of their names in braces."""
    try:
        words = shlex.split(settings["command"])
    except ValueError as error:
        raise SettingsError(f"--command {settings['command']}: {error}. Quote it as for a shell.") from None
    if not words:
        raise SettingsError("--command is blank: give a program, e.g. --command 'python train.py'")
    return [_PLACEHOLDER.sub(lambda match: _filled(match, settings), word) for word in words]


def _filled(match: re.Match[str], settings: Mapping[str, Any]) -> str:
    if match[1] not in settings:
        if match[1] == "python":
            return sys.executable
        known = ", ".join(name for name in settings if name not in ("command", "nodes"))
        raise SettingsError(f"--command: {match[0]} is no setting of the study; there are {known}")
    return str(settings[match[1]])


def resolved(given: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """A run's settings, with the defaults that matter; SettingsError where `farandole run` would refuse them."""
    from farandole.train.plan import check_ranks
    from farandole.train.settings import FILES, RunSettings, plain_values

    useless = [name for name in given if name in (*FILES, *CANDLE_ONLY - {"ckpt_save_best"})]
    if useless:
        raise SettingsError(f"{', '.join(useless)}: CANDLE has it, and here it changes nothing of a run. Leave it out of the study.")
    values = plain_values({LONG.get(name, name): value for name, value in given.items()})
    values.pop("output_dir", None)  # a config file's; every point has a folder of its own
    settings = RunSettings.from_flat(values)
    check_ranks(settings, ranks)
    flat = settings.as_flat()
    chosen = ["api"] if settings.workload.apis != ("keras",) else []
    return {as_name(name): flat[name] for name in dict.fromkeys((*_TOLD, *chosen, *values))}


def run_words(settings: Mapping[str, Any]) -> list[str]:
    """The options of `farandole run` that make a point, without -n."""
    words = [str(settings["benchmark"])]
    for name, value in settings.items():
        if name in (*OWN, "benchmark", "work") or value == "" or (value is None and name != _RATE):
            continue
        words += _option(f"--{LONG.get(name, name)}".replace("_", "-"), value)
    return [*words, f"--{settings['work']}"]


def _option(option: str, value: Any) -> list[str]:
    if option == "--make-data":
        return [option] if value else []
    if isinstance(value, (list, tuple)) and value:
        return [option, *map(str, value)]
    return [option, str(value)]  # an empty list as []
