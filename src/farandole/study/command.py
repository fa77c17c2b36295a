"""`farandole study`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.data.loaders import METHODS
from farandole.results.formats import FORMATS
from farandole.study.options import add_how, add_kinds, numbers, run_file, run_kind, run_loaders
from farandole.study.settings import KINDS
from farandole.workloads.finding import workload_names

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_study"]

_EXAMPLES = """\
examples:
  farandole study strong nt3 --ranks 1,2 --repeats 3            time, accuracy and energy over ranks
  farandole study strong nt3 --emulate-ranks 1,8,48 --set epochs=48 --seeds 1,2,3
                                                                the accuracy of more ranks than there are
  farandole study weak p1b2 --ranks 1,2 --preset test --framework jax
  farandole study batch nt3 --batches 20,50,100 --ranks 1 --set epochs=4
  farandole study lr nt3 --rates 0.001,0.01 --vary lr_scaling=linear,none --ranks 1,2
  farandole study lr nt3 --ranks 1,2                            the rules by which rates follow the ranks; batch: batches
  farandole study strong --command "python train.py" --ranks 1,2
  farandole study studies/nt3-strong.toml --dry-run             what it would run, and how long that takes
  farandole study strong nt3 --ranks 2,4 --hosts a:2,b:2        on other machines, so many ranks on each
  farandole study strong nt3 --ranks 2,4 --submit sbatch --ranks-per-node 2 --time 00:30:00 --directive=--partition=short
                                                                scripts for Slurm; also pbs and lsf
  farandole study collect DIR                                   what such jobs have left
  farandole study table DIR --format latex                      text, markdown, csv or latex
  farandole study table DIR --json                              the results for programs
  farandole study table DIR --scalars tensorboard               every run's loss and accuracy, to be drawn elsewhere
  farandole study strong nt3 --ranks 1x2,2x1                    ranks x threads: one process with two threads against two with one
  farandole study compare DIR theta-2018-table4 --figures accuracy,test_accuracy
                                                                ours beside a paper's
  farandole study import numbers.csv --out DIR                  others' figures as a study; also the papers' tables
  farandole study loaders nt3 --data-dir data --loaders pandas,fast --ranks 1,4

A study that was stopped goes on where it was when typed again: points are known by their settings.
"""

_LOADERS_EXAMPLES = """\
examples:
  farandole study loaders nt3                                   small files, made for it; a few minutes
  farandole study loaders nt3 p1b1 p1b2 p1b3 --preset paper     files of full size (2.2 GB); hours
  farandole study loaders nt3 --preset paper --dry-run          what it would read, and how long that takes
  farandole study loaders nt3 --data-dir data --loaders pandas,fast --ranks 1,4 --repeats 3

Results are in DIR/results.jsonl, and as a page in DIR/report.html. A study that was stopped goes on where it was when typed again.
"""


class _StudyOrFile(argparse._SubParsersAction):  # type: ignore[type-arg]
    """`farandole study FILE.toml` is `farandole study file FILE.toml`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.choices = None  # type: ignore[assignment]  # a file is none of them; unknown studies are refused below

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values and values[0].endswith(".toml"):
            values = ["file", *values]
        super().__call__(parser, namespace, values, option_string)


def add_study(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "study", help="run a workload or script at many settings and compare", usage="farandole study STUDY|FILE.toml [options]",
        description="Run a workload or script at many settings, keep what each run has measured, and compare them.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    actions: Verbs = verb.add_subparsers(title="studies", metavar="STUDY", required=True, action=_StudyOrFile)
    add_kinds(actions, run_kind=run_kind, run_file=run_file)
    _add_table(actions)
    _add_compare(actions)
    _add_collect(actions)
    _add_import(actions)
    _add_point(actions)
    _add_loaders(actions)


def _action(actions: Verbs, name: str, text: str) -> argparse.ArgumentParser:
    return actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)


def _add_table(actions: Verbs) -> None:
    action = _action(actions, "table", "print a study's table")
    action.add_argument("folder", type=Path, metavar="DIR")
    how = action.add_mutually_exclusive_group()
    how.add_argument("--format", choices=FORMATS, default="text")
    how.add_argument("--json", action="store_true", help="the results for programs instead of a table")
    how.add_argument("--scalars", metavar="WHERE", help="write every epoch's figures for tensorboard, mlflow or wandb")
    action.set_defaults(run=_table)


