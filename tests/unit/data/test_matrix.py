"""Tables come out the same however they are written."""

import gzip
import io
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farandole.data import Matrix, read_matrix, text
from farandole.errors import DataError, SettingsError

TABLE = [[1.0, 2.5], [3.0, -4.0]]


def read(folder: Path, content: str | bytes, name: str = "table.csv", **options) -> Matrix:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return read_matrix(path, cache=False, **options)


@pytest.fixture(params=[1, 5, 4 << 20], ids=["line", "few lines", "file"])
def block(request, monkeypatch):
    """Nothing may depend on where blocks end."""
    monkeypatch.setattr(text, "BLOCK_BYTES", request.param)


@pytest.fixture(params=["table.csv", "table.csv.gz"], ids=["plain", "gzip"])
def name(request) -> str:
    return request.param


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(
    "content",
    [
        "1,2.5\n3,-4\n", "1,2.5\n3,-4", "1,2.5\r\n3,-4\r\n", "1,2.5\r\n3,-4\r", "\ufeff1,2.5\n3,-4\n", "\n\n1,2.5\n\n\r\n3,-4\n\n",
        "\ufeff\r\n\r\n1,2.5\r\n\r\n3,-4", " 1 , 2.5 \n3  ,   -4\n", '"1","2.5"\n"3","-4"\n', '"1",2.5\r\n3," -4 "\r\n',
        ' "1" , "2.5" \n"3" ,"-4"', "1;2.5\n3;-4\n", "1|2.5\n3|-4\n", "1\t2.5\n3\t-4\n", "+1,25e-1\n3.,-.4e1\n", "1.0,2.50\n03,-4.000000",
    ],
)  # fmt: skip
def test_one_table_in_many_ways(content: str, name: str, tmp_path: Path) -> None:
    table = read(tmp_path, content, name)
    assert table.values.tolist() == TABLE
    assert table.values.dtype == np.float32
    assert table.values.flags.c_contiguous and table.values.flags.writeable
    assert table.names is None and table.columns == {}


def test_doubles(tmp_path: Path) -> None:
    for dtype in ("float64", np.float64, float):
        table = read(tmp_path, "0.1,1e300\n", dtype=dtype)
        assert table.values.dtype == np.float64
        assert table.values.tolist() == [[0.1, 1e300]]


@pytest.mark.parametrize(
    ("content", "header", "names", "values"),
    [
        ("a,b\n1,2\n", "infer", ("a", "b"), [[1, 2]]),
        ("a,b\n1,2", True, ("a", "b"), [[1, 2]]),
        ('"a" , " b,""c"" "\n1,2\n', "infer", ("a", 'b,"c"'), [[1, 2]]),
        ("\ufeffgène,β\r\n\r\n1,2\r\n", "infer", ("gène", "β"), [[1, 2]]),
        ("1,2\n3,4\n", True, ("1", "2"), [[3, 4]]),
        ("1,2\n3,4\n", "infer", None, [[1, 2], [3, 4]]),
        ("1,NA\n3,4\n", "infer", None, [[1, math.nan], [3, 4]]),
        ("1,2\n3,4\n", False, None, [[1, 2], [3, 4]]),
        ("7\n8\n", "infer", None, [[7], [8]]),
        ("x\n8\n", "infer", ("x",), [[8]]),
        ("5", False, None, [[5]]),
    ],
)
def test_headers(content, header, names, values, name: str, tmp_path: Path) -> None:
    table = read(tmp_path, content, name, header=header)
    assert table.names == names
    assert np.array_equal(table.values, values, equal_nan=True)


def test_a_first_line_is_a_header_by_what_is_not_kept_apart(tmp_path: Path) -> None:
    content = "tumor,1,2\n5,3,4\n"
    assert read(tmp_path, content).names == ("tumor", "1", "2")
    table = read(tmp_path, content, columns=0)
    assert table.names is None
    assert table.columns[0].tolist() == ["tumor", "5"]


