"""The options of `farandole study strong|weak|batch|lr` and of study files, and what is done with them."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import SettingsError
from farandole.study.points import AUTO
from farandole.train.settings import FRAMEWORKS
from farandole.workloads.finding import workload_names

if TYPE_CHECKING:
    from farandole.study.folder import StudyFolder
    from farandole.study.settings import StudySettings
    from farandole.study.submit import JobSettings

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_how", "add_kinds", "numbers", "run_file", "run_kind", "run_loaders"]

_KINDS = {
    "strong": "the same work on more and more ranks",
    "weak": "as much work for every rank, on more and more ranks",
    "batch": "batch sizes; with only --ranks: compare the rules that scale the batch",
    "lr": "learning rates; with only --ranks: compare the rules that scale the rate",
}
_AXES = {"ranks": "ranks", "emulate_ranks": "emulate_ranks", "batches": "batch_size", "rates": "rate", "seeds": "seed"}
"""Options that hold lists, and the settings they are of."""


def add_kinds(
    actions: Verbs, *, run_kind: Callable[[argparse.Namespace], int], run_file: Callable[[argparse.Namespace], int]
) -> None:
    for kind, text in _KINDS.items():
        action = actions.add_parser(
            kind, help=text, description=f"Study {text}.", usage=f"farandole study {kind} NAME|--command 'CMD' [options]", allow_abbrev=False
        )
        _add_what(action)
        add_how(action)
        action.set_defaults(run=run_kind, kind=kind)
    action = actions.add_parser(
        "file", help="FILE.toml: a study file; see studies/", description="Run a study file.", usage="farandole study FILE.toml [options]",
        allow_abbrev=False,
    )  # fmt: skip
    action.add_argument("file", type=Path, metavar="FILE.toml")
    add_how(action)
    action.set_defaults(run=run_file)


def _add_what(action: argparse.ArgumentParser) -> None:
    add = action.add_argument
    # fmt: off
    add("benchmark", nargs="?", default="", metavar="NAME", help=f"{', '.join(workload_names())}, or yours: my_model.py")
    add("--command", default="", metavar="'CMD'", help="a program of your own instead; {ranks} and other settings are filled in")
    add("--ranks", metavar="1,2,4", help="how many ranks; 1x8,2x4,8x1: ranks x threads, e.g. one process with all cores against several")
    add("--emulate-ranks", metavar="1,8,48", help="train as so many ranks would, on the ranks there are")
    add("--batches", metavar="20,40", help="batch size per rank")
    add("--rates", metavar="0.001,0.01", help="learning rates of one rank")
    add("--seeds", metavar="1,2,3", help="of weights, orders and dropout")
    add("--vary", action="append", default=[], metavar="NAME=a,b", help="any other setting of `farandole run`, varied")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="any setting of `farandole run`, fixed")
    add("--framework", choices=FRAMEWORKS, help="what Keras computes with; default: torch")
    add("--title", help="of table and page")
    # fmt: on


def add_how(action: argparse.ArgumentParser, *, of_runs: bool = True) -> None:
    """Of every study; without `of_runs`, of one whose points train nothing."""
    add = action.add_argument
    # fmt: off
    add("--preset", metavar="P", help=f"how large; default: {'the first of the workload' if of_runs else 'test'}")
    add("--repeats", type=int, metavar="R", help="runs of every point; default: 3 where a point takes less than 2 minutes, else 1")
    add("--out", type=Path, metavar="DIR", help="the study's folder; default: one under out/")
    add("--dry-run", action="store_true", help="show the points and an estimate, run nothing")
    add("--mixed-versions", action="store_true", help="go on although results were made with other versions of packages")
    if not of_runs:
        action.set_defaults(power=False, scalars=None, submit=None, time=None, directive=[])
        return
    add("--threads", metavar="T", help="threads of every rank; default: a node's cores / the most ranks on it, the same at all points")
    add("-H", "--hosts", metavar="a:2,b:2", help="start ranks on these hosts, so many on each; default: here")
    add("--power", action=argparse.BooleanOptionalAction, default=True, help="sample this node's power; on unless --no-power")
    add("--idle", dest="idle_s", type=float, metavar="S", help="measure the idle node for S seconds first; also report energy above idle")
    add("--scalars", metavar="WHERE", help="afterwards, every epoch's figures for tensorboard, mlflow or wandb")
    add("--submit", metavar="SYSTEM", help="write scripts for sbatch, pbs or lsf instead of running")
    add("--ranks-per-node", type=int, metavar="K", help="for --submit, or within an allocation; default: all ranks on one node")
    add("--time", metavar="HH:MM:SS", help="for --submit: the limit of a job, or D-HH:MM:SS; default: 1 h")
    add("--directive", action="append", default=[], metavar="'WORDS'", help="for --submit: a further line, e.g. '--partition=short'")
    # fmt: on


def run_kind(options: argparse.Namespace) -> int:
    from farandole.study.settings import StudySettings

    axes = _axes(options)
    varied = {name: _list(f"--vary {name}", text) for name, text in map(_pair, options.vary)}
    fixed = {name: _literal(text) for name, text in map(_pair, options.set)}
    asked = {name: getattr(options, name) for name in ("preset", "framework", "repeats", "ranks_per_node", "hosts", "idle_s", "out")}
    given = {name: value for name, value in (asked | _threads(options)).items() if value is not None}
    _check_repeats(given)
    _check_program(options.command, given)
    study = StudySettings(
        kind=options.kind, benchmark=options.benchmark, command=options.command, title=options.title or "",
        axes={name: values for name, values in axes.items() if values} | varied, settings=fixed, **given,
    )  # fmt: skip
    return _perform(study, options)


def _axes(options: argparse.Namespace) -> dict[str, Sequence[Any]]:
    axes = {name: _list(f"--{option.replace('_', '-')}", getattr(options, option)) for option, name in _AXES.items() if option != "ranks"}
    if "x" not in (options.ranks or ""):
        return axes | {"ranks": _list("--ranks", options.ranks)}
    pairs = [word.partition("x") for word in options.ranks.split(",")]
    if not all(ranks.isdecimal() and threads.isdecimal() for ranks, _, threads in pairs):
        raise SettingsError(f"--ranks {options.ranks}: give ranks, or ranks x threads for all, e.g. --ranks 1x8,2x4,8x1")
    return axes | {"ranks,threads": [[int(ranks), int(threads)] for ranks, _, threads in pairs]}


def _threads(options: argparse.Namespace) -> dict[str, Any]:
    return {} if options.threads is None else {"threads": _literal(options.threads)}


def run_file(options: argparse.Namespace) -> int:
    from farandole.study.settings import StudySettings, read_toml

    over = {name: getattr(options, name) for name in ("preset", "repeats", "ranks_per_node", "hosts", "idle_s", "out")} | _threads(options)
    content = read_toml(options.file, **over)
    _check_repeats(content)
    if content["kind"] == "loaders":
        return run_loaders(content, options)
    _check_program(content.get("command"), content)
    return _perform(StudySettings(**content), options)


def _check_repeats(given: Mapping[str, Any]) -> None:
    if given.get("repeats") == 0:
        raise SettingsError("repeats=0: expected a whole number from 1 on, e.g. --repeats 3. Leave it out for as many as tell a difference")


def _check_program(command: Any, given: Iterable[str]) -> None:
    useless = [name for name in ("preset", "framework") if name in given]
    if command and useless:
        raise SettingsError(
            f"{', '.join(useless)}: of workloads, and this is a study of a program of your own, which is never told. Leave it out, or put it "
            "into the command"
        )


def run_loaders(content: dict[str, Any], options: argparse.Namespace) -> int:
    """A study of loaders, from a file or from the command line."""
    from farandole.study.folder import StudyFolder
    from farandole.study.loaders import loaders_study
    from farandole.study.running import identity

    useless = [name for name in ("hosts", "submit", "ranks_per_node", "idle_s", "scalars", "time", "directive", "threads") if getattr(options, name, None)]
    if useless:
        told = ", ".join(f"--{name.removesuffix('_s').replace('_', '-')}" for name in useless)
        raise SettingsError(f"{told}: a study of loaders reads files on this machine. Leave it out.")
    asked = {name: value for name, value in content.items() if name not in ("kind", "threads")}
    study = loaders_study(**asked, make_files=False)
    if options.dry_run:
        return _perform(study, options)
    StudyFolder(asked["out"]).check_same(identity(study))  # before files are made, which may take long
    return _perform(loaders_study(**asked), options)


def _perform(study: StudySettings, options: argparse.Namespace) -> int:
    from farandole.processes.signals import EndedBySignal
    from farandole.study.folder import StudyFolder
    from farandole.study.live import say_stopped
    from farandole.study.running import plan_text, run_study

    assert study.out is not None
    _place(study, options.submit)
    if options.submit and study.threads == AUTO:
        study.threads = 1  # this machine's cores say nothing of the nodes'
    if study.idle_s and not options.power:
        raise SettingsError("--idle and --no-power: nothing is measured that idle power could be subtracted from. Leave one out")
    job = _job(study, options)
    _check_scalars(study, options)
    folder = StudyFolder(study.out)
    if options.dry_run:
        print(plan_text(study, folder))
        return 0
    try:
        with folder.locked():
            if job is not None:
                return _submit(study, folder, job, mixed=options.mixed_versions)
            code = run_study(
                study, folder, command=sys.argv[1:], power=options.power, pages=options.pages, mixed=options.mixed_versions
            )  # fmt: skip
    except (KeyboardInterrupt, EndedBySignal) as by:
        return say_stopped(by, folder.path)
    if options.scalars:
        from farandole.study.scalars import export

        print(export(folder, options.scalars))
    return code


def _place(study: StudySettings, submit: str | None) -> None:
    """Jobs get nodes of their own; here there are those of an allocation, or one machine, which is one node."""
    from farandole.launch.allocation import allocated_hosts
    from farandole.study.points import is_launched

    if submit or not (study.ranks_per_node or is_launched(study.command)):
        return
    study.allocated = allocated_hosts(os.environ)
    if study.ranks_per_node and not study.allocated:
        raise SettingsError(
            f"--ranks-per-node {study.ranks_per_node}: there are no nodes to divide ranks among, outside of a batch system's "
            "allocation. Add --submit sbatch (or pbs, lsf), or name machines: --hosts a:2,b:2"
        )


def _job(study: StudySettings, options: argparse.Namespace) -> JobSettings | None:
    """How jobs are asked for, where any are."""
    from farandole.study.submit import JobSettings, check_folder

    useless = [name for name in ("time", "directive") if getattr(options, name)]
    if not options.submit:
        if useless:
            told = ", ".join(f"--{name}" for name in useless)
            raise SettingsError(f"{told}: of jobs, and none is made. Add --submit sbatch (or pbs, lsf), or leave it out")
        return None
    if study.hosts:
        raise SettingsError("--hosts and --submit: the batch system says where ranks run. Leave --hosts out; --ranks-per-node divides them")
    assert study.out is not None
    check_folder(study.out)
    limit = {"time": options.time} if options.time else {}
    return JobSettings(
        system=options.submit, directives=options.directive, power=options.power, idle_s=study.idle_s, **limit
    )


def _check_scalars(study: StudySettings, options: argparse.Namespace) -> None:
    if not options.scalars:
        return
    from farandole.study.scalars import check_trained, check_where

    check_where(options.scalars)
    check_trained(study.fixed)
    if options.submit:
        raise SettingsError(
            f"--scalars and --submit: nothing has run yet. When the jobs have ended, type: farandole study collect {study.out} "
            f"and farandole study table {study.out} --scalars {options.scalars}"
        )


def _submit(study: StudySettings, folder: StudyFolder, job: JobSettings, *, mixed: bool) -> int:
    from farandole.results.numbers import count
    from farandole.study.collecting import collect
    from farandole.study.running import check_versions, prepare_data, write_plan
    from farandole.study.submit import write_scripts

    if folder.exists:
        collect(folder)
    check_versions(study, folder, mixed=mixed)
    planned = write_plan(study, folder, sys.argv[1:])
    points = folder.missing(planned)
    if not points:
        whole = f"all {len(planned)} points have" if len(planned) > 1 else "the point has"
        print(f"{whole} a result in {folder.path}: there is nothing to submit")
        return 0
    prepare_data(points)
    script = write_scripts(folder, points, job)
    it = "them all" if len(points) > 1 else "it"
    print(f"{count(len(points), 'script')} in {folder.path / 'scripts'}. Submit {it}:\n  sh {script}\nand when all have ended:")
    print(f"  farandole study collect {folder.path}")
    return 0


def numbers(option: str, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise SettingsError(f"{option} {text}: give numbers, e.g. {option} 1,2") from None


def _list(option: str, text: str | None) -> Sequence[Any]:
    if text is None:
        return []
    return numbers(option, text) if option in ("--ranks", "--emulate-ranks", "--batches", "--seeds") else [
        _literal(word) for word in text.split(",")
    ]  # fmt: skip


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise SettingsError(f"{text}: expected NAME=VALUE, e.g. --set epochs=8 or --vary lr_scaling=linear,none")
    return name.strip(), value.strip()


def _literal(text: str) -> Any:
    """A Python literal, or else the word itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
