"""Decimal text to float64, correctly rounded: what Python's float() gives, compiled.

Three ways, each tried where the one before does not apply:

    exact     at most 53 bits of digits and a power of ten up to 22: one division or product of exact numbers
    wide      up to 19 digits: the 128-bit product with a power of five (Lemire, "Number parsing at a gigabyte
              per second", 2021), rounded once
    hard      longer numbers whose first 19 digits do not decide: the caller asks float()

Imports numba: the reader imports it when it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from farandole.data.machine import as_float64, high_product, leading_zeros

__all__ = ["BAD", "HARD", "OK", "exact_power", "number", "scaled"]

OK, HARD, BAD = 0, 1, 2
_SMALLEST, _LARGEST = -342, 308
_INFINITE = np.uint64(0x7FF) << np.uint64(52)
_TIES = -27
"""5^27 is the last power of five below 2^64."""
_KEPT_DIGITS = 19
_ANY_EXPONENT = 10**15
"""Beyond what the digits of any file could make up for."""


def _fives() -> np.ndarray[Any, np.dtype[np.uint64]]:
    """5^q for every q, as 128 bits of which the first is 1: truncated, or 1/5^-q to about a bit."""
    rows = []
    for q in range(_SMALLEST, _LARGEST + 1):
        power: int = 5 ** abs(q)
        if q < 0:
            # Rounded up in the last bit where digits can be a multiple of 5^-q: ties are told from `low` there.
            bits = power.bit_length() + 127 if q >= _TIES else 2 * power.bit_length() + 128
            power = (1 << bits) // power + 1
        surplus = power.bit_length() - 128
        power = power >> surplus if surplus > 0 else power << -surplus
        rows.append((power >> 64, power & ((1 << 64) - 1)))
    return np.array(rows, np.uint64)


_FIVES = _fives()
exact_power = 10.0 ** np.arange(23)


@njit(nogil=True, cache=True)
def scaled(digits: int, exponent: int) -> float:
    """digits * 10^exponent, rounded once; `digits` is an unsigned 64-bit word."""
    word = np.uint64(digits)
    if word == np.uint64(0) or exponent < _SMALLEST:
        return 0.0
    if exponent > _LARGEST:
        return np.inf
    zeros = leading_zeros(word)
    word <<= zeros
    row = exponent - _SMALLEST
    high, low = high_product(word, _FIVES[row, 0]), word * _FIVES[row, 0]
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):  # the rest may carry into the bits that are kept
        more = high_product(word, _FIVES[row, 1])
        low += more
        if low < more:
            high += np.uint64(1)
    upper = high >> np.uint64(63)
    shift = upper + np.uint64(9)
    mantissa = high >> shift  # 54 bits: one more than is kept
    binary = ((217706 * exponent) >> 16) + 1086 + np.int64(upper) - np.int64(zeros)
    if binary <= 0:
        return _subnormal(mantissa, binary)
    tie = low <= np.uint64(1) and -4 <= exponent <= 23 and mantissa & np.uint64(3) == np.uint64(1)
    if tie and mantissa << shift == high:
        mantissa -= np.uint64(1)
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    if mantissa >> np.uint64(53):
        mantissa >>= np.uint64(1)
        binary += 1
    if binary >= 0x7FF:
        return np.inf
    bits = (mantissa & np.uint64(0xFFFFFFFFFFFFF)) | (np.uint64(binary) << np.uint64(52))
    return as_float64(bits)


@njit(nogil=True, cache=True)
def _subnormal(mantissa: int, binary: int) -> float:
    """The number where its exponent is too small: fewer bits remain."""
    if 1 - binary >= 64:
        return 0.0
    mantissa = np.uint64(mantissa) >> np.uint64(1 - binary)
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    return as_float64(np.uint64(mantissa))


@njit(nogil=True, cache=True)
def number(text: Any, start: int, stop: int) -> tuple[int, float]:
    """(OK, HARD or BAD, value) of the characters [start, stop), which have no spaces around them."""
    at = start
    sign = 1.0
    if at < stop and (text[at] == 45 or text[at] == 43):
        sign = -1.0 if text[at] == 45 else 1.0
        at += 1
    if at < stop and text[at] > 57:
        return _word(text, at, stop, sign)
    digits, kept, exponent = np.uint64(0), 0, 0
    cut = found = False
    while at < stop and 48 <= text[at] <= 57:
        found = True
        if kept == _KEPT_DIGITS:
            exponent += 1
            cut |= text[at] != 48
        elif kept > 0 or text[at] != 48:
            digits = digits * np.uint64(10) + np.uint64(text[at] - 48)
            kept += 1
        at += 1
    if at < stop and text[at] == 46:
        at += 1
        while at < stop and 48 <= text[at] <= 57:
            found = True
            if kept == _KEPT_DIGITS:
                cut |= text[at] != 48
            else:
                exponent -= 1
                if kept > 0 or text[at] != 48:
                    digits = digits * np.uint64(10) + np.uint64(text[at] - 48)
                    kept += 1
            at += 1
    if not found:
        return BAD, 0.0
    if at < stop and (text[at] == 69 or text[at] == 101):
        at += 1
        turn = 1
        if at < stop and (text[at] == 45 or text[at] == 43):
            turn = -1 if text[at] == 45 else 1
            at += 1
        if at == stop:
            return BAD, 0.0
        given = 0
        while at < stop and 48 <= text[at] <= 57:
            given = min(given * 10 + (text[at] - 48), _ANY_EXPONENT)
            at += 1
        exponent += turn * given
    if at != stop:
        return BAD, 0.0
    value = scaled(digits, exponent)
    if cut and value != scaled(digits + np.uint64(1), exponent):
        return HARD, 0.0
    return OK, sign * value


@njit(nogil=True, cache=True)
def _word(text: Any, start: int, stop: int, sign: float) -> tuple[int, float]:
    """nan, inf and infinity, in any case."""
    if _spells(text, start, stop, b"nan"):
        return OK, np.nan
    if _spells(text, start, stop, b"inf") or _spells(text, start, stop, b"infinity"):
        return OK, sign * np.inf
    return BAD, 0.0


@njit(nogil=True, cache=True)
def _spells(text: Any, start: int, stop: int, word: bytes) -> bool:
    if stop - start != len(word):
        return False
    same = True
    for i in range(len(word)):
        same &= text[start + i] | 32 == word[i]
    return same
