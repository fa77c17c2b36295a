"""`farandole study loaders`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.data.candle.files import BENCHMARKS, PRESETS

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_study"]

_EXAMPLES = """\
examples:
  farandole study loaders nt3                                   small files, made for it; a minute
  farandole study loaders nt3 p1b1 p1b2 p1b3 --preset paper     files as large as the papers' (2 GB); an hour
  farandole study loaders nt3 --data-dir data --loaders pandas,fast --ranks 1,4 --repeats 3

Results are in DIR/loaders.json. A study that was stopped goes on where it was when typed again.
"""


def add_study(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "study", help="many measurements of one question", description="Measure, and print tables.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    actions = verb.add_subparsers(title="studies", metavar="STUDY", required=True)
    _add_loaders(actions)


def _add_loaders(actions: Verbs) -> None:
    action = actions.add_parser(
        "loaders", help="how long it takes to load the benchmarks' files, with every loader", epilog=_EXAMPLES,
        description="Load the benchmarks' files with every loader: the papers' Tables 3 and 4, for this machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = action.add_argument
    # fmt: off
    add("names", nargs="+", metavar="NAME", help=f"benchmarks: {', '.join(BENCHMARKS)}")
    add("--data-dir", type=Path, metavar="DIR", help="where their files are; missing ones are made there")
    add("--preset", choices=PRESETS, help="how large files are made; default: test")
    add("--loaders", metavar="a,b", help="e.g. pandas,polars,fast; a wrong name lists all there are; default: all")
    add("--ranks", default="1,2", metavar="1,N", help="how many processes load at once; default: 1,2")
    add("--repeats", type=int, default=1, metavar="R", help="take the median of R measurements; default: 1")
    add("--out", type=Path, default=Path("study-loaders"), metavar="DIR", help="default: study-loaders")
    add("--force", action="store_true", help="measure again what there are results of")
    add("--json", action="store_true", help="print the results for programs instead of tables")
    # fmt: on
    action.set_defaults(run=_loaders)


def _loaders(options: argparse.Namespace) -> int:
    from farandole.study.loaders import LoaderStudy, run
    from farandole.study.loaders_text import as_text

    chosen = {} if options.loaders is None else {"loaders": [word.strip() for word in options.loaders.split(",")]}
    study = LoaderStudy(
        benchmarks=list(dict.fromkeys(options.names)), out=options.out, data_dir=options.data_dir,
        preset=options.preset, ranks=_numbers(options.ranks), repeats=options.repeats, force=options.force, **chosen,
    )  # fmt: skip
    try:
        results = run(study)
    except KeyboardInterrupt:
        print(f"farandole: stopped; type the same again to go on, {options.out} has what there is.", file=sys.stderr)
        return 130
    print(json.dumps(results, indent=1) if options.json else as_text(results))
    return 0


def _numbers(text: str) -> list[int]:
    from farandole.errors import SettingsError

    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise SettingsError(f"--ranks {text}: give numbers, e.g. --ranks 1,2") from None
