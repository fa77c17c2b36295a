"""The timeline: what each thread of each rank did and when, in a file that Chrome and Perfetto show.

    timeline.start("trace.json", rank=0, size=4, host="n1")
    timeline.span("training", "FORWARD", began_ns, time.monotonic_ns())
    timeline.stop()
    timeline.merge_parts(Path("trace.json"))     # one process, when all ranks have stopped

Recording goes in two phases. The caller appends a tuple to a queue and goes on. A writer thread wakes a few
times a second, turns the queue into text and adds it to the rank's part file, which is valid JSON after each
write: a killed rank loses at most the last moment. Merging makes one file of all parts.

All times are `time.monotonic_ns()`, one clock for all the ranks of a host. Spans of one track must nest.
"""

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from farandole.errors import SettingsError
from farandole.observe import hooks
from farandole.observe.merge import discard_parts, merge_parts
from farandole.observe.part import ClockOffset
from farandole.observe.process import speaks_for_node
from farandole.observe.recorder import Recorder

__all__ = [
    "POWER_VARIABLE",
    "active",
    "counter",
    "cycle_start",
    "discard_parts",
    "instant",
    "merge_parts",
    "otherwise",
    "path_from_environment",
    "span",
    "start",
    "stop",
    "taken",
]

_DEFAULT_LIMIT_MB = 256
POWER_VARIABLE = "FARANDOLE_TIMELINE_POWER"
"""With anything but 0 in it, the first rank of each node samples power while it records."""

_recorder: Recorder | None = None
_power_since_ns = 0
_otherwise: Callable[[str, str, int, int, Mapping[str, object] | None], None] | None = None
_switching = threading.RLock()  # a signal handler may stop what it interrupted


def active() -> bool:
    return _recorder is not None and _recorder.recording


def taken() -> bool:
    """Whether there is a timeline that somebody in this process has asked for."""
    return _recorder is not None and not _recorder.provisional


def start(
    path: str | Path,
    *,
    rank: int,
    size: int,
    host: str,
    clock: ClockOffset | None = None,
    mark_cycles: bool = False,
    origin_ns: int | None = None,
    provisional: bool = False,
) -> None:
    """Record this rank from now on, or since `origin_ns`, into a part beside `path`; `clock` leads to the common time.

    A `provisional` timeline is one that nobody in this process has asked for: it ends when somebody starts another.
    """
    global _recorder, _power_since_ns
    _leave_children_out()
    with _switching:
        if _recorder is not None and _recorder.provisional:
            stop()
        if _recorder is not None:
            raise SettingsError(
                f"timeline {path}: this rank already records to {_recorder.path}. Stop that timeline first."
            )
        _recorder = Recorder(
            Path(path).absolute(),
            rank=rank,
            size=size,
            host=host,
            clock=clock or ClockOffset(),
            mark_cycles=mark_cycles,
            limit_bytes=_limit_bytes(),
            origin_ns=origin_ns,
            provisional=provisional,
        )
    if not provisional:
        hooks.watch(sys.modules[__name__])
    if os.environ.get(POWER_VARIABLE, "0") not in ("", "0") and speaks_for_node():
        from farandole.observe.power.counters import begin

        begin()
        _power_since_ns = time.monotonic_ns()


def span(track: str, name: str, start_ns: int, end_ns: int, args: Mapping[str, object] | None = None) -> None:
    """Something that lasted; `args` are shown with it."""
    recorder = _recorder
    if recorder is not None and recorder.recording:
        recorder.add(("X", track, name, start_ns, end_ns, dict(args) if args else None))
    elif _otherwise is not None:
        _otherwise(track, name, start_ns, end_ns, args)


def otherwise(take: Callable[[str, str, int, int, Mapping[str, object] | None], None]) -> None:
    """Who gets spans while nothing is recorded: somebody who may start to record because of them."""
    global _otherwise
    _otherwise = take


def instant(track: str, name: str, at_ns: int, args: Mapping[str, object] | None = None) -> None:
    """Something that happened at one moment."""
    recorder = _recorder
    if recorder is not None and recorder.recording:
        recorder.add(("i", track, name, at_ns, at_ns, dict(args) if args else None))


def counter(name: str, at_ns: int, values: Mapping[str, float]) -> None:
    """Quantities that change over time, drawn as a stacked curve."""
    recorder = _recorder
    if recorder is not None and recorder.recording:
        recorder.add(("C", "", name, at_ns, at_ns, dict(values)))


def cycle_start(at_ns: int) -> None:
    """Horovod's CYCLE_START: a round of the engine that carries something out; only where `start` was asked to mark them."""
    recorder = _recorder
    if recorder is not None and recorder.mark_cycles:
        instant("engine", "CYCLE_START", at_ns)


def stop(clock: ClockOffset | None = None) -> Path | None:
    """Write what is pending, close this rank's part and return it; None where nothing was recorded.

    `clock` is the comparison of clocks at the end, where one was made: clocks drift.
    """
    global _recorder, _power_since_ns
    since_ns, _power_since_ns = _power_since_ns, 0
    if since_ns:
        from farandole.observe.power.counters import end

        end(since_ns, time.monotonic_ns(), counter, instant)
    with _switching:
        recorder, _recorder = _recorder, None
    if recorder is None:
        return None
    hooks.unwatch()
    return recorder.finish(clock)


def path_from_environment() -> Path | None:
    """The file that FARANDOLE_TIMELINE, or else HOROVOD_TIMELINE, asks for; DYNAMIC leaves it to the script."""
    value = os.environ.get("FARANDOLE_TIMELINE") or os.environ.get("HOROVOD_TIMELINE")
    return Path(value) if value and value != "DYNAMIC" else None


def _limit_bytes() -> int:
    text = os.environ.get("FARANDOLE_TIMELINE_MAX_MB") or str(_DEFAULT_LIMIT_MB)
    try:
        limit_mb = float(text)
    except ValueError:
        limit_mb = math.nan
    if not 0 < limit_mb < math.inf:
        raise SettingsError(
            f"FARANDOLE_TIMELINE_MAX_MB={text!r} is not a size: expected a number of megabytes a rank above 0, "
            f"e.g. FARANDOLE_TIMELINE_MAX_MB={_DEFAULT_LIMIT_MB}."
        )
    return int(limit_mb * 1_000_000)


@functools.cache
def _leave_children_out() -> None:
    """Forked children (data loader workers) inherit the recorder but must not write into their parent's file."""
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    global _recorder, _switching, _power_since_ns
    _power_since_ns = 0
    _switching = threading.RLock()
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.abandon_in_child()
