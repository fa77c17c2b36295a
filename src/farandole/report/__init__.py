"""Results -> one page: `farandole report DIR`. Reads files; knows no framework and no MPI."""

from __future__ import annotations

import os
from pathlib import Path

from farandole.errors import DataError

__all__ = ["write_report"]


def write_report(folder: Path, other: Path | None = None) -> Path:
    """Write `folder`/report.html, of a study or of one run; with `other`, compared to it. The path of the page."""
    from farandole.report.content import content_of
    from farandole.report.page import page_of
    from farandole.report.reading import read_folder

    content = content_of(read_folder(folder), None if other is None else read_folder(other))
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
