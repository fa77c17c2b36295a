"""How large tables will be, before they are read."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from farandole.data import expected
from farandole.data.expected import expected_shape
from farandole.data.layout import ReadOptions


def written(path: Path, rows: int) -> bytes:
    """With a header that is longer than a row, and an id."""
    rng = np.random.default_rng(0)
    lines = [",".join(["id", *("a long name",) * 9]), *(f"r{i},{','.join(f'{v:.5g}' for v in rng.random(9))}" for i in range(rows))]
    text = ("\n".join(lines) + "\n").encode()
    path.write_bytes(text)
    return text


OPTIONS = ReadOptions(header=True, columns=("id",))


def test_a_small_file_is_counted(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", 70)
    assert expected_shape(tmp_path / "a.csv", OPTIONS) == (70, 9)
    (tmp_path / "b.csv").write_text("id,x\n")
    assert expected_shape(tmp_path / "b.csv", OPTIONS) == (0, 1)


def test_of_a_large_file_the_beginning_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.csv", 20_000)
    monkeypatch.setattr(expected, "_SAMPLE_BYTES", 1 << 14)
    rows, columns = expected_shape(tmp_path / "a.csv", OPTIONS)
    assert rows == pytest.approx(20_000, rel=0.05) and columns == 9


def test_a_compressed_file(tmp_path: Path) -> None:
    header, rows_of_it = written(tmp_path / "plain.csv", 1000).split(b"\n", 1)
    (tmp_path / "a.csv").write_bytes(gzip.compress(header + b"\n" + 100 * rows_of_it, 1))
    rows, columns = expected_shape(tmp_path / "a.csv", OPTIONS)
    assert rows == pytest.approx(100_000, rel=0.2) and columns == 9
