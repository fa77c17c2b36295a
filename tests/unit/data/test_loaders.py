"""Every loader gives the table that read_matrix gives."""

import contextlib
import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farandole.data import loaders
from farandole.data.loaders import LOADERS, VARIANTS, installed, load
from farandole.data.matrix import read_matrix
from farandole.errors import DataError, SettingsError

pytest.importorskip("numba")
with contextlib.suppress(ImportError):
    import polars  # noqa: F401  (sets an environment variable, which no test may)
NAMES = [*LOADERS, *VARIANTS]
OTHERS = [name for name in NAMES if name != "fast"]
ROWS = 37


def needs(name: str) -> None:
    if installed(name) is None:
        pytest.skip(f"{name} is not installed")


def lines(delimiter: str = ",", missing: str = "") -> list[str]:
    """Numbers that every library reads exactly: few digits, no exponents."""
    random = np.random.default_rng(5)
    numbers = random.integers(-(10**9), 10**9, (ROWS, 6))
    rows = [[f"{n / 10**4:.4f}" for n in row] for row in numbers]
    rows[3][2] = rows[9][0] = missing
    rows[0][1], rows[1][1] = "7", "-0.5"
    return [delimiter.join([f"case{i}", str(i % 3), *row]) for i, row in enumerate(rows)]


def same(found: loaders.Matrix, expected: loaders.Matrix) -> None:
    assert found.values.dtype == expected.values.dtype
    assert found.values.flags.c_contiguous
    np.testing.assert_array_equal(found.values.view(np.uint8), expected.values.view(np.uint8))
    assert found.names == expected.names
    assert list(found.columns) == list(expected.columns)
    for key, column in expected.columns.items():
        assert found.columns[key].dtype.kind == column.dtype.kind
        assert found.columns[key].tolist() == column.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_file_with_a_header_gives_the_same_table(name: str, dtype: str, tmp_path: Path) -> None:
    needs(name)
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,kind,a,b,c,d,e,f", *lines()]) + "\n")
    asked = ["kind", "id"]
    same(load(name, path, columns=asked, dtype=dtype), read_matrix(path, columns=asked, dtype=dtype, cache=False))


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_without_a_header_gives_the_same_table(name: str, tmp_path: Path) -> None:
    needs(name)
    path = tmp_path / "t.tsv"
    path.write_text("\n".join(lines("\t", "-")) + "\n")
    asked = {"columns": [0, 1], "header": False, "na": ("-", "")}
    same(load(name, path, **asked), read_matrix(path, cache=False, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OTHERS)
def test_a_compressed_file_gives_the_same_table(name: str, tmp_path: Path) -> None:
    needs(name)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(("\n".join(["id,kind,a,b,c,d,e,f", *lines()]) + "\n").encode()))
    same(load(name, path, columns=["id"]), read_matrix(path, columns=["id"], cache=False))


@pytest.mark.parametrize("name", ["dask", "polars", "pyarrow"])
def test_rows_wider_than_a_sample_or_block_are_read(name: str, tmp_path: Path) -> None:
    """By default dask's sample ends within such a row, and two of them fill a block of pyarrow."""
    needs(name)
    path = tmp_path / "wide.csv"
    wide = 2_000 if name == "dask" else 60_000  # dask takes a millisecond for a column
    text = "," + "1.25" + "0" * (300 if name == "dask" else 10)
    path.write_text("".join(f"{row}" + text * wide + "\n" for row in range(3)))
    found = load(name, path, header=False, columns=[0])
    assert found.values.shape == (3, wide)
    assert (found.values == 1.25).all()
    assert found.columns[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", NAMES)
def test_long_numbers_are_read_to_the_nearest(name: str, tmp_path: Path) -> None:
    needs(name)
    if name.startswith(("pandas", "dask")) and installed("pandas").split(".")[:2] < ["3", "1"]:  # type: ignore[union-attr]
        pytest.skip("pandas promises it from 3.1 on")
    random = np.random.default_rng(8)
    numbers = random.standard_normal(2_000) * 10.0 ** random.integers(-200, 200, 2_000)
    path = tmp_path / "long.csv"
    path.write_text("".join(f"{float(n)!r},1\n" for n in numbers))
    assert load(name, path, header=False, dtype="float64").values[:, 0].tolist() == numbers.tolist()
    with np.errstate(over="ignore"):
        assert load(name, path, header=False).values[:, 0].tolist() == numbers.astype(np.float32).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_library_that_is_missing_is_named_with_what_to_type(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "installed", lambda name: None)
    extra = "data" if name == "fast" else "loaders"
    with pytest.raises(SettingsError, match=rf"pip install 'farandole\[{extra}\]'"):
        load(name, tmp_path / "t.csv")


def test_an_unknown_loader_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="pandas, pandas-chunked, dask, polars, pyarrow, fast"):
        load("duckdb", tmp_path / "t.csv")
    with pytest.raises(SettingsError, match="duckdb"):
        installed("duckdb")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_is_our_error(name: str, tmp_path: Path) -> None:
    needs(name)
    with pytest.raises(DataError, match=r"none\.csv"):
        load(name, tmp_path / "none.csv")


def test_importing_the_loaders_imports_no_library() -> None:
    code = "import sys, farandole.data.loaders; print(*{'pandas', 'polars', 'pyarrow', 'dask', 'numba'} & {*sys.modules})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "\n"
