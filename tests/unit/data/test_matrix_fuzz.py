"""Any bytes at all: what comes out is what a slow and simple reader says, or an error that it agrees with."""

import contextlib
import gzip
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data import read_matrix, text
from farandole.data.layout import NA
from farandole.errors import DataError, SettingsError

NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII)
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
SHOWN_AS_WRITTEN = re.compile(r"[+-]?0[0-9]|[+-]?[0-9]{16,}\Z|.*_", re.ASCII | re.DOTALL)
FOUND_LINE = re.compile(r", line ([0-9]+)")


class Refused(Exception):
    """`line` is None where the error need not name one."""

    def __init__(self, line: int | None) -> None:
        self.line = line


@dataclass(kw_only=True)
class Case:
    data: bytes
    options: dict[str, Any] = field(default_factory=dict)
    block_bytes: int = 4 << 20
    packed: bool = False


# The reader it is compared with


def reference(case: Case) -> tuple[tuple[str, ...] | None, list[list[float]], list[list[Any]]]:
    options = {"header": "infer", "columns": (), "na": NA, "delimiter": None} | case.options
    if case.data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Refused(None)
    lines = case.data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    numbered = [(i + 1, line.removesuffix(b"\r")) for i, line in enumerate(lines) if line not in (b"", b"\r")]
    if not numbered or b"\0" in numbered[0][1]:
        raise Refused(None)
    first = decoded(numbered[0][1], None)
    delimiter = options["delimiter"] or guessed(first)
    head = fields(first, delimiter, numbered[0][0])
    names = head if has_names(head, options) else None
    apart = [column % len(head) for column in options["columns"] if -len(head) <= column < len(head)]
    if len(set(apart)) < len(options["columns"]) or len(apart) == len(head):
        raise Refused(None)
    rows = [reference_row(line, number, len(head), apart, delimiter, options) for number, line in numbered[names is not None :]]
    if not rows:
        raise Refused(None)
    if any(isinstance(cell, Refused) for row in rows for cell in row):
        raise Refused(None)
    values = [[cell for i, cell in enumerate(row) if i not in apart] for row in rows]
    kept = None if names is None else tuple(name for i, name in enumerate(names) if i not in apart)
    return kept, values, [typed([row[i] for row in rows]) for i in apart]


def reference_row(line: bytes, number: int, total: int, apart: list[int], delimiter: str, options: dict) -> list[Any]:
    cells: list[Any] = fields(line.decode("utf-8", "surrogateescape"), delimiter, number)
    if len(cells) != total:
        raise Refused(number)
    for i, cell in enumerate(cells):
        if i not in apart:
            cells[i] = math.nan if cell in options["na"] else a_number(cell, number)
        elif "\0" in cell or re.search("[\udc80-\udcff]", cell):
            cells[i] = Refused(None)  # said after all that is wrong with the numbers around it
    return cells


def a_number(cell: str, line: int) -> float:
    if not NUMBER.fullmatch(cell):
        raise Refused(line)
    return float(cell)


def decoded(line: bytes, number: int | None) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise Refused(number) from None


def guessed(line: str) -> str:
    outside = "".join(line.split('"')[::2]) if line.count('"') % 2 == 0 else re.sub('"[^"]*"', "", line)
    counts = [outside.count(delimiter) for delimiter in ",\t;|"]
    return ",\t;|"[counts.index(max(counts))]


def has_names(head: list[str], options: dict) -> bool:
    if options["header"] != "infer":
        return bool(options["header"])
    apart = {column % len(head) for column in options["columns"]}
    return any(i not in apart and name not in options["na"] and not is_float(name) for i, name in enumerate(head))


