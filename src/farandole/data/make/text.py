"""Fixed-point numbers to text, at the speed of memory.

A value is an integer count of its last decimal: 12345 with 2 decimals is `123.45`. Integers make the text
the same on every machine, and are an order of magnitude faster to write than floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farandole.data.make.compiled import compiled

__all__ = ["MISSING", "Format", "joined"]

MISSING = -(2**62)
"""Stands for a missing value among the integers."""

_LONGEST_NUMBER = 21  # digits of a 64-bit integer, sign, point
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How a row of numbers looks."""

    decimals: int
    """Decimals of the integers given; trailing zeros are not written."""
    point: bool = False
    """Whether a whole number is written `5.0` instead of `5`."""
    delimiter: str = ","
    missing: str = ""

    def rows(self, leads: npt.NDArray[np.bytes_], values: npt.NDArray[np.int64]) -> memoryview:
        """Lines of `lead,value,value,...`; values: (rows, columns)."""
        lead = leads.view(np.uint8).reshape(len(leads), -1)
        lengths = np.char.str_len(leads)
        rows, columns = values.shape
        out = np.empty(rows * (lead.shape[1] + columns * (_LONGEST_NUMBER + 1) + 1), np.uint8)
        missing = np.frombuffer(self.missing.encode(), np.uint8)
        used = _write_rows(
            out, lead, lengths, values, self.decimals, int(self.point), ord(self.delimiter), missing, MISSING
        )
        return out[:used].data


def joined(*parts: Any, delimiter: str = ",") -> npt.NDArray[np.bytes_]:
    """Columns of byte strings put side by side."""
    line = np.asarray(parts[0])
    for part in parts[1:]:
        line = np.char.add(np.char.add(line, delimiter.encode()), part)
    return np.ascontiguousarray(line)


@compiled
def _write_rows(
    out: Bytes, lead: Bytes, lengths: npt.NDArray[np.int64], values: npt.NDArray[np.int64],
    decimals: int, point: int, delimiter: int, missing: Bytes, missing_value: int,
) -> int:  # fmt: skip
    digits = np.empty(24, np.uint8)
    at = 0
    for row in range(values.shape[0]):
        for i in range(lengths[row]):
            out[at] = lead[row, i]
            at += 1
        for column in range(values.shape[1]):
            out[at] = delimiter
            at += 1
            value = values[row, column]
            if value == missing_value:
                for i in range(missing.shape[0]):
                    out[at] = missing[i]
                    at += 1
                continue
            if value == 0 and point == 0:
                out[at] = 48
                at += 1
                continue
            if value < 0:
                out[at] = 45
                at += 1
                value = -value
            count = 0  # digits, the last one first
            while value > 0 or count <= decimals:
                digits[count] = 48 + value % 10
                value //= 10
                count += 1
            low = 0  # trailing zeros of the fraction are left out, but for `point` of them
            while low < decimals - point and digits[low] == 48:
                low += 1
            for i in range(count - 1, decimals - 1, -1):
                out[at] = digits[i]
                at += 1
            if low < decimals:
                out[at] = 46
                at += 1
            for i in range(decimals - 1, low - 1, -1):
                out[at] = digits[i]
                at += 1
        out[at] = 10
        at += 1
    return at
