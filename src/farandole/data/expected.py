"""How large a table will be, told from the beginning of its file."""

from __future__ import annotations

from pathlib import Path

from farandole.data.layout import Layout, ReadOptions
from farandole.data.text import GzipText, MappedText, open_text

__all__ = ["expected_shape"]

_SAMPLE_BYTES = 4 << 20
"""Rows are alike: as many as these tell how long the others are. A smaller file is counted."""


def expected_shape(path: Path, options: ReadOptions) -> tuple[int, int]:
    """About how many rows, and how many columns of numbers."""
    if open_text(path) == "gzip":
        text = GzipText(path, lambda _: None)
        sample, _ = next(text.lines(), (b"", 0))
        layout = Layout.read(path, sample, options)
        rows = sample.count(b"\n", layout.first) * path.stat().st_size / text.read
        return round(rows), layout.shape.numbers
    plain = MappedText(path)
    layout = Layout.read(path, plain.head(), options)
    with path.open("rb") as file:
        file.seek(layout.first)
        lines = file.readlines(_SAMPLE_BYTES)
    rows = (plain.size - layout.first) * len(lines) / max(1, sum(map(len, lines)))
    return round(rows), layout.shape.numbers