@pytest.mark.usefixtures("block")
def test_columns_by_name_and_position(name: str, tmp_path: Path) -> None:
    content = 'id,x,"cell, line",y,t\n1,0.5,"a,b",7,0.25\n-2,1.5,"say ""x""",8,1e3\n30,2.5, plain ,9,2\n'
    table = read(tmp_path, content, name, columns=["cell, line", 0, -1])
    assert table.names == ("x", "y")
    assert table.values.tolist() == [[0.5, 7], [1.5, 8], [2.5, 9]]
    assert list(table.columns) == ["cell, line", 0, -1]
    assert table.columns["cell, line"].tolist() == ["a,b", 'say "x"', "plain"]
    assert table.columns[0].tolist() == [1, -2, 30] and table.columns[0].dtype == np.int64
    assert table.columns[-1].tolist() == [0.25, 1e3, 2.0] and table.columns[-1].dtype == np.float64


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "0", "-5"], [1, 0, -5]),
        (["123456789012345678", "-1"], [123456789012345678, -1]),
        (["1", "2.5", "3e1"], [1.0, 2.5, 30.0]),
        (["1", "-0", "nan"], [1.0, -0.0, math.nan]),
        (["1", "2", "x"], ["1", "2", "x"]),
        (["1", "", "3"], ["1", "", "3"]),
        (["007", "010"], ["007", "010"]),
        (["1_0", "2"], ["1_0", "2"]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        (["1234567890123456789", "1234567890123456788"], ["1234567890123456789", "1234567890123456788"]),
        (["été", "日本", "a", ""], ["été", "日本", "a", ""]),
        (['"é,"', '""', '""""', '"a""b"'], ["é,", "", '"', 'a"b']),
        ([' "a,b" ', "c d", ' "x'.replace('"', "'")], ["a,b", "c d", "'x"]),
        (["NA", "null"], ["NA", "null"]),
        (["long" * 5000, "s"], ["long" * 5000, "s"]),
    ],
)
def test_label_columns(texts: list[str], expected: list, name: str, tmp_path: Path) -> None:
    for ending in ("\n", "\r\n"):
        first = read(tmp_path, "".join(f"{t},1,2{ending}" for t in texts), name, header=False, columns=[0])
        last = read(tmp_path, "".join(f"1,2,{t}{ending}" for t in texts), name, header=False, columns=[2], delimiter=",")
        for column in (first.columns[0], last.columns[2]):
            kind = {int: "i", float: "f", str: "U"}[type(expected[0])]
            assert column.dtype.kind == kind
            assert np.array_equal(column, np.array(expected), equal_nan=kind == "f")
        assert first.values.tolist() == last.values.tolist() == [[1, 2]] * len(texts)


def test_missing_values(name: str, tmp_path: Path) -> None:
    content = 'a,b,c\n,NA,N/A\nna,NaN,nan\nnull,"", " NA "\n1,,\n'
    values = read(tmp_path, content, name).values
    assert np.isnan(values.ravel()).tolist() == [True] * 9 + [False, True, True]
    table = read(tmp_path, "?,1,- \nx, x ,3\n", name, na=["?", "-", "x"], header=False)
    assert np.array_equal(table.values, [[math.nan, 1, math.nan], [math.nan, math.nan, 3]], equal_nan=True)


@pytest.mark.parametrize("token", ["-999", "9", "-9.00", "1e5", "0"])
def test_a_token_for_missing_values_may_be_a_number(token: str, tmp_path: Path) -> None:
    content = f'{token},2, {token} ,"{token}"\n2,{token},12,{token}\r\n'
    values = read(tmp_path, content, na=token, header=False).values
    nan = math.nan
    assert np.array_equal(values, [[nan, 2, nan, nan], [2, nan, 12, nan]], equal_nan=True)


