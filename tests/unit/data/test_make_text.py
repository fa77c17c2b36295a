"""Fixed-point numbers as text."""

import random
from decimal import Decimal

import numpy as np
import pytest

from farandole.data.make.text import MISSING, Format


def written(form: Format, *values: int) -> str:
    lines = bytes(form.rows(np.array([b"id"]), np.array([values], np.int64))).decode()
    assert lines.endswith("\n")
    return lines[:-1].removeprefix("id" + form.delimiter)


@pytest.mark.parametrize(
    ("value", "decimals", "point", "text"),
    [
        (0, 2, False, "0"), (0, 2, True, "0.0"), (5, 2, False, "0.05"), (-5, 2, False, "-0.05"),
        (1200, 2, False, "12"), (1200, 2, True, "12.0"), (1250, 2, True, "12.5"), (7, 0, False, "7"),
        (1_000_000, 0, False, "1000000"), (100_001, 5, False, "1.00001"),
    ],
)  # fmt: skip
def test_numbers_as_a_person_would_write_them(value: int, decimals: int, point: bool, text: str) -> None:
    assert written(Format(decimals=decimals, point=point), value) == text


@pytest.mark.parametrize("decimals", [0, 1, 4, 6])
@pytest.mark.parametrize("point", [False, True])
def test_random_numbers_read_back_exactly(decimals: int, point: bool) -> None:
    draw = random.Random(decimals)
    values = [draw.randrange(-(10 ** draw.randrange(1, 18)), 10 ** draw.randrange(1, 18)) for _ in range(2000)]
    point = point and decimals > 0
    read = written(Format(decimals=decimals, point=point), *values).split(",")
    assert [Decimal(text).scaleb(decimals) for text in read] == values


def test_missing_values_and_delimiters() -> None:
    form = Format(decimals=1, delimiter="\t", missing="na")
    assert written(form, 15, MISSING, 20) == "1.5\tna\t2"


def test_rows_begin_with_their_own_lead() -> None:
    lines = bytes(Format(decimals=0).rows(np.array([b"a,longer", b"b"]), np.array([[1, 2], [3, 4]])))
    assert lines == b"a,longer,1,2\nb,3,4\n"