def is_float(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return "_" not in name


def fields(line: str, delimiter: str, number: int) -> list[str]:
    found, at = [], 0
    while True:
        start = at
        while at < len(line) and line[at] == " " and delimiter != " ":
            at += 1
        if line[at : at + 1] == '"':
            at = after_quotes(line, at + 1, number)
        while at < len(line) and line[at] != delimiter:
            at += 1
        cell = line[start:at].strip(" ")
        if len(cell) >= 2 and cell[0] == cell[-1] == '"':
            cell = cell[1:-1].strip(" ")
        found.append(cell.replace('""', '"'))
        if at == len(line):
            return found
        at += 1


def after_quotes(line: str, at: int, number: int) -> int:
    while True:
        at = line.find('"', at) + 1
        if at == 0:
            raise Refused(number)
        if line[at : at + 1] != '"':
            return at
        at += 1


def typed(column: list[str]) -> list[Any]:
    if all(INTEGER.fullmatch(cell) for cell in column):
        return [int(cell) for cell in column]
    if not any(SHOWN_AS_WRITTEN.match(cell) for cell in column):
        with contextlib.suppress(ValueError):
            return [float(cell.encode()) for cell in column]
    return column


# Cases

INTERESTING = [bytes([c]) for c in b"0123456789.,;|-+eE\"\" \t\r\nxn_"] + [
    b"\n", b"\n", b",", b",", b"\r\n", b'""', b"nan", b"inf", b"NA", b"\xef\xbb\xbf", "é".encode(), b"\xff", b"\0", b"1e5", b"-0",
]  # fmt: skip
CELLS = [b"0", b"7", b"-3", b"12.5", b".5", b"5.", b"-0", b"1e3", b"1E-05", b"+2", b"", b"NA", b"nan", b"-inf", b" 4 ", b'"6"',
         b' "8" ', b"123456789012345678", b"9007199254740993", b"9007199254740993.0000000000001", b"1" * 25, b"0" * 30, b"1e400"]  # fmt: skip
LABELS = [b"a", b"b c", "ü".encode(), b'"x,y"', b'"say ""q"""', b"7", b"007", b"1.5", b"", b'""', b" z ", b"NA", b'a"b', b'"a"b']


def random_case(rng: random.Random) -> Case:
    if rng.random() < 0.3:
        data = b"".join(rng.choices(INTERESTING, k=rng.randrange(40)))
    else:
        data = changed(valid(rng), rng)
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["columns"] = rng.choice([(0,), (-1,), (0, 1), (1, 0), (0, -1), (5,)])
    if rng.random() < 0.3:
        options["header"] = rng.choice([True, False])
    if rng.random() < 0.2:
        options["delimiter"] = rng.choice([",", ";", "\t", " ", "|"])
    if rng.random() < 0.1:
        options["na"] = rng.choice([(), ("7",), ("x", "", "-3")])
    return Case(data=data, options=options, block_bytes=rng.choice([1, 2, 3, 7, 20, 64, 4 << 20]), packed=rng.random() < 0.2)


def valid(rng: random.Random) -> bytes:
    delimiter = rng.choice([b",", b",", b";", b"\t", b"|"])
    ending = rng.choice([b"\n", b"\n", b"\r\n", b"\n\n"])
    label = rng.random() < 0.4
    columns = rng.randrange(1, 6)
    rows = [[rng.choice(CELLS) for _ in range(columns)] for _ in range(rng.randrange(1, 8))]
    if label:
        rows = [[rng.choice(LABELS), *row] for row in rows]
    if rng.random() < 0.4:
        rows.insert(0, [rng.choice([b"a", b"b,", b'"c,d"', b"1"]).strip(b",") for _ in rows[0]])
    data = ending.join(delimiter.join(row) for row in rows)
    return rng.choice([b"", b"", b"\xef\xbb\xbf", b"\n"]) + data + rng.choice([b"", ending])


def changed(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        new = rng.choice(INTERESTING)
        until = at + rng.randrange(2)
        data = rng.choice([data[:at] + new + data[until:], data[:at] + data[at + 1 :], data[:at] + data[at - 3 :], data[:at]])
    return data


def check(case: Case, folder: Path) -> None:
    path = folder / "table.csv"
    path.write_bytes(gzip.compress(case.data, 1) if case.packed else case.data)
    try:
        expected = reference(case)
    except Refused as refused:
        told = refusal(path, case.options).removeprefix(str(path))
        line = FOUND_LINE.search(told)
        if refused.line is not None and line is not None and "UTF-8" not in told:
            assert int(line[1]) == refused.line, told
        return
    names, values, columns = expected
    found = read_matrix(path, cache=False, dtype="float64", **case.options)
    assert found.names == names
    assert np.array_equal(found.values, np.array(values), equal_nan=True)
    for column, wanted in zip(found.columns.values(), columns, strict=True):
        assert column.dtype.kind == {int: "i", float: "f", str: "U"}[type(wanted[0])]
        assert column.tolist() == wanted or np.array_equal(column, np.array(wanted), equal_nan=True)


def refusal(path: Path, options: dict[str, Any]) -> str:
    try:
        found = read_matrix(path, cache=False, dtype="float64", **options)
    except (DataError, SettingsError) as error:
        return str(error)
    pytest.fail(f"{found} instead of an error")


def fuzz(seeds: range, folder: Path) -> int:
    """How many of the cases are tables."""
    tables, before = 0, text.BLOCK_BYTES
    try:
        for seed in seeds:
            case = random_case(random.Random(seed))
            text.BLOCK_BYTES = case.block_bytes
            try:
                check(case, folder)
            except BaseException:
                print(f"seed {seed}: {case}", file=sys.stderr)
                raise
            with contextlib.suppress(Refused):
                reference(case)
                tables += 1
    finally:
        text.BLOCK_BYTES = before
    return tables


def test_any_bytes(tmp_path: Path) -> None:
    tables = fuzz(range(2500), tmp_path)
    assert 500 < tables < 2000  # both kinds are tried


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_no_index_is_out_of_bounds(tmp_path: Path) -> None:
    """Compiled once more, with checks: the compiled reader has none, and would read or write what is not its own."""
    environment = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    done = subprocess.run(
        [sys.executable, __file__, "8000"], env=os.environ | environment, capture_output=True, text=True, timeout=280, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(fuzz(range(10_000, 10_000 + int(sys.argv[1])), Path(place)), "tables")
