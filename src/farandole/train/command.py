"""`farandole run`: a workload from its files to a trained and judged model."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import itertools
import json
import os
import shlex
import sys
import time
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import SettingsError
from farandole.optim.scaling import RULES
from farandole.train.checkpoints import RESUME
from farandole.train.importing import with_keras_backend
from farandole.train.preparing import prepare
from farandole.train.rank.running import is_first, is_first_of_node, run_as_rank
from farandole.train.settings import FRAMEWORKS, LOADERS, RunSettings
from farandole.workloads.config_file import ALIASES, CANDLE_ONLY, LISTS, literal
from farandole.workloads.finding import find_workload, is_reference, workload_names
from farandole.workloads.parameters import kinds
from farandole.workloads.workload import APIS, PARALLEL, Workload

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_run"]

_EXAMPLES = """\
examples:
  farandole run nt3 -n 2                                half a minute on two cores, the first time longer; the data is made on the fly
  farandole run nt3 --help                              its parameters
  farandole run p1b2 -n 4 --preset test --parallel steps
  farandole run nt3 -n 2 --threads 1                    each rank computes with one thread, as -n 1 --threads 1 does
  farandole run nt3 -n 2 --emulate-ranks 16             the accuracy 16 ranks would have
  farandole run nt3 -n 8 --preset paper --data-dir DIR  the real files, the papers' sizes
  farandole run nt3 -n 2 --restarts 3 --output-dir run1   checkpoints; started again by itself, or by the same command
  farandole run nt3 --config_file nt3_default_model.txt --epochs 8 --batch_size 20
  farandole run --new my_model.py                       a model and data of your own: write a file to begin with
  farandole run my_model.py -n 2                        and train it
  farandole run --list

