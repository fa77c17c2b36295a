"""`with farandole.observe.energy("train"):` the joules of any region of a program.

The first rank of each node samples while any of its regions is open; on the other ranks a region costs nothing and says
who measures it. Regions also become spans of the timeline.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
from typing import Self

from farandole.errors import SettingsError
from farandole.observe import timeline
from farandole.observe.power.discover import find_sensors, root_from_environment
from farandole.observe.power.energy import Energy, Window, unknown
from farandole.observe.power.meters import PARTS, Part
from farandole.observe.power.nodes import NodeEnergy, node_energy
from farandole.observe.power.phases import MARGIN_NS, PhaseEnergy, measure
from farandole.observe.power.recording import Phase, Recording, tell_phase
from farandole.observe.power.sampler import Sampler
from farandole.observe.process import speaks_for_node

__all__ = [
    "Region", "energy", "energy_between", "energy_of_node", "forget_energy", "keep_sampling", "measure_idle", "note_phase",
    "recording", "stop_sampling",
]  # fmt: skip

_ELSEWHERE = "measured by the first rank of this node"

_log = logging.getLogger(__name__)


class _Session:
    """The sampler of this process, and what it was asked about."""

    def __init__(self) -> None:
        found = find_sensors(root_from_environment())
        if found.modelled:
            refused = "; ".join(f"{one.sensor}: {one.reason} -> {one.advice}" for one in found.refusals)
            _log.warning("power is modelled, not measured: %s", refused or "this machine shows no power sensor")
        self.sampler = Sampler(found)
        self.phases: list[Phase] = []
        self.idle: tuple[int, int] | None = None
        self.kept: tuple[int, int | None] | None = None
        """From `keep_sampling` to `stop_sampling`, or None where it still goes on."""
        self._open = 0
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def is_ours(self) -> bool:
        """False in a child that was forked within a region: neither thread nor locks came with it."""
        return self._process == os.getpid()

    def enter(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self.sampler.start()
                return
        self.sampler.sample_unless_fresh()

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self.sampler.stop()
                return
        self.sampler.sample_unless_fresh()

    def recording(self) -> Recording:
        whole = self.sampler.recording()
        whole.phases, whole.idle = list(self.phases), self.idle
        return whole

    def measure(self, name: str, start_ns: int, end_ns: int) -> PhaseEnergy:
        idle = None if self.idle is None else self._measure("idle", *self.idle)
        return self._measure(name, start_ns, end_ns, idle)

    def between(self, start_ns: int, end_ns: int) -> NodeEnergy:
        if self._open:
            self.sampler.sample_unless_fresh()
        around = self.sampler.recording(start_ns, end_ns, MARGIN_NS)
        return node_energy(around, whole=Phase("between", start_ns, end_ns))

    def _measure(self, name: str, start_ns: int, end_ns: int, idle: PhaseEnergy | None = None) -> PhaseEnergy:
        """Without a copy of all that was sampled."""
        around = self.sampler.recording(start_ns, end_ns, MARGIN_NS)
        return measure(around, name, [(start_ns, end_ns)], idle)


class Region:
    """A region of a program, and what it took once it has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start_ns = 0
        self.end_ns = 0
        self._session: _Session | None = None

    def __enter__(self) -> Self:
        self._session = _session() if speaks_for_node() else None
        if self._session is not None:
            self._session.enter()
        self.start_ns = time.monotonic_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_ns = time.monotonic_ns()
        timeline.span(_track(), self.name, self.start_ns, self.end_ns)
        if self._session is not None and self._session.is_ours:
            self._session.leave()
            self._session.phases.append(Phase(self.name, self.start_ns, self.end_ns))
            tell_phase(self.name, self.start_ns, self.end_ns)

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def energy(self) -> PhaseEnergy:
        """What the whole node took, by part and in total."""
        if not self.end_ns:
            raise SettingsError(f"energy({self.name!r}): ask for figures when the region has ended")
        if self._session is None:
            nothing: dict[Part, Energy] = {part: unknown(_ELSEWHERE, duration_s=self.duration_s) for part in PARTS}
            return PhaseEnergy(
                name=self.name, times=1, duration_s=self.duration_s, parts=nothing, total=nothing["node"]
            )
        return self._session.measure(self.name, self.start_ns, self.end_ns)

    @property
    def energy_j(self) -> float | None:
        """In total; `energy.total` says how it is known."""
        return self.energy.total.energy_j

    def __str__(self) -> str:
        return f"{self.name}: {self.duration_s:.2f} s, {self.energy.total}"


