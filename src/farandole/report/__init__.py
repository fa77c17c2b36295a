"""Results -> one page: `farandole report DIR`. Reads files; knows no framework and no MPI."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from farandole.errors import DataError, FarandoleError

__all__ = ["write_page_if_possible", "write_report"]


def write_report(folder: Path, other: Path | None = None) -> Path:
    """Write `folder`/report.html, of a study or of one run; with `other`, compared to it. The path of the page."""
    from farandole.report.content import content_of
    from farandole.report.page import page_of
    from farandole.results.reading import read_folder

    study, compared = read_folder(folder), None if other is None else read_folder(other)
    content = content_of(study, compared)
    path = folder / "report.html"
    unfinished = folder / f".report.html.{os.getpid()}"
    try:
        unfinished.write_text(page_of(content), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}. Is there room, and may you write there?") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def write_page_if_possible(folder: Path) -> Path | None:
    """None where it cannot be made, which is said: results that are there count without it."""
    try:
        return write_report(folder)
    except Exception as error:  # whatever it is, it is no failure of what the page is of
        told = str(error) if isinstance(error, FarandoleError) else f"{type(error).__name__}: {error}"
        again = shlex.join(["farandole", "report", str(folder)])
        print(f"farandole: the results are complete, but their page could not be made: {told}\nTo try again, type: {again}", file=sys.stderr)
        return None