def test_a_delimiter_is_not_looked_for_inside_quotes(tmp_path: Path) -> None:
    assert read(tmp_path, '"a;b;c",x\n1,2\n').names == ("a;b;c", "x")
    assert read(tmp_path, "a b,c\n1 2,3\n", delimiter=" ", header=True, columns=[1]).columns[1].tolist() == ["2,3"]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int32"}, {"dtype": "nonsense"}, {"header": "maybe"}, {"columns": [1.5]}, {"columns": [0, 0]}, {"columns": [0, -3]},
        {"columns": ["a", 0], "header": True}, {"columns": ["a"], "header": False}, {"delimiter": ""}, {"delimiter": ",,"},
        {"delimiter": "é"}, {"delimiter": "→"}, {"delimiter": "1"}, {"delimiter": "."}, {"delimiter": "\n"}, {"delimiter": '"'},
        {"na": ["a\nb"]}, {"na": [-999]},
    ],
)  # fmt: skip
def test_options_that_cannot_work(options: dict, tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        read(tmp_path, "a,b,c\n1,2,3\n", **options)


@pytest.mark.parametrize("options", [{"columns": [3]}, {"columns": [-4]}, {"columns": ["d"]}, {"columns": [0, 1, 2]}])
def test_columns_that_are_not_there(options: dict, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column"):
        read(tmp_path, "a,b,c\n1,2,3\n", **options)


def test_two_columns_of_one_name_are_told_apart_by_position(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="position"):
        read(tmp_path, "a,a,c\n1,2,3\n", columns=["a"])
    assert read(tmp_path, "a,a,c\n1,2,3\n", columns=[1]).names == ("a", "c")


def test_a_wide_table(name: str, tmp_path: Path) -> None:
    """NT3's width; a row is longer than a block of the file's beginning may be."""
    rng = np.random.default_rng(0)
    values = rng.lognormal(0, 2, (4, 60_483)).astype(np.float32)
    lines = [",".join([str(i), *(f"{v:.9g}" for v in row)]) for i, row in enumerate(values.tolist())]
    table = read(tmp_path, "\n".join(lines), name, columns=[0])
    assert np.array_equal(table.values, values)
    assert table.columns[0].tolist() == [0, 1, 2, 3]
    header = ",".join(f"gene {i}" for i in range(60_484))
    table = read(tmp_path, "\n".join([header, *lines]), name, columns=["gene 0"])
    assert table.names is not None and table.names[-1] == "gene 60483"
    assert np.array_equal(table.values, values)


def test_numbers_that_need_python_in_a_wide_and_in_a_tall_table(tmp_path: Path) -> None:
    """More than the compiled reader keeps a list of."""
    hard = "9007199254740993." + "0" * 30 + "1"
    for rows, columns in ((3, 3000), (3000, 3), (2500, 1)):
        values = read(tmp_path, (",".join([hard] * columns) + "\n") * rows, dtype="float64").values
        assert values.shape == (rows, columns)
        assert (values == float(hard)).all()


@pytest.mark.parametrize("size", [1, 2, 3, 64, 997, 4096])
def test_rows_straddle_blocks(size: int, name: str, monkeypatch, tmp_path: Path) -> None:
    rng = random.Random(size)
    rows = [(f"r{i}" * rng.randrange(1, 9), rng.random() * 10 ** rng.randrange(9), rng.randrange(1000)) for i in range(300)]
    content = "name,x,n\n" + "\n".join("".join([a, ",", repr(b), ",", str(c), "\n" * rng.randrange(2)]) for a, b, c in rows)
    monkeypatch.setattr(text, "BLOCK_BYTES", size)
    monkeypatch.setattr(text, "_READ_BYTES", size)
    table = read(tmp_path, content, name, columns=["name"], dtype="float64")
    assert table.values.tolist() == [[b, c] for _, b, c in rows]
    assert table.columns["name"].tolist() == [a for a, _, _ in rows]


def test_a_gzip_file_of_several_members_with_padding(tmp_path: Path) -> None:
    path = tmp_path / "members.gz"
    pieces = [b"\n", b"a,", b"b\n1,", b"", b"2\n3,4\n5", b",6", b"\n"]
    for padding in (b"", b"\0" * 512):
        path.write_bytes(b"".join(gzip.compress(piece) + padding for piece in pieces))
        table = read_matrix(path, cache=False)
        assert table.names == ("a", "b")
        assert table.values.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_gzip_file_whose_first_block_is_blank(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 1)
    (tmp_path / "blank").write_bytes(gzip.compress(b"\r\n") + gzip.compress(b"\n\n") + gzip.compress(b"1,2\n"))
    assert read_matrix(tmp_path / "blank", cache=False).values.tolist() == [[1, 2]]


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(gzip.compress(b"1,2\n"))
    (tmp_path / "plain.gz").write_bytes(b"1,2\n")
    assert read_matrix(tmp_path / "table.csv", cache=False).values.tolist() == [[1, 2]]
    assert read_matrix(str(tmp_path / "plain.gz"), cache=False).values.tolist() == [[1, 2]]


@pytest.mark.parametrize("seed", range(12))
def test_as_pandas_reads_it(seed: int, name: str, monkeypatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 200)), int(rng.integers(1, 30))
    frame = pd.DataFrame(rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-30, 30, columns))
    frame = frame.mask(rng.random(frame.shape) < 0.05).rename(columns="c{}".format)
    frame.insert(int(rng.integers(columns)), "label", rng.choice(["a", 'b,"', "ü", "x y"], rows))
    content = frame.to_csv(index=False, sep=",;\t"[seed % 3], lineterminator=["\n", "\r\n"][seed % 2])
    monkeypatch.setattr(text, "BLOCK_BYTES", int(rng.integers(1, 5000)))
    found = read(tmp_path, content, name, columns=["label"], dtype="float64")
    expected = pd.read_csv(io.StringIO(content), sep=",;\t"[seed % 3])
    assert found.columns["label"].tolist() == expected.pop("label").tolist()
    assert found.names == tuple(expected.columns)
    assert np.array_equal(found.values, expected.to_numpy(), equal_nan=True)