def energy(name: str) -> Region:
    """A region to enter: `with energy("train") as used: ...`, then `used.energy_j`, or `print(used)`."""
    return Region(name)


def measure_idle(seconds: float) -> PhaseEnergy | None:
    """Sleep, and take what the node draws meanwhile for its idle power, which figures then have beside them.

    All ranks of a node call it, while nothing else runs there. None on those that do not measure.
    """
    if not 0 < seconds < math.inf:
        raise SettingsError(f"measure_idle({seconds:g}): expected seconds above 0, e.g. measure_idle(10)")
    if not speaks_for_node():
        time.sleep(seconds)
        return None
    session = _session()
    session.enter()
    start_ns = time.monotonic_ns()
    try:
        time.sleep(seconds)
    finally:
        end_ns = time.monotonic_ns()
        session.leave()
    session.idle = start_ns, end_ns
    return session.measure("idle", start_ns, end_ns)


def keep_sampling() -> None:
    """Sample until `stop_sampling`, whether a region is open or not."""
    session = _session()
    session.enter()
    session.kept = time.monotonic_ns(), None


def stop_sampling() -> None:
    session = _started
    if session is not None and session.is_ours and session.kept is not None:
        session.leave()
        session.kept = session.kept[0], time.monotonic_ns()


def note_phase(name: str, start_ns: int, end_ns: int) -> None:
    """A phase of a run: a region where somebody samples, here or around this process."""
    if not speaks_for_node():
        return
    if _started is not None and _started.is_ours:
        _started.phases.append(Phase(name, start_ns, end_ns))
    tell_phase(name, start_ns, end_ns)


def energy_of_node() -> NodeEnergy | None:
    """Every region that has ended, by name, and all of them together; None on ranks that do not measure.

    Where this rank samples from init() on (`--power`), the whole is the time from then until now.
    """
    session = _started
    if session is None:
        return None
    if session.kept is None:
        return node_energy(session.recording())
    since_ns, until_ns = session.kept
    if until_ns is None:
        session.sampler.sample_unless_fresh()
    whole = Phase(Window.INIT_TO_END, since_ns, until_ns or time.monotonic_ns())
    return node_energy(session.recording(), whole=whole, window=Window.INIT_TO_END)


def energy_between(start_ns: int, end_ns: int) -> NodeEnergy | None:
    """What this node took in a stretch of time until now; None on ranks that do not sample."""
    session = _started
    return session.between(start_ns, end_ns) if session is not None and session.is_ours else None


def recording() -> Recording | None:
    """What was sampled, for `write_trace` or a drawing; None where nothing was."""
    return None if _started is None else _started.recording()


def forget_energy() -> None:
    """Begin anew: drop all samples and regions, and look for sensors again."""
    global _started
    with _starting:
        session, _started = _started, None
    if session is not None:
        session.sampler.close()


_started: _Session | None = None
_starting = threading.Lock()


def _session() -> _Session:
    global _started
    _leave_children_out()
    with _starting:
        if _started is None:
            _started = _Session()
        return _started


def _track() -> str:
    """Of the timeline: regions of two threads may overlap, which spans of one track must not."""
    thread = threading.current_thread()
    return "phases" if thread is threading.main_thread() else f"phases ({thread.name})"


@functools.cache
def _leave_children_out() -> None:
    """A forked child has no sampler thread; its regions are its own."""
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    global _started, _starting
    _started, _starting = None, threading.Lock()
