"""One rank's recorder: a queue that callers append to, and the writer thread that empties it into a part."""

import contextlib
import logging
import os
import threading
import time
from collections import Counter, deque
from pathlib import Path

from farandole.errors import SettingsError
from farandole.observe.chrome import EventText, metadata
from farandole.observe.part import ClockOffset, PartFile, part_path

__all__ = ["Event", "Recorder"]

# phase (X: span, i: instant, C: counter), track, name, start_ns, end_ns, args
Event = tuple[str, str, str, int, int, dict[str, object] | None]

_FLUSH_S = 0.25
_BATCH = 512  # events formatted between two writes: about a millisecond during which the GIL is wanted
_PENDING_LIMIT = 262_144  # events in memory when the disk is slower than the recording
_COUNTED_NAMES = 1_000

_log = logging.getLogger(__name__)


class Recorder:
    """Records one rank until `finish`; a full disk or a full part never reaches the callers."""

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        size: int,
        host: str,
        clock: ClockOffset,
        mark_cycles: bool,
        limit_bytes: int,
        origin_ns: int | None = None,
        provisional: bool = False,
    ) -> None:
        now_ns = time.monotonic_ns()
        origin_ns = now_ns if origin_ns is None else origin_ns
        header = {
            "start_time_since_epoch_in_micros": (time.time_ns() - now_ns + origin_ns) // 1000,
            "rank": rank,
            "size": size,
            "host": host,
            "process": os.getpid(),
            "start_monotonic_ns": origin_ns,
            **clock.as_header(),
        }
        self.path = path
        self.mark_cycles = mark_cycles
        self.provisional = provisional
        self.recording = True
        self._part = _open_part(path, header, rank=rank, host=host)
        self._label = f"[rank {rank}/{size}] timeline {self._part.path}"
        self._limit = f"the limit of {limit_bytes / 1e6:g} MB a rank (FARANDOLE_TIMELINE_MAX_MB)"
        self._room_bytes = limit_bytes - self._part.body_bytes
        self._text = EventText(pid=rank, origin_ns=origin_ns)
        self._dropped = _Dropped(origin_ns)
        self._last_clock: dict[str, object] = {}
        self._told_dropped = 0
        self._pending: deque[Event] = deque()
        self._finishing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="farandole-timeline", daemon=True)
        self._writer.start()

    def add(self, event: Event) -> None:
        """Callable from any thread; a deque's append needs no lock."""
        if len(self._pending) < _PENDING_LIMIT:
            self._pending.append(event)
        else:
            self._dropped.add(event, "the disk is slower than the recording")

    def finish(self, clock: ClockOffset | None = None) -> Path:
        """With the clock as it was compared in the end, where it was."""
        self.recording = False
        if clock is not None:
            self._last_clock = {"last_clock": [time.monotonic_ns(), clock.offset_ns, clock.residual_ns]}
        self._finishing.set()
        self._writer.join()
        return self._part.path

    def abandon_in_child(self) -> None:
        """Forget everything after a fork: the writer thread and the file belong to the parent."""
        self.recording = False
        with contextlib.suppress(OSError):  # the writer may have been closing it during the fork
            self._part.close()

    def _write(self) -> None:
        try:
            while not self._finishing.wait(_FLUSH_S):
                self._flush()
            self._flush()
            self._part.append("", self._dropped.note(closed=True) | self._last_clock)
            self._part.close()
        except OSError as error:
            self._give_up(error)

    def _flush(self) -> None:
        """Write what was pending at this moment; events that arrive meanwhile wait for the next time."""
        waiting = len(self._pending)
        for first in range(0, waiting, _BATCH):
            self._write_batch([self._pending.popleft() for _ in range(min(_BATCH, waiting - first))])
        if self._dropped.total > self._told_dropped:
            self._tell_dropped()

    def _write_batch(self, batch: list[Event]) -> None:
        texts = [self._event_text(event) for event in batch]
        text = "".join(texts)
        if not text:
            return
        try:
            self._part.append(text, self._dropped.note(closed=False))
        except OSError as error:
            for event, event_text in zip(batch, texts):
                if event_text:
                    self._dropped.add(event, _cause(error))
            raise

    def _event_text(self, event: Event) -> str:
        """The event as text; empty where it is dropped. Once the part is full it stays so: no gaps."""
        if self._room_bytes > 0:
            try:
                text = self._format(event)
            except Exception as error:  # an argument's own __str__ may raise anything: not training's problem
                self._dropped.add(event, f"arguments that cannot be written ({type(error).__name__})")
                return ""
            self._room_bytes -= len(text)
            if self._room_bytes >= 0:
                return text
            self._room_bytes = 0
        self._dropped.add(event, self._limit)
        return ""

    def _format(self, event: Event) -> str:
        phase, track, name, start_ns, end_ns, args = event
        if phase == "X":
            return self._text.span(track, name, start_ns, end_ns, args)
        if phase == "i":
            return self._text.instant(track, name, start_ns, args)
        return self._text.counter(name, start_ns, args or {})

    def _tell_dropped(self) -> None:
        self._part.append("", self._dropped.note(closed=False))
        if not self._told_dropped:
            _log.warning(
                "%s: from now on events are dropped and only counted: %s. The timeline says how many of which name.",
                self._label,
                self._dropped.reason(),
            )
        self._told_dropped = self._dropped.total

    def _give_up(self, error: OSError) -> None:
        """Stop recording and leave a valid part, with a note in the room that was kept for it."""
        self.recording = False
        _log.warning(
            "%s: recording stops: %s. Training goes on; what was written stays.", self._label, _cause(error)
        )
        while self._pending:
            self._dropped.add(self._pending.popleft(), _cause(error))
        with contextlib.suppress(OSError):  # merging copes with a part that could not even be sealed
            self._part.seal(self._dropped.note(closed=False))
        with contextlib.suppress(OSError):  # where closing is what failed
            self._part.close()