TIMED = """
import json, sys
from farandole.data import read_matrix
from farandole.observe.phases import recorded
with recorded() as times:
    read_matrix(sys.argv[1], columns=[0], cache=False)
print(json.dumps(times.seconds))
"""


@pytest.mark.more
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_compiling_is_no_part_of_reading(tmp_path: Path, suffix: str) -> None:
    content = "".join(f"x{row},{row}.5,2e-7\n" for row in range(500)).encode()
    path = tmp_path / f"table.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    run = subprocess.run([sys.executable, "-c", TIMED, path], env=environment, capture_output=True, text=True, timeout=200, check=True)
    seconds = json.loads(run.stdout)
    assert seconds["compile"] > 4 * seconds["load"], "in a folder that has seen no compiler"
    assert "reading" not in run.stderr, "the bar of a file of 10 kB waits for no compiler"



def test_compiled_code_needs_no_place_to_stay(tmp_path: Path) -> None:
    """numba refuses to compile where it can keep nothing."""
    (tmp_path / "file").write_text("")
    script = "from farandole.data import parse; print(parse._kernels().count_rows)"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "file" / "below"), "TMPDIR": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert "count_rows" in told.stdout, told.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


MEASURE = """
import sys, threading, time
from farandole.data import read_matrix

def anonymous_bytes():
    with open("/proc/self/status") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("RssAnon", "RssShmem")))

small, large = sys.argv[1:]
read_matrix(small, cache=False, dtype="float64")
before, peak, over = anonymous_bytes(), 0, threading.Event()

def watch():
    global peak
    while not over.wait(0.001):
        peak = max(peak, anonymous_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
values = read_matrix(large, cache=False, dtype="float64").values
over.set()
watcher.join()
print(peak - before, values.nbytes, values[0, 0], values[-1, -1])
"""


def even() -> bytes:
    """60 MB of text, 96 MB of numbers."""
    return (",".join(f"{i % 7}.{i % 89:02d}" for i in range(10_000)) + "\n").encode() * 1200


def uneven() -> bytes:
    """As large; what comes first compresses badly, and leads to expect fewer rows than there are."""
    rng = random.Random(0)
    noisy = [",".join(f"{rng.randrange(1000, 9999) / 1000:.2f}" for _ in range(10_000)) for _ in range(50)]
    return "\n".join(noisy * 7 + [",".join(["1.25"] * 10_000)] * 850).encode() + b"\n"


@pytest.mark.parametrize(("content", "packed"), [(even, False), (even, True), (uneven, True)], ids=["plain", "gzip", "uneven gzip"])
def test_memory_is_little_more_than_the_table(content, packed: bool, tmp_path: Path) -> None:
    data, small = content(), b"1,2\n"
    (tmp_path / "small").write_bytes(gzip.compress(small) if packed else small)
    (tmp_path / "large").write_bytes(gzip.compress(data, 1) if packed else data)
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "small", tmp_path / "large"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (tmp_path / "large").unlink()
    peak, size, first, last = map(float, measured.stdout.split())
    assert (size, first) == (96e6, float(data.split(b",", 1)[0]))
    assert last == float(data.rsplit(b",", 1)[1])
    assert peak < 1.3 * size + (24 << 20)
