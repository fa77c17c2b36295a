"""`farandole predict`: what more ranks would do, and how sure that is."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import DataError, SettingsError

if TYPE_CHECKING:
    from farandole.predict.prediction import Asked
    from farandole.results.reading import Study

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_predict"]

_EXAMPLES = """\
examples:
  farandole predict out/nt3-weak --ranks 64,512,3072
  farandole predict out/nt3-weak --ranks 512 --what-if network=2x --what-if loader=fast,wire=bf16
  farandole predict out/nt3-weak --ranks 512 --comm comm.json        with what farandole bench comm -H a:1,b:1 --json comm.json has found
  farandole predict out/nt3-weak --ranks 512 --next                  which further run would narrow the interval most
  farandole predict --check                                          predict what is known: the papers' tables, made-up machines
"""


def add_predict(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "predict", help="what more ranks would do, and how sure that is",
        description="Time, efficiency and energy on ranks that nobody has run, with intervals, from a study of strong or weak scaling.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = verb.add_argument
    # fmt: off
    add("folder", type=Path, nargs="?", metavar="DIR", help="a study of strong or weak scaling, imported ones too")
    add("--ranks", type=_counts, default=[], metavar="64,512", help="what to predict")
    add("--fit-up-to", type=int, metavar="N", help="fit runs on at most N ranks; predict the others")
    add("--comm", type=Path, metavar="FILE", help="the network between nodes, as farandole bench comm --json has measured it")
    add("--collective", default="auto", metavar="NAME",
        help="of the allreduce: ring, tree, two-level, or auto (default): as the runs have recorded it, else any")
    add("--what-if", action="append", default=[], metavar="a=b,c=d",
        help="otherwise than measured: network=2x, loader=fast, wire=bf16, batch=40, collective=tree; several times")
    add("--level", type=float, default=0.9, metavar="P", help="share of outcomes that an interval shall hold; default: 0.9")
    add("--json", action="store_true", help="print what is written to DIR/prediction.json")
    add("--next", action="store_true", help="which further run would narrow the interval most")
    add("--export", choices=("extrap",), help="print the study in the text format of Extra-P instead")
    add("--check", action="store_true", help="predict figures that are known, and print errors, coverage and widths")
    # fmt: on
    verb.set_defaults(run=_predict)


def _counts(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write rank counts with commas, e.g. 64,512,3072") from None


def _predict(options: argparse.Namespace) -> int:
    if options.check:
        return _check(options)
    if options.folder is None:
        raise SettingsError("name the folder of a study: farandole predict DIR --ranks 64,512; or farandole predict --check")
    from farandole.results.reading import read_folder

    study = read_folder(options.folder)
    if options.export:
        return _export(study, options)
    asked = _asked(options)
    return _next(study, asked, options) if options.next else _write(study, asked, options)


def _asked(options: argparse.Namespace) -> Asked:
    from farandole.predict.prediction import Asked
    from farandole.predict.what_if import parse

    return Asked(
        ranks=options.ranks, up_to=options.fit_up_to, comm=options.comm, collective=options.collective, level=options.level,
        what_ifs=[parse(text) for text in options.what_if], command=shlex.join(["farandole", *sys.argv[1:]]),
    )  # fmt: skip


def _write(study: Study, asked: Asked, options: argparse.Namespace) -> int:
    """Also into the study's folder, whose page then shows it."""
    from farandole.predict.prediction import predict
    from farandole.predict.text import as_text
    from farandole.results.schema import PREDICTION

    document = predict(study, asked)
    text, path = json.dumps(document, indent=1) + "\n", study.folder / PREDICTION
    try:
        path.write_text(text)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}. Copy the study to a folder of your own.") from error
    page = options.pages(study.folder)
    print(text if options.json else as_text(document) + (f"\npage      {page}" if page else ""), end="" if options.json else "\n")
    return 0


def _next(study: Study, asked: Asked, options: argparse.Namespace) -> int:
    from farandole.predict.next_point import next_points
    from farandole.predict.prediction import models_of
    from farandole.predict.text import next_text

    found = next_points(models_of(study, asked), asked.ranks, asked.level)
    print(json.dumps(found, indent=1) if options.json else next_text(found))
    return 0


def _export(study: Study, options: argparse.Namespace) -> int:
    from farandole.predict.extrap import as_extrap
    from farandole.predict.parts import measured_of

    print(as_extrap(measured_of(study, up_to=options.fit_up_to, comm=True)), end="")
    return 0


def _check(options: argparse.Namespace) -> int:
    """1 where a row misses its bar."""
    from dataclasses import asdict

    from farandole.predict.check import check
    from farandole.predict.text import check_text

    rows: list[dict[str, Any]] = []
    for row in check(options.papers()):
        rows.append(asdict(row))
        if not options.json:
            print(check_text(row), flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))
    return 0 if all(row["met"] for row in rows) else 1
