"""`farandole data`: make, images, verify and cache."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.workloads.finding import tables_of, workload_names

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_data"]

_EXAMPLES = """\
examples:
  farandole data make nt3 --out data                   small files, enough for a demo
  farandole data make nt3 --out data --preset paper    591 and 148 MB, the papers' shapes
  farandole data make p1b2 --out data --rows 500 --features 1000 --seed 3
  farandole data images --out images --classes 10 --train 200   JPEG folders for the workload cnn
  farandole data verify data                           compare the files with their checksums
  farandole data cache ls data                         which parsed tables are kept there
  farandole data cache clear data                      remove them; they are made anew when needed

Who has the real files copies them into the same folder instead.
"""


def add_data(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "data", help="make a workload's files, check them, and see what is cached",
        description="Work on data files.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    actions = verb.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_make(actions)
    _add_images(actions)
    _add_verify(actions)
    _add_cache(actions)


def _add_make(actions: Verbs) -> None:
    action = actions.add_parser(
        "make", help="write synthetic files of a workload", epilog=_EXAMPLES,
        description="Write synthetic files of a workload, with structure that a network can learn.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = action.add_argument
    # fmt: off
    add("name", metavar="NAME", help=f"{', '.join(workload_names())}, or a file such as my_model.py:WORKLOAD")
    add("--out", type=Path, required=True, metavar="DIR", help="the folder; made where it does not exist")
    add("--preset", help="how large; default: the workload's first, demo for most; paper: as the real files")
    add("--rows", type=int, metavar="R", help="training rows; test rows keep the ratio")
    add("--features", type=int, metavar="F", help="feature columns of the first file")
    add("--seed", type=int, default=0, metavar="S", help="the same seed gives the same bytes; default: 0")
    add("--force", action="store_true", help="replace other files of the same names")
    # fmt: on
    action.set_defaults(run=_make)


def _add_images(actions: Verbs) -> None:
    action = actions.add_parser(
        "images", help="write synthetic JPEG files in ImageNet's layout", allow_abbrev=False,
        description="Write synthetic JPEG files, train/CLASS/*.jpg and val/CLASS/*.jpg, which a network can tell apart.",
    )  # fmt: skip
    add = action.add_argument
    # fmt: off
    add("--out", type=Path, required=True, metavar="DIR", help="the folder; made where it does not exist")
    add("--classes", type=int, default=10, metavar="C", help="default: 10")
    add("--train", type=int, default=100, metavar="N", help="training images of each class; default: 100")
    add("--test", type=int, default=10, metavar="N", help="test images of each class; default: 10")
    add("--width", type=int, default=500, metavar="W", help="in pixels; default: 500, as ImageNet's are on average")
    add("--height", type=int, default=375, metavar="H", help="in pixels; default: 375")
    add("--seed", type=int, default=0, metavar="S", help="the same seed gives the same images; default: 0")
    # fmt: on
    action.set_defaults(run=_images)


def _add_verify(actions: Verbs) -> None:
    action = actions.add_parser(
        "verify", help="compare made files with their checksums", allow_abbrev=False,
        description="Compare made files with the checksums in their manifest.",
    )  # fmt: skip
    action.add_argument("folder", type=Path, metavar="DIR", help="as it was given to --out")
    action.set_defaults(run=_verify)


def _add_cache(actions: Verbs) -> None:
    action = actions.add_parser(
        "cache", help="list or remove parsed tables", allow_abbrev=False,
        description="Tables that read_matrix keeps, so that a file is parsed only once.",
    )  # fmt: skip
    steps = action.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, help_text, run in (
        ("ls", "list the tables kept for files in a folder", _list_cache),
        ("clear", "remove them", _clear_cache),
    ):
        step = steps.add_parser(name, help=help_text, description=f"{help_text.capitalize()}.", allow_abbrev=False)
        place = "the folder of the files, or of the cache; default: this one"
        step.add_argument("folder", type=Path, nargs="?", default=Path(), metavar="DIR", help=place)
        step.set_defaults(run=run)
    step.add_argument("--stale", action="store_true", help="only those that are of no use any more")


def _list_cache(options: argparse.Namespace) -> int:
    from farandole.data.cache import entries

    found = entries(options.folder)
    for entry in found:
        print(f"{entry.nbytes:>13,} bytes  {entry.state}  {entry.path}" + (f"  of {entry.source}" if entry.source else ""))
    print(f"{sum(entry.nbytes for entry in found):>13,} bytes  in {len(found)} files")
    return 0


def _clear_cache(options: argparse.Namespace) -> int:
    from farandole.data.cache import clear

    gone = clear(options.folder, everything=not options.stale)
    print(f"removed {len(gone)} files, {sum(entry.nbytes for entry in gone):,} bytes")
    return 0


def _make(options: argparse.Namespace) -> int:
    from farandole.data.make import make

    tables = tables_of(options.name)
    try:
        made = make(
            tables, options.out, preset=options.preset or next(iter(tables.presets)), rows=options.rows, features=options.features,
            seed=options.seed, force=options.force, progress=True,
        )  # fmt: skip
    except KeyboardInterrupt:
        print("farandole: stopped; no file was left half-written.", file=sys.stderr)
        return 130
    for file in made.files:
        print(f"{file.bytes:>13,} bytes  {options.out / file.name}")
    return 0


def _images(options: argparse.Namespace) -> int:
    from farandole.data.images import make_images

    count = make_images(
        options.out, classes=options.classes, train=options.train, test=options.test, width=options.width, height=options.height, seed=options.seed
    )
    print(f"{count:,} images of {options.classes} classes in {options.out}. To train on them, type: farandole run cnn --data-dir {options.out}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from farandole.data.make import verify

    for manifest in verify(options.folder):
        print(f"{manifest.describe()}: {len(manifest.files)} files as they were made")
    return 0