Under mpiexec, srun or `farandole launch` it is one of the ranks there are, and -n is left out.
"""
_SHORT = {"epochs": "-e", "batch_size": "-z", "learning_rate": "-lr"}


class _RunParser(argparse.ArgumentParser):
    """Learns the parameters of the workload that was typed before it reads the words."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words: Sequence[str] = sys.argv[1:] if args is None else args
        if (reference := self._workload_in(words)) is not None:
            with with_keras_backend(next((word for last, word in itertools.pairwise(words) if last == "--framework"), FRAMEWORKS[0])):
                _add_parameters(self, find_workload(reference))
        found, unknown = super().parse_known_args(args, namespace)
        options = [word for word in unknown if word.startswith("-")]
        if options:
            self.error(f"unknown option {options[0]}.{self._nearest(options[0])} To see all options, type: farandole run {reference or 'NAME'} --help")
        return found, unknown

    def _workload_in(self, words: Sequence[str]) -> str | None:
        """The first word that names one and is no value of an option."""
        before = ["", *words]
        return next((word for last, word in zip(before, words) if is_reference(word) and not self._takes_value(last)), None)

    def _takes_value(self, word: str) -> bool:
        action = self._option_string_actions.get(word)
        return action is not None and action.nargs is None

    def _nearest(self, option: str) -> str:
        shown = [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        close = difflib.get_close_matches(option.partition("=")[0], shown, n=1)
        return f" Did you mean {close[0]}?" if close else ""


def add_run(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "run", help="train a workload, from files to accuracy",
        description="Train a workload, one of ours or your own, and say what each phase cost and how good the model is.",
        usage="farandole run NAME [-n N] [options] [parameters of NAME]",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )  # fmt: skip
    verb.__class__ = _RunParser
    _add_run_options(verb)
    verb.set_defaults(run=_run)


def _add_run_options(verb: argparse.ArgumentParser) -> None:
    add, default = verb.add_argument, argparse.SUPPRESS
    # fmt: off
    add("benchmark", nargs="?", metavar="NAME",
        help=f"{', '.join(workload_names())}, a file such as my_model.py:WORKLOAD, or a module such as package.module:WORKLOAD")
    add("-n", "--ranks", type=int, metavar="N", help="ranks to start here; default: 1")
    add("--threads", type=int, metavar="T",
        help="threads a rank computes with; default: OMP_NUM_THREADS, or its share of the cores. Give it where runs on other numbers of "
             "ranks are compared: without, one rank has all cores and two have half each")
    add("-H", "--hosts", metavar="a:2,b:2", help="start them on these hosts, so many on each; folders must be the same there")
    add("--hostfile", type=Path, metavar="FILE", help="hosts from a file, one a line: `a slots=2`")
    add("--list", action="store_true", help="show the workloads and their presets")
    add("--new", type=Path, metavar="FILE.py", help="write a workload of your own to begin with (--api keras: with a Keras model)")
    add("--preset", metavar="P", help="how large; default: the workload's first, see --list")
    add("--api", choices=APIS, help="train the workload's Keras model or its plain torch module, where it has both")
    add("--framework", choices=FRAMEWORKS, help="what Keras computes with; default: torch")
    add("--data-dir", type=Path, metavar="DIR", help="where the files are; default: out/data/NAME-PRESET")
    add("--make-data", action="store_true", help="make missing files, also those of a preset that is as large as the papers' (others are made anyway)")
    add("--loader", choices=LOADERS, help="what reads the files; default: our reader with its cache (fast-cached)")
    add("--output-dir", "--output_dir", "-s", "--save_path", "--save", type=Path, metavar="DIR",
        help="the run directory; default: out/NAME-TIME")
    add("--power", action="store_true", help="sample every node's power: power.json, and curves on the timeline")
    add("--no-page", dest="page", action="store_false", default=default, help="write no report.html")
    add("--json", action="store_true", help="print run.json alone on standard output")
    add("--parallel", choices=PARALLEL, help="what ranks divide: epochs, or the steps of each; default: as in the papers")
    how = verb.add_mutually_exclusive_group()
    how.add_argument("--strong", dest="work", action="store_const", const="strong", default=default,
                     help="N ranks do together what one does alone (default)")
    how.add_argument("--weak", dest="work", action="store_const", const="weak", default=default,
                     help="each rank does what one does alone")
    add("--lr-scaling", choices=tuple(RULES), help="how the rate follows the ranks; default: as in the papers")
    add("--batch-scaling", choices=tuple(RULES), help="how a rank's batch follows the ranks; default: none")
    add("--warmup-epochs", type=int, metavar="E", help="epochs over which the rate grows from that of one rank")
    add("--emulate-ranks", type=int, metavar="N", help="train as N ranks would, on the ranks there are")
    add("--checkpoint-every", "--ckpt_save_interval", metavar="WHEN",
        help="save a checkpoint every 5 (epochs), 100steps, 600s, 10m, or auto: as often as loses least; default: never, or 1 "
             "where another option of checkpoints is given")
    add("--checkpoint-dir", "--ckpt_directory", type=Path, metavar="DIR", help="their folder; default: in the run directory")
    add("--checkpoint-keep", "--ckpt_keep_limit", type=int, metavar="K", help="how many of the newest stay; default: 3")
    add("--checkpoint-best", "--ckpt_save_best_metric", metavar="METRIC", help="the best by this metric stays, too, e.g. val_loss")
    add("--resume", "--ckpt_restart_mode", choices=RESUME,
        help="auto: go on from the newest checkpoint where there is one (default); required: refuse to begin without; off: refuse "
             "to begin where there are any")
    add("--restarts", type=int, metavar="K", help="start again up to K times from the newest checkpoint when ranks die")
    add("--time-limit", type=float, metavar="S", help="before S seconds have passed, save a checkpoint and end with exit code 0")
    add("--config_file", "--config-file", "--model_file", type=Path, metavar="FILE", help="a config file of CANDLE's")
    # fmt: on


def _add_parameters(verb: argparse.ArgumentParser, known: Workload) -> None:
    names = "under CANDLE's names (- or _)" if known.candle else "- or _ in their names"
    group = verb.add_argument_group(f"parameters of {known.name}, {names}")
    types = kinds(known.parameters)
    for field in dataclasses.fields(known.parameters):
        kind, older = types[field.name], [f"--{alias}" for alias, meant in ALIASES.items() if meant == field.name and known.candle]
        flags = list(dict.fromkeys([f"--{field.name}", f"--{field.name.replace('_', '-')}", *older]))
        short = [_SHORT[field.name]] if field.name in _SHORT else []
        counted: dict[str, Any] = {"nargs": "+"} if _is_list(kind) else {"nargs": "?", "const": "True"} if kind is bool else {}
        try:
            group.add_argument(*short, *flags, dest=f"parameter_{field.name}", metavar="X", help=_help(field), **counted)
        except argparse.ArgumentError:
            raise SettingsError(
                f"workload {known.name!r}: `farandole run` has an option --{field.name}: give the parameter another name."
            ) from None
    for name in sorted(CANDLE_ONLY | {"train_data", "test_data"}) if known.candle else ():
        count: dict[str, Any] = {"nargs": "*"} if name in LISTS else {"nargs": "?", "const": "True"}
        verb.add_argument(*(["-v"] if name == "verbose" else []), f"--{name}", dest=f"candle_{name}", help=argparse.SUPPRESS, **count)


def _help(field: dataclasses.Field[Any]) -> str:
    text, choices = field.metadata.get("help", ""), field.metadata.get("choices")
    default = "" if field.default in (dataclasses.MISSING, None) else f"default: {_typed(field.default)}"
    return "; ".join(filter(None, [text + (f": {', '.join(choices)}" if choices else ""), default])).replace("%", "%%")


def _typed(value: Any) -> str:
    return " ".join(map(str, value)) or "[]" if isinstance(value, tuple) else str(value)


def _is_list(kind: Any) -> bool:
    return any(_is_tuple(part) for part in (kind, *typing.get_args(kind)))


def _run(options: argparse.Namespace) -> int:
    given = vars(options)
    if given.get("list"):
        print(_listing())
        return 0
    if "new" in given:
        return _write_new(given["new"], given.get("api", "torch"))
    as_rank = _is_rank()
    try:
        settings = _settings(given, as_rank)
    except SettingsError:
        if as_rank and not is_first_of_node():
            return 2  # the first one tells
        raise
    repeat = sys.argv[1:]
    if settings.checkpoint_every and settings.output_dir is None:
        settings.output_dir = _new_folder(settings.workload.name)
        repeat = [*repeat, "--output-dir", str(settings.output_dir)]
    folder = settings.output_dir = settings.output_dir or _new_folder(settings.workload.name)
    stream = sys.stderr if given.get("json") else sys.stdout
    code = _as_rank(settings, stream) if as_rank else _on_new_ranks(settings, folder, given, stream, repeat)
    if code == 0 and (not as_rank or is_first()):
        _show(folder, given, repeat)
    return code


def _settings(given: dict[str, Any], as_rank: bool) -> RunSettings:
    if "benchmark" not in given:
        values = [word for value in given.values() for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
        taken = next((f"{value} was taken for a value of an option: begin with it. " for value in values if is_reference(value)), "")
        raise SettingsError(
            f"which workload? {taken}Type e.g. farandole run nt3 -n 2. There are {', '.join(workload_names())}, and yours: farandole run my_model.py"
        )
    settings = RunSettings.from_flat(_values(given))
    if "restarts" in given or "time_limit" in given:
        settings.checkpoint_every = settings.checkpoint_every or "1"
    if as_rank:
        _refuse_launching(given)
    return settings


def _refuse_launching(given: dict[str, Any]) -> None:
    for name, option in (("ranks", "-n"), ("hosts", "--hosts"), ("hostfile", "--hostfile"), ("restarts", "--restarts"), ("time_limit", "--time-limit")):
        if name in given:
            raise SettingsError(
                f"{option}: the ranks are there already, started by mpiexec, srun or `farandole launch`. Leave it out."
            )
    if "power" in given:
        raise SettingsError("--power: the ranks are there already. Start them with `farandole launch --timeline FILE --power`.")


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """Settings and hyper-parameters as `RunSettings.from_flat` takes them."""
    names = {field.name for field in dataclasses.fields(RunSettings)} | {"config_file"}
    values = {name: value for name, value in given.items() if name in names}
    values |= {
        name.removeprefix("candle_"): _candle_value(text) for name, text in given.items() if name.startswith("candle_")
    }
    known = kinds(find_workload(given["benchmark"]).parameters)
    for name, text in given.items():
        if name.startswith("parameter_"):
            parameter = name.removeprefix("parameter_")
            values[parameter] = _value(parameter, known.get(parameter), text)
    return values


def _value(name: str, kind: Any, text: Any) -> Any:
    """What was typed, in its type; names need no quotes."""
    if isinstance(text, list):
        item = next(
            (typing.get_args(part)[0] for part in (kind, *typing.get_args(kind)) if _is_tuple(part)), int
        )
        values = [_value(name, item, word) for word in text]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values
    if kind is str:
        return text
    return literal(text.capitalize() if kind is bool else text, f"--{name}")


def _candle_value(text: str | list[str]) -> Any:
    """Of a name that only CANDLE has: a literal, or a name without quotes; of several words a list."""
    if isinstance(text, list):
        return _candle_value(text[0]) if len(text) == 1 else [_candle_value(word) for word in text]
    try:
        return literal(text.capitalize() if text in ("true", "false") else text, "")
    except SettingsError:
        return text


def _is_tuple(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def _is_rank() -> bool:
    """Whether mpiexec, srun or `farandole launch` has started this process as one of its ranks."""
    sizes = [
        os.environ.get(name, "") for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    ]
    return "FARANDOLE_LAUNCHED" in os.environ or any(size.isdecimal() and int(size) > 1 for size in sizes)


def _new_folder(name: str) -> Path:
    return Path("out", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def _as_rank(settings: RunSettings, stream: Any) -> int:
    return run_as_rank(settings.as_flat(), began=time.perf_counter(), stream=stream)


def _on_new_ranks(settings: RunSettings, folder: Path, given: dict[str, Any], stream: Any, repeat: list[str]) -> int:
    from farandole.launch.allocation import choose_hosts
    from farandole.launch.hosts import total_slots
    from farandole.train.launching import launch_run

    hosts = choose_hosts(given.get("hosts"), given.get("hostfile"), {})
    ranks = int(given.get("ranks", total_slots(hosts) or 1))
    if ranks < 1:
        raise SettingsError(f"-n {ranks}: how many ranks? Type e.g. -n 2.")
    prepare(settings, ranks)
    return launch_run(
        settings, ranks, folder, hosts=hosts, stream=stream, repeat=repeat, power="power" in given, restarts=given.get("restarts", 0),
        time_limit_s=given.get("time_limit"),
    )  # fmt: skip


def _show(folder: Path, given: dict[str, Any], repeat: list[str]) -> None:
    from farandole.train.launching import read_record
    from farandole.train.table import table

    if not (folder / "run.json").is_file():  # it has ended early, with a checkpoint
        go_on = shlex.join(["farandole", *repeat])
        print(f"farandole: not finished yet. To go on, type: {go_on}", file=sys.stderr)
        if given.get("json"):
            print(json.dumps({"finished": False, "go_on": go_on}))
        return
    record, page = read_record(folder), given["pages"](folder) if given.get("page", True) else None
    if given.get("json"):
        print(json.dumps(record, indent=1))
        return
    print(f"\n{table(record)}\n")
    for kind, name in record["files"].items():
        if name is not None:
            print(f"{kind:<10}{folder / name}")
    if page is not None:
        print(f"{'page':<10}{page}")


def _write_new(path: Path, api: str) -> int:
    from farandole.workloads.skeleton import write_skeleton

    write_skeleton(path, api)
    print(f"{path} is a workload. To train it, type: farandole run {path} -n 2")
    return 0


def _listing() -> str:
    lines: list[str] = []
    for name in workload_names():
        try:
            known = find_workload(name)
        except SettingsError as error:
            lines.append(f"{name}  {error}")
            continue
        lines.append(f"{name}  {known.title}")
        lines += [f"  {preset:<6}{_size(known, preset)}" for preset in known.presets]
    return "\n".join([*lines, "yours: farandole run my_model.py; to write one, type: farandole run --new my_model.py"])


def _size(known: Workload, preset: str) -> str:
    parameters = known.parameters(**known.presets[preset])
    size = known.files.presets[preset] if known.files and preset in known.files.presets else None
    shape = "" if size is None else f"{size.rows:>10,} rows  {size.features:>7,} features  "
    return f"{shape}{parameters.epochs:>4} epochs  batch {parameters.batch_size:<4} {parameters.optimizer}"
