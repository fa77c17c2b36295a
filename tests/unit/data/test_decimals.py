"""Numbers in a file become what Python's float() makes of them, bit for bit."""

import random
import struct
import warnings
from decimal import Decimal, localcontext
from math import inf, isfinite, nextafter
from pathlib import Path

import numpy as np
import pytest

from farandole.data import read_matrix
from farandole.errors import DataError

ORDINARY = [
    "0", "-0", "+0", "1", "-1", "+1", "7", "10", "0.5", ".5", "-.5", "+.5", "5.", "-5.", "00", "007",
    "-007.50", "1e5", "1E5", "1e+05", "1E+05", "1e-05", "-1.5e-5", "12345678", "3.14159", "0.1", "0.2",
    "0.3", "2.5e-3", "1e0", "0e0", "0e999", "-0e-999", "0.0", "-0.0", "0.000", "100000",
    "123456789012345678", "999999999999999999",
]  # fmt: skip

EXTREME = [
    "1e22", "1e23", "8.5e22", "1e-22", "1e-23", "9007199254740991", "9007199254740992",
    "9007199254740993", "9007199254740995", "9007199254740993.0", "9007199254740995.0",
    "4503599627370497.5", "4503599627370498.5", "90071992547409915e-1", "1e308", "1.7976931348623157e308",
    "1.7976931348623158e308", "1.7976931348623159e308", "1.797693134862315807e308", "1e309", "-1e309",
    "1e400", "1e99999", "1e100001", "1e999999999999", "2.2250738585072014e-308",
    "2.2250738585072011e-308", "2.225073858507201e-308", "4.9406564584124654e-324", "5e-324", "-5e-324",
    "2.4703282292062327e-324", "2.4703282292062328e-324", "2.47e-324", "2.48e-324", "1e-323", "1e-324",
    "1e-325", "1e-400", "-1e-999999999999", "3.4028234663852886e38", "3.4028235677973366e38",
    "3.402823567797337e38", "1e39", "-1e39", "1.401298464324817e-45", "7.006492321624085e-46",
    "7.006492321624086e-46", "1e-46", "16777217", "16777219", "16777216.5", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "9999999999999999999",
    "10000000000000000000", "99999999999999999999", "12345678901234567890",
    "0.1000000000000000055511151231257827021181583404541015625", "6.02214076e23",
    "179769313486231580793e289",
]  # fmt: skip

LONG = [
    "1" * 18, "1" * 19, "1" * 20, "9" * 25, "1" * 309, "9" * 309, "1" * 400, "-" + "3" * 400,
    "0." + "3" * 400, "0." + "0" * 400 + "1", "0" * 400 + "1", "0" * 400 + ".5", "0." + "0" * 330 + "123456789",
    "1" + "0" * 400 + "e-400", "0." + "0" * 120_000 + "1e120001", "1" + "0" * 120_000 + "e-120000",
    "1." + "0" * 400 + "1", "9007199254740993." + "0" * 400 + "1", "9007199254740993." + "0" * 401,
    "1e" + "0" * 400 + "5", "0" * 50 + "12345678901234567890" + "0" * 50 + "e-50", "." + "9" * 400,
    "3.4028235677973366" + "0" * 30 + "1e38", "1" + "7" * 40 + "e280",
]  # fmt: skip

WORDS = [
    "nan", "NaN", "NAN", "+nan", "inf", "-inf", "+inf", "Inf", "INF", "-INF", "infinity", "-Infinity",
    "INFINITY", "iNf",
]  # fmt: skip

REFUSED = [
    "1_000", "0x10", "0b1", "1e", "1e+", "e5", ".e5", ".", "-", "+", "-.", "--1", "+-1", "1.2.3", "1,5",
    "1e5.0", "1e1e1", "1d5", "5f", "1L", "infinit", "infinityx", "nan(1)", "-na", "x", "١", "²", "1e١",
    "−", "½", "NA", "TRUE", "1/2", "$1", "1%", "1:2", "#1", "", "1\t2", "1 2", "1\t", "1\x00", "\x00",
    "1\r2", "\xa01",
]  # fmt: skip


