"""Who waits for whom: a thread beside the engine that names late ranks and ends hopeless waits.

Each rank's watchdog looks at its slow waits (waiting.py) twice a second. While it has any, it reports
them to rank 0, whose watchdog sees them all and decides:

    left        a rank that others wait for has exited      -> the waits end with RankFailedError
                (not one that had done its part: what it sent is on its way)
    crossed     ranks wait for each other in different operations (a training step here, an allreduce
                there): nobody will ever come               -> the waits end with MismatchError
    stalled     a wait is older than the warning time       -> a warning names who is here and who is not
                and older than the abort time, if set       -> the waits end with StalledError

While rank 0 does not answer, each rank ends its own waits that are older than the abort time. A neighbour on the same
node that has died is seen directly, one on another node by the end of its line (lifelines.py). An idle watchdog costs two
short look-ups a second.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from farandole.comm.bytes.transport import Request, Transport
from farandole.comm.bytes.waiting import Subject, blocked, callers
from farandole.comm.node.neighbours import alive, death_of, know_neighbours
from farandole.comm.world.lifelines import Lifelines
from farandole.errors import FarandoleError, MismatchError, RankFailedError, SettingsError, StalledError

__all__ = ["StallSettings", "Watchdog", "crossed"]

TICK_S = 0.5
CROSSED_S = 3.0
UNANSWERED_S = 5.0
# One look lets the library handle one packet, and those of other communicators stand in the same queue.
LOOKS = 100
_TO_HUB, _FROM_HUB = 1, 2
_ERRORS: dict[str, type[FarandoleError]] = {
    "left": RankFailedError,
    "crossed": MismatchError,
    "stalled": StalledError,
}


@dataclass(kw_only=True, slots=True)
class StallSettings:
    """When to speak of a wait, and when to end it."""

    warn_s: float = 60.0
    """Warn about waits this old; 0 never warns."""
    abort_s: float = 0.0
    """End waits this old with StalledError; 0 never does."""

    @classmethod
    def from_environment(cls) -> StallSettings:
        """FARANDOLE_STALL_* or, for scripts that set them, HOROVOD_STALL_*."""
        if _variable("STALL_CHECK_DISABLE") in ("1", "true", "True"):
            return cls(warn_s=0.0)
        return cls(
            warn_s=_seconds("STALL_CHECK_TIME_SECONDS", 60.0), abort_s=_seconds("STALL_SHUTDOWN_TIME_SECONDS", 0.0)
        )

    def __post_init__(self) -> None:
        if not (self.warn_s >= 0 and self.abort_s >= 0):
            raise SettingsError(f"{self}: seconds must be 0 (never) or more")


def _variable(name: str) -> str | None:
    return os.environ.get(f"FARANDOLE_{name}", os.environ.get(f"HOROVOD_{name}"))


def _seconds(name: str, default: float) -> float:
    text = _variable(name)
    try:
        return float(text) if text else default
    except ValueError:
        raise SettingsError(f"FARANDOLE_{name}={text!r}: give a number of seconds, e.g. 60") from None


class Wait(NamedTuple):
    """One slow wait of a rank, as reported."""

    key: str
    waited_s: float
    members: tuple[int, ...]
    missing: tuple[int, ...] | None
    """Ranks known to be late: none where the data is on its way; None where it is not known."""
    held: bool
    """Whether a thread stands in it; otherwise it is asynchronous, and its rank may be elsewhere."""


class Report(NamedTuple):
    """All slow waits of a rank, every key it takes part in at the moment, and steps it has done its part of."""

    waits: tuple[Wait, ...]
    keys: frozenset[str]
    done: frozenset[str] = frozenset()
    threads: int = 1
    """Threads of the program that use farandole, whether they wait or compute."""

    def place(self) -> Wait | None:
        """The operation all threads stand in; None where there are several or one computes: it may help the others."""
        held = [wait for wait in self.waits if wait.held]
        together = len(held) >= self.threads and len({wait.key for wait in held}) == 1
        return max(held, key=lambda wait: wait.waited_s) if together else None


class Farewell(NamedTuple):
    """Why a rank takes part in nothing more, and its last report."""

    reason: str
    last: Report


@dataclass(slots=True)
class _Hub:
    """What rank 0 knows."""

    reports: dict[int, Report] = field(default_factory=dict)
    left: dict[int, Farewell] = field(default_factory=dict)
    warned: dict[str, float] = field(default_factory=dict)
    ended: dict[tuple[int, str], float] = field(default_factory=dict)


def missing_ranks(wait: Wait, reports: dict[int, Report]) -> list[int]:
    """Members that do not take part in what the others wait for."""
    if wait.missing is not None:
        return list(wait.missing)
    return [r for r in wait.members if r not in reports or wait.key not in reports[r].keys | reports[r].done]


def gone_ranks(wait: Wait, reports: dict[int, Report], left: dict[int, Farewell]) -> list[int]:
    """Members that will never do their part of what the others wait for."""
    if wait.missing == ():
        return [r for r in wait.members if r in left and wait.key in left[r].last.keys]
    return [r for r in missing_ranks(wait, reports) if r in left and wait.key not in left[r].last.done]


def crossed(reports: dict[int, Report]) -> dict[int, Wait]:
    """Ranks that wait for one another in different operations, so that none can go on."""
    places = {rank: report.place() for rank, report in reports.items()}
    stuck = {rank: wait for rank, wait in places.items() if wait is not None}
    while True:
        keep = {}
        for rank, wait in stuck.items():
            late = missing_ranks(wait, reports)
            if any(other in stuck and stuck[other].key != wait.key for other in late):
                keep[rank] = wait
        if len(keep) == len(stuck):
            break
        stuck = keep
    # One that has only just begun to wait may still be answered, and then everybody goes on.
    settled = all(wait.waited_s > CROSSED_S for wait in stuck.values())
    return stuck if settled else {}


class Watchdog:
    """The watchdog of one rank. Collective to make (it has a communicator of its own)."""

    def __init__(
        self,
        transport: Transport,
        neighbours: dict[int, int],
        lines: Lifelines,
        pending_keys: Callable[[], list[str]],
        done_keys: Callable[[], list[str]],
        settings: StallSettings,
    ) -> None:
        """`neighbours` are the process numbers of the node's other ranks, by world rank."""
        self._transport = transport
        self._neighbours = neighbours
        self._lines = lines
        know_neighbours(neighbours)
        self._pending_keys, self._done_keys = pending_keys, done_keys
        self._settings = settings
        self._hub = _Hub() if transport.rank == 0 else None
        self._sent: list[Request] = []
        self._reported = False
        self._answered = time.monotonic()
        self._warned_alone = False
        self._faults: set[str] = set()
        self._deserted: Farewell | None = None  # why rank 0 decides nothing more
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="farandole-watchdog", daemon=True)

    def start(self) -> None:
        if self._transport.size > 1:
            self._thread.start()

    def stop(self, reason: str) -> None:
        """Tell the others that this rank takes part in nothing more."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * TICK_S)
        self._lines.say_farewell()
        if self._transport.size > 1:
            farewell = Farewell(reason, self._report())
            if self._hub is None:
                self._post(("left", farewell), 0, _TO_HUB)
            else:
                for peer in range(1, self._transport.size):
                    self._post(("left", None, farewell), peer)

    def everyone_left(self) -> bool:
        """After stop(): whether the others' farewells have come."""
        if self._hub is None:
            for _, content in self._mail(_FROM_HUB):
                self._obey(*content)
            return self._deserted is not None
        self._listen(self._hub)
        return len(self._hub.left) == self._transport.size - 1

    def free(self) -> None:
        """After everyone_left(), on every rank. Collective."""
        if not self._thread.is_alive():
            self._transport.free()

    def _post(self, value: object, dest: int, tag: int = _FROM_HUB) -> None:
        self._sent = [request for request in self._sent if not request.test()]
        self._sent.append(self._transport.send_message(pickle.dumps(value), dest, tag))

    def _mail(self, tag: int) -> Iterator[tuple[int, Any]]:
        """What has come, with its sender; a rank that does nothing else must look often to receive it."""
        looks = 0
        while looks < LOOKS:
            message = self._transport.poll_message(tag)
            looks = looks + 1 if message is None else 0
            if message is not None:
                yield message[0], pickle.loads(message[1])

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._going_on():
                self._look(self._report())

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """A fault of its own ends nothing but what is inside: without a watchdog, ranks would wait for ever."""
        try:
            yield
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            if fault not in self._faults:
                self._faults.add(fault)
                _say(f"{self._here()}the watchdog goes on after a fault of its own:\n{traceback.format_exc()}")

    def _look(self, report: Report) -> None:
        if report.waits:
            with self._going_on():
                self._look_for_deaths(report)
        if not self._transport.any_thread:
            self._warn_alone(report)
        elif self._hub is None:
            with self._going_on():
                self._talk(report)
            self._doubt_the_hub(report)
        else:
            with self._going_on():
                self._listen(self._hub)
            self._hub.reports[0] = self._report()
            self._decide(self._hub)

    def _report(self) -> Report:
        now = time.monotonic()
        # Of the waits of one thread, the innermost.
        entries = {entry.thread or id(entry): entry for entry in blocked.entries()}.values()
        waits = tuple(
            Wait(
                entry.subject.key,
                now - entry.since,
                entry.subject.members,
                self._late(entry.subject),
                entry.thread is not None,
            )
            for entry in entries
        )
        keys = frozenset(self._pending_keys()) | {wait.key for wait in waits}
        return Report(waits, keys, frozenset(self._done_keys()), callers())

    def _late(self, subject: Subject) -> tuple[int, ...] | None:
        """None where it cannot be known."""
        late = None
        with self._going_on():
            late = subject.missing()
        return None if late is None else tuple(late)

    def _lost(self) -> set[int]:
        lost: set[int] = set()
        with self._going_on():
            lost |= self._lines.lost()
        return lost

    # Every rank

    def _look_for_deaths(self, report: Report) -> None:
        for rank, pid in self._neighbours.items():
            concerned = [wait.key for wait in report.waits if rank in wait.members]
            if concerned and not alive(pid):
                for key in concerned:
                    blocked.fail(key, death_of(pid))
        gone = self._lost()
        for wait in report.waits:
            if lost := gone.intersection(wait.members):
                blocked.fail(wait.key, RankFailedError(self._here() + _loss(wait, lost)))
        for entry in blocked.entries():
            failed = isinstance(entry.error, RankFailedError | StalledError)
            if failed and time.monotonic() - entry.failed_at > UNANSWERED_S:
                # The wait is inside a library call that cannot be interrupted.
                _say(f"{self._here()}{entry.error}; cannot leave {entry.subject.key}: ending the job")
                self._transport.abort(1)

    def _warn_alone(self, report: Report) -> None:
        """Below MPI_THREAD_SERIALIZED the watchdogs cannot talk: each says what it sees."""
        for wait in report.waits:
            if self._settings.warn_s and wait.waited_s >= self._settings.warn_s and not self._warned_alone:
                self._warned_alone = True
                late = ", ".join(map(str, wait.missing or ())) or "unknown"
                _say(f"{self._here()}{wait.key} has waited {wait.waited_s:.0f} s; missing ranks: {late}")

    def _talk(self, report: Report) -> None:
        if report.waits or self._reported:
            if not self._reported:
                self._answered = time.monotonic()
            self._post(("report", report), 0, _TO_HUB)
            self._reported = bool(report.waits)
        self._miss_the_hub(report)
        for _, content in self._mail(_FROM_HUB):
            self._answered = time.monotonic()
            self._obey(*content)

    def _obey(self, verdict: str, key: str | None, content: str | Farewell) -> None:
        if isinstance(content, Farewell):
            self._deserted = content
        elif key is not None:
            blocked.fail(key, _ERRORS[verdict](self._here() + content))

    def _miss_the_hub(self, report: Report) -> None:
        """End what rank 0 has left; `report` is younger than its farewell."""
        left = {} if self._deserted is None else {0: self._deserted}
        for wait in report.waits:
            if gone_ranks(wait, {}, left):
                blocked.fail(wait.key, RankFailedError(self._here() + _farewell(wait, left)))

    def _doubt_the_hub(self, report: Report) -> None:
        """Rank 0 decides nothing while it is silent: warn of it, and end what has waited too long."""
        if not report.waits or time.monotonic() - self._answered <= UNANSWERED_S:
            return
        for wait in report.waits:
            if self._settings.abort_s and wait.waited_s > self._settings.abort_s:
                text = f"{_waited([wait])}; rank 0 does not answer; the limit is {self._settings.abort_s:g} s"
                blocked.fail(wait.key, StalledError(self._here() + text))
        warn_s = self._settings.warn_s
        if not warn_s or self._warned_alone:
            return
        oldest = max(report.waits, key=lambda wait: wait.waited_s)
        if oldest.waited_s >= warn_s:
            self._warned_alone = True
            _say(
                f"{self._here()}{oldest.key} has waited {oldest.waited_s:.0f} s, and rank 0 does not answer: "
                "it is stopped or its interpreter is held"
            )

    # Rank 0

    def _listen(self, hub: _Hub) -> None:
        known = len(hub.left)
        for rank, (kind, content) in self._mail(_TO_HUB):
            if kind == "left":
                hub.left[rank] = content
            else:
                hub.reports[rank] = content
                if not self._stop.is_set():  # a farewell is the last message
                    self._post(("heard", None, ""), rank)
        if len(hub.left) > known:
            # What was reported before a rank left may have ended with it.
            hub.reports.clear()

    def _decide(self, hub: _Hub) -> None:
        current = {(rank, wait.key) for rank, report in hub.reports.items() for wait in report.waits}
        hub.ended = {which: at for which, at in hub.ended.items() if which in current}
        lost = self._lost()
        for rank, report in list(hub.reports.items()):
            for wait in report.waits:
                if rank not in lost and not lost.isdisjoint(wait.members):
                    self._end(hub, rank, "left", wait.key, _loss(wait, lost.intersection(wait.members)))
                gone = gone_ranks(wait, hub.reports, hub.left)
                if gone:
                    self._end(hub, rank, "left", wait.key, _farewell(wait, {r: hub.left[r] for r in gone}))
        tangled = crossed(hub.reports)
        if tangled:
            places = "; ".join(f"rank {r} waits in {w.key}" for r, w in sorted(tangled.items()))
            for rank, wait in tangled.items():
                text = f"the ranks are in different operations and wait for each other: {places}"
                self._end(hub, rank, "crossed", wait.key, text)
        self._speak_of_stalls(hub)

    def _end(self, hub: _Hub, rank: int, verdict: str, key: str, text: str) -> None:
        first = hub.ended.setdefault((rank, key), time.monotonic())
        if verdict == "stalled" and time.monotonic() - first > UNANSWERED_S:
            # The wait is inside a library call that cannot be interrupted.
            _say(f"rank {rank} cannot leave {key}: ending the job")
            self._transport.abort(1)
        if rank == 0:
            self._obey(verdict, key, text)
        else:
            self._post((verdict, key, text), rank)

    def _speak_of_stalls(self, hub: _Hub) -> None:
        oldest: dict[str, tuple[Wait, set[int]]] = {}
        for rank, report in hub.reports.items():
            for wait in report.waits:
                known, ranks = oldest.get(wait.key, (wait, set()))
                oldest[wait.key] = (max(known, wait, key=lambda w: w.waited_s), ranks | {rank})
        hub.warned = {key: at for key, at in hub.warned.items() if key in oldest}
        groups: dict[str, list[Wait]] = {}
        for key, (wait, ranks) in oldest.items():
            where = self._where(hub, wait, ranks)
            groups.setdefault(where, []).append(wait)
            if self._settings.abort_s and wait.waited_s > self._settings.abort_s:
                text = f"{_waited([wait])}; {where}; the limit is {self._settings.abort_s:g} s"
                for rank in ranks:
                    self._end(hub, rank, "stalled", key, text)
        for where, waits in groups.items():
            self._warn(hub, where, waits)

    def _warn(self, hub: _Hub, where: str, waits: list[Wait]) -> None:
        """Speak once of all that stand alike when the first of them is due, and again after twice the time."""
        warn_s = self._settings.warn_s
        if warn_s and any(wait.waited_s >= hub.warned.get(wait.key, warn_s) for wait in waits):
            _say(f"stalled: {_waited(waits)}; {where}")
            again_s = 2 * max(wait.waited_s for wait in waits)
            hub.warned |= {wait.key: again_s for wait in waits}

    def _where(self, hub: _Hub, wait: Wait, ranks: set[int]) -> str:
        missing = [f"rank {rank} ({_place(hub.reports.get(rank))})" for rank in missing_ranks(wait, hub.reports)]
        late = ", ".join(missing) or "nobody (the operation itself is slow)"
        return f"here: rank {', '.join(map(str, sorted(ranks)))}; missing: {late}"

    def _here(self) -> str:
        return f"[rank {self._transport.rank}/{self._transport.size}] "


def _farewell(wait: Wait, gone: dict[int, Farewell]) -> str:
    who = ", ".join(f"rank {rank} {farewell.reason}" for rank, farewell in gone.items())
    return f"{wait.key}: {who} and takes part in nothing more"


def _loss(wait: Wait, lost: set[int]) -> str:
    return f"{wait.key}: rank {', '.join(map(str, sorted(lost)))}, on another node, has died"


def _waited(waits: list[Wait]) -> str:
    longest = sorted(waits, key=lambda wait: -wait.waited_s)
    names = ", ".join(wait.key for wait in longest[:3]) + (f" and {len(waits) - 3} more" if len(waits) > 3 else "")
    return f"{names} {'has' if len(waits) == 1 else 'have'} waited {longest[0].waited_s:.0f} s"


def _place(report: Report | None) -> str:
    held = [wait.key for wait in report.waits if wait.held] if report else []
    return f"in {' and '.join(sorted(set(held)))}" if held else "in no farandole call"


def _say(text: str) -> None:
    print(f"farandole: {text}\n", end="", file=sys.stderr, flush=True)  # in one write: ranks' lines must not mix