def _table(options: argparse.Namespace) -> int:
    from farandole.study.folder import StudyFolder
    from farandole.study.running import as_json, table_of

    folder = StudyFolder(options.folder)
    if options.scalars:
        from farandole.study.scalars import export

        print(export(folder, options.scalars))
        return 0
    print(as_json(folder) if options.json else table_of(folder, options.format))
    return 0


def _add_compare(actions: Verbs) -> None:
    action = actions.add_parser(
        "compare", aliases=["beside"], help="print a study beside another, or beside a table of the papers", allow_abbrev=False,
        description="Print a study beside another, or beside a table of the papers.",
    )  # fmt: skip
    action.add_argument("folder", type=Path, metavar="DIR")
    action.add_argument("other", metavar="DIR2|TABLE")
    action.add_argument("--figures", default="accuracy,test_accuracy", metavar="a,b", help="default: accuracy,test_accuracy")
    action.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from farandole.study.compare import compare

    print(compare(options.folder, options.other, [word.strip() for word in options.figures.split(",")]))
    return 0


def _add_collect(actions: Verbs) -> None:
    action = _action(actions, "collect", "gather the results that jobs of a batch system have left")
    action.add_argument("folder", type=Path, metavar="DIR")
    action.set_defaults(run=_collect)


def _collect(options: argparse.Namespace) -> int:
    from farandole.study.collecting import collect, say_collected
    from farandole.study.folder import StudyFolder
    from farandole.study.running import summary

    folder = StudyFolder(options.folder)
    folder.plan()
    with folder.locked():
        say_collected(collect(folder, ask_again=True))
    print(summary(folder, options.pages))
    return 0


def _add_import(actions: Verbs) -> None:
    action = _action(actions, "import", "make a study of figures from elsewhere")
    action.add_argument("source", metavar="FILE.csv", help="a table, or the name of one of the papers' tables")
    action.add_argument("--out", type=Path, metavar="DIR", help="default: out/import-NAME")
    action.add_argument("--title", help="default: the file's name")
    action.add_argument("--kind", choices=tuple(KINDS), default="strong", help="how a CSV file's rows compare; default: strong")
    action.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    from farandole.study.importing import import_figures
    from farandole.study.running import summary

    print(summary(import_figures(options.source, options.out, options.title, options.kind), options.pages))
    return 0


def _add_point(actions: Verbs) -> None:
    action = _action(actions, "point", "run one point: what generated scripts call")
    action.add_argument("folder", type=Path, metavar="DIR")
    action.add_argument("name", metavar="KEY-REPEAT")
    action.add_argument("--power", action=argparse.BooleanOptionalAction, default=True)
    action.add_argument("--idle", dest="idle_s", type=float, default=0.0, metavar="S")
    action.set_defaults(run=_point)


def _point(options: argparse.Namespace) -> int:
    from farandole.study.collecting import run_as_job
    from farandole.study.folder import StudyFolder

    return run_as_job(StudyFolder(options.folder), options.name, power=options.power, idle_s=options.idle_s, pages=options.pages)


def _add_loaders(actions: Verbs) -> None:
    action = actions.add_parser(
        "loaders", help="how long it takes to load tables, with every loader", epilog=_LOADERS_EXAMPLES,
        description="Load the workloads' files with every loader: the papers' Tables 3 and 4, for this machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = action.add_argument
    # fmt: off
    add("names", nargs="+", metavar="NAME", help=f"workloads with tables, e.g. {', '.join(workload_names())}")
    add("--data-dir", type=Path, metavar="DIR", help="where their files are; missing ones are made there")
    add("--loaders", metavar="a,b", help=f"of {', '.join(METHODS)}, or all; default: pandas,pandas-chunked,polars,fast,fast-cached")
    add("--ranks", default="1,2", metavar="1,N", help="how many processes load at once; default: 1,2")
    # fmt: on
    add_how(action, of_runs=False)
    action.set_defaults(run=_loaders)


def _loaders(options: argparse.Namespace) -> int:
    chosen = [word.strip() for word in (options.loaders or "").split(",") if word.strip()]
    content: dict[str, Any] = {"benchmarks": list(dict.fromkeys(options.names)), "loaders": list(METHODS) if chosen == ["all"] else chosen}
    content |= {"ranks": numbers("--ranks", options.ranks), "data_dir": options.data_dir, "out": options.out or Path("out/study-loaders")}
    content |= {name: value for name in ("preset", "repeats") if (value := getattr(options, name)) is not None}
    return run_loaders(content, options)
