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
  farandole report out/nt3-strong --export-figures figures --format pdf,png
                                            write its figures, for a paper: figures/efficiency.pdf, figures/efficiency.png, ...
"""


def add_report(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "report", help="show a study or a run as a page, or its figures as files",
        description="Write DIR/report.html: one file that needs no network, of a study or of one run. Or write the page's figures as files.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    verb.add_argument("folder", type=Path, metavar="DIR", help="has study.json and results.jsonl, or run.json")
    verb.add_argument("other", type=Path, nargs="?", metavar="DIR2", help="compare with this: DIR before, DIR2 after")
    verb.add_argument("--export-figures", type=Path, metavar="OUT", help="write every figure into this folder, and no page")
    verb.add_argument(
        "--format", type=lambda text: text.split(","), action="extend", metavar="LIST",
        help="of the figures: svg (default), pdf or png, or several: pdf,svg; pdf and png need: pip install 'farandole[figures]'",
    )  # fmt: skip
    verb.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from farandole.errors import SettingsError
    from farandole.report import write_report
    from farandole.report.export import export_figures

    if options.export_figures is not None:
        for path in export_figures(options.folder, options.other, options.export_figures, options.format or ["svg"]):
            print(path)
    elif options.format:
        raise SettingsError(f"--format {','.join(options.format)} is of figures. Add --export-figures OUT, the folder to write them into.")
    else:
        print(write_report(options.folder, options.other))
    return 0
