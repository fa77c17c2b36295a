"""Rows of delimited text to numbers, compiled. Imports numba: the reader imports it when it is used.

Every block of text handed in begins at the start of a line and ends with a line feed, which stops every
loop: no character needs a test for the end of the text. In the innermost loop indices are unsigned, because Python's
negative ones would cost a test each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from farandole.data.decimals import BAD, HARD, exact_power, number, scaled
from farandole.data.machine import load8, trailing_zeros

__all__ = [
    "COLUMNS",
    "DONE",
    "FULL",
    "NOT_A_NUMBER",
    "QUOTE",
    "count_rows",
    "integers",
    "parse_rows",
    "texts",
    "widest",
]

# What parse_rows says of a block.
DONE, FULL, COLUMNS, NOT_A_NUMBER, QUOTE = range(5)

_LF, _CR, _SPACE, _DOUBLE_QUOTE, _MINUS, _POINT, _ZERO = 10, 13, 32, 34, 45, 46, 48
_LINE_FEEDS = np.uint64(0x0A0A0A0A0A0A0A0A)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_ZEROS = np.uint64(0x3030303030303030)
_NOT_DIGITS = np.uint64(0x7676767676767676)
_TOPS = np.uint64(0x8080808080808080)
_PAIRS = np.uint64(0x000000FF000000FF)
_EXACT = 1 << 53
whole_power = 10 ** np.arange(19)
_QUICK_DIGITS = 18


@njit(nogil=True, cache=True)
def count_rows(text: Any, start: int, stop: int) -> int:
    """Lines of [start, stop) that are not empty; eight characters at a time."""
    rows = 0
    line = start
    at = start
    while at + 8 <= stop:
        other = load8(text, at) ^ _LINE_FEEDS
        found = ~(((other & _LOW) + _LOW) | other | _LOW)  # the top bit of every byte that is a line feed
        while found != np.uint64(0):
            end = at + np.int64(trailing_zeros(found) >> np.uint64(3))
            rows += _is_row(text, line, end)
            line = end + 1
            found &= found - np.uint64(1)
        at += 8
    for end in range(at, stop):
        if text[end] == _LF:
            rows += _is_row(text, line, end)
            line = end + 1
    return rows


@njit(nogil=True, cache=True)
def _is_row(text: Any, start: int, stop: int) -> bool:
    """Whether a line that ends at `stop` says anything."""
    return stop > start + 1 or (stop == start + 1 and text[start] != _CR)


@njit(nogil=True, cache=True, error_model="numpy")
def parse_rows(
    text: Any,
    state: Any,
    stop: int,
    delimiter: int,
    segments: Any,
    out: Any,
    spans: Any,
    tokens: Any,
    ends: Any,
    hard: Any,
) -> int:
    """Parse lines from state's place on; what happened. Called again, it goes on after what was FULL.

    state     [0] place in the text, [1] row, then where it stopped: [2] column, [3] place, and [4] hard numbers
    segments  (kind, columns) in their order: kind 0 are numbers, 1 are texts
    out       (rows, numbers), C-contiguous, 1-d
    spans     (rows, texts): where each text begins
    tokens    characters of all tokens that mean NaN, each of which ends at one of `ends`
    hard      (n, 3): index in `out`, start and stop of numbers that float() has to read
    """
    at, row = state[0], state[1]
    state[4] = 0
    columns = 0
    width = 0
    for s in range(len(segments)):
        columns += segments[s, 1]
        if segments[s, 0] == 0:
            width += segments[s, 1]
    last = len(text) - 8
    # Where a token looks like a number, every field is compared with the tokens before it is read as one.
    quick = 0 if _has_digit(tokens) else _QUICK_DIGITS
    top = 9 if quick else -1
    while at < stop:
        if text[at] == _LF:
            at += 1
            continue
        if text[at] == _CR and text[at + 1] == _LF:
            at += 2
            continue
        if state[4] + width > len(hard) and state[4] > 0:
            state[0], state[1] = at, row
            return FULL
        index = row * width
        column = texts_seen = 0
        for s in range(len(segments)):
            for _ in range(segments[s, 1]):
                start = at
                if segments[s, 0] == 1:
                    spans[row, texts_seen] = at
                    texts_seen += 1
                    at = _skip(text, _after_spaces(text, at, delimiter), delimiter)
                    if at < 0:
                        state[1], state[2], state[3] = row, column, start
                        return QUOTE
                else:
                    digit = np.int64(text[np.uintp(at)]) - _ZERO
                    if 0 <= digit <= top and text[np.uintp(at + 1)] == delimiter:
                        out[np.uintp(index)] = digit
                        at += 1
                    else:
                        minus = text[np.uintp(at)] == _MINUS
                        at += minus
                        value, digits = _digits(text, at, last)
                        at += digits
                        exponent = 0
                        if text[np.uintp(at)] == _POINT:
                            decimals, exponent = _digits(text, at + 1, last)
                            at += 1 + exponent
                            digits += exponent
                            if digits <= _QUICK_DIGITS:
                                value = value * whole_power[np.uintp(exponent)] + decimals
                        ended = text[np.uintp(at)] == delimiter or text[np.uintp(at)] == _LF
                        if ended and 0 < digits <= quick:
                            if value < _EXACT:
                                result = value / exact_power[np.uintp(exponent)]
                            else:
                                result = scaled(np.uint64(value), -exponent)
                            out[np.uintp(index)] = -result if minus else result
                        else:
                            a, b, at = _trim(text, start, delimiter)
                            if at < 0:
                                state[1], state[2], state[3] = row, column, start
                                return QUOTE
                            if _is_token(text, a, b, tokens, ends):
                                out[index] = np.nan
                            else:
                                status, result = number(text, a, b)
                                if status == BAD:
                                    state[1], state[2], state[3] = row, column, start
                                    return NOT_A_NUMBER
                                if status == HARD:
                                    hard[state[4], 0] = index
                                    hard[state[4], 1] = a
                                    hard[state[4], 2] = b
                                    state[4] += 1
                                out[index] = result
                    index += 1
                column += 1
                if column < columns:
                    if text[np.uintp(at)] != delimiter:
                        state[1], state[2], state[3] = row, column, start
                        return COLUMNS
                    at += 1
        if text[at] == _CR and text[at + 1] == _LF:
            at += 1
        if text[at] != _LF:
            state[1], state[2], state[3] = row, column, at
            return COLUMNS
        at += 1
        row += 1
    state[0], state[1] = at, row
    return DONE


@njit(nogil=True, cache=True, inline="always")
def _digits(text: Any, at: int, last: int) -> tuple[int, int]:
    """(value, count) of the digits at `at`: up to eight at once, without a branch on how many there are.

    The value is right for up to 18 digits. `last` is the last place from which eight characters can be read.
    """
    value, count = 0, 0
    if at <= last:
        word = load8(text, at) ^ _ZEROS
        other = ((word + _NOT_DIGITS) | word) & _TOPS  # the top bit of the first byte that is no digit
        if other == np.uint64(0):
            value, count = np.int64(_eight(word)), 8
        else:
            count = np.int64(trailing_zeros(other) >> np.uint64(3))
            # The digits move to the end, zeros come before them; twice, because 64 places are too many for one.
            half = np.uint64(4 * (8 - count))
            value = np.int64(_eight((word << half) << half))
            return value, count
    while True:
        digit = np.int64(text[np.uintp(at + count)]) - _ZERO
        if digit < 0 or digit > 9:
            return value, count
        value = value * 10 + digit
        count += 1


@njit(nogil=True, cache=True, inline="always")
def _eight(word: Any) -> Any:
    """The number that eight digits (one a byte, the first lowest) make: pairs, fours, then all."""
    word = word * np.uint64(10) + (word >> np.uint64(8))
    upper = (word & _PAIRS) * np.uint64(0x000F424000000064)
    lower = ((word >> np.uint64(16)) & _PAIRS) * np.uint64(0x0000271000000001)
    return (upper + lower) >> np.uint64(32)


@njit(nogil=True, cache=True)
def _has_digit(characters: Any) -> bool:
    found = False
    for character in characters:
        found |= _ZERO <= character <= _ZERO + 9
    return found


@njit(nogil=True, cache=True)
def _skip(text: Any, at: int, delimiter: int) -> int:
    """The end of the field at `at`: its delimiter or end of line; -1 where a quote is not closed."""
    if text[at] == _DOUBLE_QUOTE:
        at += 1
        while True:
            if text[at] == _LF:
                return -1
            if text[at] == _DOUBLE_QUOTE:
                at += 1
                if text[at] != _DOUBLE_QUOTE:
                    break
            at += 1
    while text[at] != delimiter and text[at] != _LF:
        if text[at] == _CR and text[at + 1] == _LF:
            return at
        at += 1
    return at


@njit(nogil=True, cache=True)
def _after_spaces(text: Any, at: int, delimiter: int) -> int:
    while text[at] == _SPACE and delimiter != _SPACE:
        at += 1
    return at


@njit(nogil=True, cache=True)
def _trim(text: Any, at: int, delimiter: int) -> tuple[int, int, int]:
    """(start, stop) of what a field says, without spaces and quotes, and its end (as _skip)."""
    at = _after_spaces(text, at, delimiter)
    end = _skip(text, at, delimiter)
    if end < 0:
        return 0, 0, end
    start, stop = at, end
    while stop > start and text[stop - 1] == _SPACE:
        stop -= 1
    if stop - start >= 2 and text[start] == _DOUBLE_QUOTE and text[stop - 1] == _DOUBLE_QUOTE:
        start, stop = start + 1, stop - 1
        while stop > start and text[stop - 1] == _SPACE:
            stop -= 1
        while stop > start and text[start] == _SPACE:
            start += 1
    return start, stop, end


@njit(nogil=True, cache=True)
def _is_token(text: Any, start: int, stop: int, tokens: Any, ends: Any) -> bool:
    begin = 0
    for t in range(len(ends)):
        end = ends[t]
        if end - begin == stop - start:
            same = True
            for i in range(stop - start):
                if text[start + i] != tokens[begin + i]:
                    same = False
                    break
            if same:
                return True
        begin = end
    return False


@njit(nogil=True, cache=True)
def widest(text: Any, spans: Any, delimiter: int) -> tuple[int, bool]:
    """The longest of some texts in bytes, and whether any has a quote in it that was doubled."""
    most = 0
    doubled = False
    for row in range(len(spans)):
        start, stop, _ = _trim(text, spans[row], delimiter)
        most = max(most, stop - start)
        for i in range(start, stop):
            doubled |= text[i] == _DOUBLE_QUOTE
    return most, doubled


@njit(nogil=True, cache=True)
def texts(text: Any, spans: Any, delimiter: int, out: Any) -> int:
    """out (rows, bytes), zeroed, = the texts; a row that has a NUL, which would be lost, or -1."""
    odd = -1
    for row in range(len(spans)):
        start, stop, _ = _trim(text, spans[row], delimiter)
        for i in range(start, stop):
            out[row, i - start] = text[i]
            if text[i] == 0 and odd < 0:
                odd = row
    return odd


@njit(nogil=True, cache=True)
def integers(text: Any, spans: Any, delimiter: int, out: Any) -> bool:
    """out (rows) = the texts as integers, as far as all of them are written as Python writes integers."""
    for row in range(len(spans)):
        start, stop, _ = _trim(text, spans[row], delimiter)
        minus = stop > start and text[start] == _MINUS
        first = start + minus
        value = 0
        if stop == first or stop - first > _QUICK_DIGITS or (text[first] == _ZERO and stop - first > 1):
            return False
        if minus and text[first] == _ZERO:
            return False
        for i in range(first, stop):
            digit = np.int64(text[i]) - _ZERO
            if digit < 0 or digit > 9:
                return False
            value = value * 10 + digit
        out[row] = -value if minus else value
    return True
