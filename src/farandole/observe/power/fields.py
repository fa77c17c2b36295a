"""What the fields of a recorded trace may hold: it may be somebody else's, and wrong values are told by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from farandole.observe.power.meters import PARTS, Provenance

__all__ = ["COST", "HEADER", "IDLE", "METER", "PHASE", "READING", "REFUSAL", "WrongValue", "checked", "in_order", "number_of"]

_END = 1 << 63  # what a reading is kept in
_HUGE = 1e300
_SHOWN = 40


class WrongValue(ValueError):
    """A field with a value that it cannot have."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name} is {repr(value)[:_SHOWN]}, expected {expected}")


class _Kind(NamedTuple):
    fits: Callable[[Any], bool]
    words: str


def checked(told: dict[str, Any], kinds: Mapping[str, _Kind]) -> dict[str, Any]:
    """The same; WrongValue where a field of it does not fit. Fields that are missing are nobody's here."""
    for name, kind in kinds.items():
        if name in told and not kind.fits(told[name]):
            raise WrongValue(name, told[name], kind.words)
    return told


def in_order(name: str, start_ns: int, end_ns: int) -> None:
    """WrongValue where an end, whose field has this name, comes before its begin."""
    if end_ns < start_ns:
        raise WrongValue(name, end_ns, f"no less than the begin, {start_ns}")


def number_of(count: int) -> _Kind:
    """The number of one of `count` meters."""
    return _Kind(lambda value: type(value) is int and 0 <= value < count, f"0 to {count - 1}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _HUGE


def _or_null(kind: _Kind) -> _Kind:
    return _Kind(lambda value: value is None or kind.fits(value), f"{kind.words}, or null")


def _one_of(*words: str) -> _Kind:
    return _Kind(lambda value: isinstance(value, str) and value in words, f"{', '.join(words[:-1])} or {words[-1]}")


_TEXT = _Kind(lambda value: isinstance(value, str), "text")
_TIME = _Kind(lambda value: type(value) is int and -_END <= value < _END, "a whole number of nanoseconds")
_COUNT = _Kind(lambda value: type(value) is int and 0 <= value < _END, "a whole number from 0 to 2^63")
_FROM_ONE = _Kind(lambda value: type(value) is int and value > 0, "a whole number above 0")
_NUMBER = _Kind(_is_number, "a number from 0 on")
_ABOVE = _Kind(lambda value: _is_number(value) and value > 0, "a number above 0")

HEADER = {"host": _TEXT, "machine": _TEXT, "interval_s": _ABOVE}
METER = {
    "name": _TEXT,
    "part": _one_of(*PARTS),
    "sensor": _TEXT,
    "provenance": _one_of(*(str(kind) for kind in Provenance if kind is not Provenance.NONE)),
    "kind": _one_of("energy", "power"),
    "unit": _ABOVE,
    "wraps_at": _or_null(_FROM_ONE),
    "ceiling_w": _or_null(_NUMBER),
    "package": _TEXT,
    "note": _TEXT,
}
REFUSAL = {"sensor": _TEXT, "part": _one_of(*PARTS), "reason": _TEXT, "advice": _TEXT}
READING = {"monotonic_ns": _TIME, "the time since 1970": _TIME, "the count": _or_null(_COUNT)}
PHASE = {"phase": _TEXT, "start_ns": _TIME, "end_ns": _TIME}
IDLE = {"the begin of idle": _TIME, "the end of idle": _TIME}
COST = {"samples": _COUNT, "missed": _COUNT, "running_s": _NUMBER, "cpu_s": _NUMBER}
