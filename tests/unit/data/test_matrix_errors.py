"""What is wrong with a file is said, with its name, the line and the column."""

import gzip
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.data import read_matrix, text
from farandole.errors import DataError


@pytest.fixture(params=[1, 4 << 20], ids=["lines", "file"])
def block(request, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", request.param)


def refusal(path: Path, **options) -> str:
    with pytest.raises(DataError) as caught:
        read_matrix(path, cache=False, **options)
    told = str(caught.value)
    assert told.startswith(str(path))
    assert len(told.splitlines()) == 1
    return told.removeprefix(str(path))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n3\n", ", line 3, has 1 columns, expected 2"),
        (b"a,b\n1,2\n\n\r\n3,4,5\n", ", line 5, has 3 columns, expected 2"),
        (b"1,2\n3,4,\n", ", line 2, has 3 columns, expected 2"),
        (b'1,2\n"3","4","5"\n', ", line 2, has 3 columns, expected 2"),
        (b"1,2\n   \n3,4\n", ", line 2, has 1 columns, expected 2"),
        (b"gene,b\n1,2\n3,four\n", ", line 3, column 2 ('b'): 'four' is not a number. Name the column in columns=[1]"),
        (b"1,2\n3,4\nx,5\n6,y", ", line 3, column 1: 'x' is not a number"),
        (b"1,2\r\n3,4x\r\n", ", line 2, column 2: '4x' is not a number"),
        (b'1,2\n3,"4,5"\n', ", line 2, column 2: "),
        (b"1,2\n3," + b"z" * 9999, ", line 2, column 2: '" + "z" * 40 + "' is not a number"),
        (b'1,2\n3,"4\n5,6\n', ", line 2, column 2: a quote is not closed before the end of the line"),
        (b'\n"a,b\n1,2\n', ", line 2: a quote is not closed before the end of the line"),
        (b"1,2\n3,\xff\n", ", line 2, column 2: '\ufffd' is not a number"),
        (b"1,2\n3,\0\n", ", line 2, column 2: "),
        (b"1,2\n3,4\0\n", ", line 2, column 2: "),
        (b"", ": the file is empty"),
        (b"\n\r\n\n", ": the file is empty"),
        (b"\xef\xbb\xbf", ": the file is empty"),
        (b"a,b", ": no rows below the header"),
        (b"a,b\r\n\r\n\n", ": no rows below the header"),
        ("a,b\n1,2\n".encode("utf-16"), ": this is UTF-16"),
        ("a,b\n1,2\n".encode("utf-16-le"), ": NUL bytes in the first line"),
        (b"g\xe9ne,b\n1,2\n", ": the first line is not UTF-8 text"),
        (b"PK\x03\x04rest of it", ": this is a zip archive"),
        (b"\x28\xb5\x2f\xfdrest", ": this is zstd"),
        (b"\x7fELF\x02\x01\x01\0\0\0\n1,2\n", ": NUL bytes in the first line"),
    ],
)  # fmt: skip
def test_bad_content(content: bytes, said: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(gzip.compress(content) if packed and content else content)
    assert refusal(path).startswith(said)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'a,b\nx,1\n"y,2\n', ", line 3, column 1 ('a'): a quote is not closed"),
        (b'a,b\nx,1\n "y,2\n', ", line 3, column 1 ('a'): a quote is not closed"),
        (b"a,b\nx,1\n\ny\xff,2\nz,3\n", ", line 4, column 1 ('a'): this is not UTF-8 text"),
        (b"a,b\nx,1\ny\0,2\n", ", line 3, column 1 ('a'): this is not UTF-8 text"),
        (b"a,b\nx\n", ", line 2, has 1 columns, expected 2"),
        (b'a,b,c\n"x,y",1,2\n"x,y",3\n', ", line 3, has 2 columns, expected 3"),
    ],
)
def test_bad_text_in_a_label_column(content: bytes, said: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    assert refusal(path, columns=["a"]).startswith(said)


def test_the_first_of_several_bad_lines_is_named(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 50)
    lines = [b"%d,%d" % (i, i) for i in range(2000)]
    for number in (1999, 1234, 1233, 700):
        lines[number - 1] = b"bad,1"
        for data in (b"\n".join(lines), gzip.compress(b"\n".join(lines))):
            (tmp_path / "table").write_bytes(data)
            assert refusal(tmp_path / "table").startswith(f", line {number}, column 1: 'bad'")


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv") == ": there is no such file"
    assert "this is a folder" in refusal(tmp_path)
    (tmp_path / "link").symlink_to("nowhere")
    assert refusal(tmp_path / "link") == ": there is no such file"
    (tmp_path / "table.csv").write_text("1,2\n")
    assert "cannot be read" in refusal(tmp_path / "table.csv" / "inside")


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refusal(tmp_path / "pipe")


def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    """Permissions do not stop root: another user tries."""
    path = tmp_path / "table.csv"
    path.write_text("1,2\n")
    path.chmod(0)
    script = """if True:
        import os, sys
        from pathlib import Path
        from farandole.data.text import open_text
        os.chdir(Path(sys.argv[1]).parent)
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        open_text(Path("table.csv"))"""
    told = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert told.stderr.endswith("farandole.errors.DataError: table.csv: cannot be read: Permission denied\n")


def some_gzip() -> bytes:
    rng = random.Random(0)
    halves = ["".join(f"{rng.random():.6f},{rng.randrange(99)}\n" for _ in range(400)) for _ in range(2)]
    return b"".join(gzip.compress(half.encode()) for half in halves)


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    data, path = some_gzip(), tmp_path / "table.csv.gz"
    whole_member = len(data) - len(gzip.compress(gzip.decompress(data)[-1:]))
    for cut in {2, 5, 10, 11, 18, 100, whole_member, *range(200, len(data), 311), len(data) - 8, len(data) - 1}:
        path.write_bytes(data[:cut])
        assert re.match(": (the gzip file is cut off after|damaged gzip)", refusal(path, header=False)), cut


def test_a_gzip_file_with_damaged_bytes(tmp_path: Path) -> None:
    """Whatever is changed between the header and the end: no number comes out wrong."""
    data, path = some_gzip(), tmp_path / "table.csv.gz"
    path.write_bytes(data)
    expected = read_matrix(path, cache=False, header=False).values
    rng = random.Random(1)
    for _ in range(150):
        damaged = bytearray(data)
        damaged[rng.randrange(10, len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            found = read_matrix(path, cache=False, header=False).values
        except DataError:
            continue
        assert (found == expected).all()  # in the second member's time or system, of which no number depends


def test_what_follows_a_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n") + b"garbage")
    assert "damaged gzip" in refusal(path)
    path.write_bytes(gzip.compress(b"1,2\n") + b"\0" * 3_000_000)
    assert read_matrix(path, cache=False).values.tolist() == [[1, 2]]
