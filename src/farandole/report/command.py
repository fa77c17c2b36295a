"""`farandole report`: a study or a run as a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_report"]

_EXAMPLES = """\
examples:
  farandole report out/nt3-strong           write out/nt3-strong/report.html
  farandole report study-pandas study-fast  the same for study-pandas, with study-fast as what came after
"""


def add_report(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "report", help="show a study or a run as a page",
        description="Write DIR/report.html: one file that needs no network, of a study or of one run.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    verb.add_argument("folder", type=Path, metavar="DIR", help="has study.json and results.jsonl, or run.json")
    verb.add_argument("other", type=Path, nargs="?", metavar="DIR2", help="compare with this: DIR before, DIR2 after")
    verb.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from farandole.report import write_report

    print(write_report(options.folder, options.other))
    return 0