class _Dropped:
    """What could not be recorded: how many events of which name, since when and why."""

    def __init__(self, origin_ns: int) -> None:
        self.total = 0
        self._origin_ns = origin_ns
        self._since_ns = 0
        self._by_name: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._lock = threading.Lock()

    def add(self, event: Event, reason: str) -> None:
        with self._lock:
            if not self.total:
                self._since_ns = max(event[3] - self._origin_ns, 0)
            if reason not in self._reasons:
                self._reasons.append(reason)
            self.total += 1
            known = event[2] in self._by_name or len(self._by_name) < _COUNTED_NAMES
            self._by_name[event[2] if known else "(other names)"] += 1

    def reason(self) -> str:
        return "; ".join(self._reasons)

    def note(self, *, closed: bool) -> dict[str, object]:
        if not self.total:
            return {"closed": closed}
        with self._lock:
            return {
                "closed": closed,
                "dropped": self.total,
                "dropped_since_ns": self._since_ns,
                "dropped_because": self.reason(),
                "dropped_by_name": dict(self._by_name),
            }


def _open_part(path: Path, header: dict[str, object], *, rank: int, host: str) -> PartFile:
    part = part_path(path, rank)
    if path.is_dir():
        raise SettingsError(f"timeline {path} is a folder: expected a file, e.g. {path / 'trace.json'}.")
    lines = [
        metadata("process_name", rank, {"name": f"rank {rank} ({host})"}),
        metadata("process_sort_index", rank, {"sort_index": rank}),
    ]
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        return PartFile(part, pid=rank, header=header, lines=lines)
    except OSError as error:
        raise SettingsError(
            f"timeline {path}: cannot write {part} ({_cause(error)}). "
            f"Give a file in a folder that every rank can write to."
        ) from error


def _cause(error: OSError) -> str:
    return error.strerror or str(error)
