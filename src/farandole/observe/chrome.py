"""Events as the text that Chrome's tracing page and Perfetto read: one JSON object a line.

Every event begins with its time, so that merging can shift it without parsing the rest. The text is
built by hand: json.dumps of a whole event costs several times as much, on the core that trains.
"""

import functools
import json
import math
from collections.abc import Mapping
from numbers import Integral, Real

__all__ = ["EventText", "arguments", "metadata", "quoted"]

_REMEMBERED_NAMES = 16_384


class EventText:
    """Turns one rank's events into text, numbering its tracks; `pid` is the rank, times begin at `origin_ns`."""

    def __init__(self, *, pid: int, origin_ns: int) -> None:
        self._pid = pid
        self._origin_ns = origin_ns
        self._tids: dict[str, int] = {}
        self._endings: dict[tuple[str, str], str] = {}

    def span(
        self, track: str, name: str, start_ns: int, end_ns: int, args: Mapping[str, object] | None
    ) -> str:
        """A complete event; what lies before the origin is clipped, since viewers want times >= 0."""
        details = _details(args)
        if start_ns < self._origin_ns:
            start_ns = self._origin_ns
        if end_ns < start_ns:
            end_ns = start_ns
        start_us = (start_ns - self._origin_ns) / 1000
        duration_us = (end_ns - start_ns) / 1000
        ending = self._endings.get((track, name))
        announcement = ""
        if ending is None:
            announcement, ending = self._describe(track, name)
        return f'{announcement},\n{{"ts":{start_us:.3f},"dur":{duration_us:.3f},"ph":"X"{ending}{details}}}'

    def instant(self, track: str, name: str, at_ns: int, args: Mapping[str, object] | None) -> str:
        details = _details(args)
        announcement, ending = self._describe(track, name)
        return f'{announcement},\n{{"ts":{self._micros(at_ns)},"ph":"i","s":"t"{ending}{details}}}'

    def counter(self, name: str, at_ns: int, values: Mapping[str, object]) -> str:
        return f',\n{{"ts":{self._micros(at_ns)},"ph":"C","pid":{self._pid},"tid":0,"name":{quoted(name)}{_details(values)}}}'

    def _micros(self, at_ns: int) -> str:
        return f"{max(at_ns - self._origin_ns, 0) / 1000:.3f}"

    def _describe(self, track: str, name: str) -> tuple[str, str]:
        """The lines that name a new track (empty for a known one), and what ends an event called `name` on it."""
        announcement = ""
        tid = self._tids.get(track)
        if tid is None:
            tid = self._tids[track] = len(self._tids) + 1
            announcement = ",\n" + metadata("thread_name", self._pid, {"name": track}, tid=tid)
            announcement += ",\n" + metadata("thread_sort_index", self._pid, {"sort_index": tid}, tid=tid)
        if len(self._endings) >= _REMEMBERED_NAMES:
            self._endings.clear()
        ending = f',"pid":{self._pid},"tid":{tid},"name":{quoted(name)}'
        self._endings[track, name] = ending
        return announcement, ending


def metadata(name: str, pid: int, args: Mapping[str, object], *, tid: int = 0) -> str:
    return f'{{"name":{quoted(name)},"ph":"M","pid":{pid},"tid":{tid},"args":{arguments(args)}}}'


@functools.lru_cache(maxsize=_REMEMBERED_NAMES)
def quoted(text: str) -> str:
    return json.dumps(text)


def arguments(args: Mapping[str, object]) -> str:
    return "{" + ",".join([f"{quoted(str(key))}:{_value(value)}" for key, value in args.items()]) + "}"


def _details(args: Mapping[str, object] | None) -> str:
    return f',"args":{arguments(args)}' if args else ""


def _value(value: object) -> str:
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is str:
        return quoted(value)
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))


def _plain(value: object) -> object:
    """What JSON can carry of a value: NumPy's numbers as numbers, NaN and infinities as text, all else by str."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