def halfway(rng: random.Random) -> list[str]:
    """Where two neighbours are equally near, and just beside it."""
    bits = rng.getrandbits(63) % (0x7FE << 52)
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    with localcontext() as context:
        context.prec = 800
        middle = (Decimal(value) + Decimal(nextafter(value, inf))) / 2
        digits = len(middle.as_tuple().digits)
        near = Decimal((0, (1,), middle.as_tuple().exponent - 5))
        exact = [f"{middle:f}", f"{middle:e}", f"{middle + near:e}", f"{middle - near:e}"]
        return exact + [f"{middle:.{min(cut, digits)}e}" for cut in (16, 17, 18, 19, 20, 24)]


def ties(rng: random.Random) -> list[str]:
    """Halfway cases of few digits: exact products of a 54-bit odd number and a power of ten."""
    below, above = rng.randrange(1, 5), rng.randrange(24)
    mantissa = rng.randrange(2**53 + 1, 2**54, 2)
    digits = mantissa * 5**below
    lowest = 2**53 // 5**above
    odd = rng.randrange(lowest, 2 * lowest + 2) | 1
    written = f"{digits // 10**below}.{digits % 10**below:0{below}d}"
    return [f"{digits}e-{below}", f"{digits << 1}e-{below}", written, f"{odd}e{above}", f"{odd << 3}e{above}", str(mantissa)]


def anything(rng: random.Random) -> list[str]:
    (value,) = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))
    value = value if isfinite(value) else rng.random()
    digits = str(rng.randrange(10 ** rng.randrange(1, 23)))
    point = rng.randrange(len(digits) + 1)
    small = rng.uniform(-1000, 1000)
    return [
        repr(value), f"{value:.16e}", f"{value:.18e}", f"{value:.25e}", f"{value:.6g}",
        f"{small:.{rng.randrange(20)}f}", f"{small:.8g}", repr(np.float32(small).item()), f"{np.float32(small):.9g}",
        f"{digits[:point]}.{digits[point:]}e{rng.randrange(-360, 330)}", f"{digits}e{rng.randrange(-345, 310)}",
        f"{'-' * rng.randrange(2)}{digits[:point]}.{digits[point:]}", f"{rng.randrange(1, 2**64)}e{rng.randrange(-342, 309)}",
    ]  # fmt: skip


def read_numbers(folder: Path, texts: list[str], dtype: str) -> np.ndarray:
    path = folder / "numbers.csv"
    path.write_text("\n".join(texts) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = read_matrix(path, header=False, dtype=dtype, na=(), cache=False)
    return table.values[:, 0]


def bits(values: np.ndarray) -> np.ndarray:
    """Comparable, with -0 apart from 0; NaNs are all the same."""
    return np.where(np.isnan(values), np.nan, values).view(f"u{values.itemsize}")


def assert_as_python(folder: Path, texts: list[str]) -> None:
    expected = np.array([float(text) for text in texts])
    with np.errstate(over="ignore"):
        expected32 = expected.astype(np.float32)
    for dtype, wanted in (("float64", expected), ("float32", expected32)):
        found = read_numbers(folder, texts, dtype)
        wrong = np.flatnonzero(bits(found) != bits(wanted))
        assert not wrong.size, [(texts[i][:60], dtype, found[i], wanted[i]) for i in wrong[:5]]


@pytest.mark.parametrize("texts", [ORDINARY, EXTREME, LONG, WORDS], ids=["ordinary", "extreme", "long", "words"])
def test_numbers_as_python_reads_them(texts: list[str], tmp_path: Path) -> None:
    assert_as_python(tmp_path, texts)


@pytest.mark.parametrize("texts", [ORDINARY, EXTREME, LONG], ids=["ordinary", "extreme", "long"])
def test_numbers_in_rows_quoted_and_spaced(texts: list[str], tmp_path: Path) -> None:
    """The compiled reader has shortcuts that depend on what follows a number."""
    path = tmp_path / "rows.csv"
    path.write_bytes("".join(f'{text},"{text}", {text} ,{text}\r\n' for text in texts).encode())
    found = read_matrix(path, header=False, dtype="float64", cache=False).values
    expected = np.array([[float(text)] * 4 for text in texts])
    assert np.array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("make", [halfway, ties, anything])
def test_random_numbers_as_python_reads_them(make, tmp_path: Path) -> None:
    rng = random.Random(make.__name__)
    assert_as_python(tmp_path, [text for _ in range(3000) for text in make(rng)])


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_a_number_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(f"1;2\n3;{text}\n")
    with pytest.raises(DataError, match="line 2, column 2"):
        read_matrix(path, header=False, cache=False, na=("missing",), delimiter=";")
