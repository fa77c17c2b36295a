"""What was read from the meters of one node: the input of every figure, whether just sampled or loaded from a file."""

from __future__ import annotations

import json
import logging
import os
import socket
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farandole.observe.power.meters import Meter, Reading, Refusal

__all__ = ["COMMAND", "MISSING", "PHASES_FILE", "RANKS", "Phase", "Recording", "SamplerCost", "MeterSeries", "read_phases", "tell_phase", "this_machine"]

PHASES_FILE = "FARANDOLE_POWER_PHASES"
"""The variable that names a file for every phase's begin and end: whoever samples around a command sets it."""
COMMAND = "command"
"""The phase of a whole command, as whoever samples around it names it."""
RANKS = "ranks"
"""The phase that a launcher tells: from the start of its ranks to the end of the last."""
_TELLING_S = 1.0
_log = logging.getLogger(__name__)
MISSING = -1
"""The raw count of a reading that failed."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with a name, on the timeline's clock."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(kw_only=True, slots=True)
class SamplerCost:
    """What sampling itself took."""

    samples: int = 0
    missed: int = 0
    """Samples that were due while the machine was too busy to take them."""
    running_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def share_of_a_core(self) -> float | None:
        """None where it ran too short a time: to begin and to end is not what sampling takes."""
        return self.cpu_s / self.running_s if self.running_s >= _TELLING_S else None


class MeterSeries:
    """The readings of one meter in order of time; 24 bytes each."""

    def __init__(self) -> None:
        self.monotonic_ns = array("q")
        self.realtime_ns = array("q")
        self.raw = array("q")
        self.failures: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def moves(self) -> bool | None:
        """Whether its readings differ; None where fewer than two were taken."""
        known = [raw for raw in self.raw if raw != MISSING]
        return any(raw != known[0] for raw in known) if len(known) > 1 else None

    def add(self, reading: Reading) -> None:
        """A value with the time stamp of the one before is no news; time never goes back."""
        if self.raw and (reading.realtime_ns == self.realtime_ns[-1] or reading.monotonic_ns <= self.monotonic_ns[-1]):
            return
        self.monotonic_ns.append(reading.monotonic_ns)
        self.realtime_ns.append(reading.realtime_ns)
        self.raw.append(MISSING if reading.raw is None else reading.raw)
        if reading.raw is None:
            self.failures[reading.why] += 1

    def between(self, start_ns: int, end_ns: int, margin_ns: int) -> MeterSeries:
        """A copy of the readings from `margin_ns` before to `margin_ns` after, and the next one on either side."""
        first = max(bisect_left(self.monotonic_ns, start_ns - margin_ns) - 1, 0)
        last = bisect_right(self.monotonic_ns, end_ns + margin_ns) + 1
        part = MeterSeries()
        part.monotonic_ns, part.realtime_ns = self.monotonic_ns[first:last], self.realtime_ns[first:last]
        part.raw, part.failures = self.raw[first:last], self.failures
        return part


@dataclass(kw_only=True, slots=True)
class Recording:
    """One node's meters and their series."""

    meters: Sequence[Meter]
    series: Sequence[MeterSeries]
    interval_s: float
    host: str
    machine: str
    """Distinguishes machines, not names of hosts: containers of one machine read the same meters."""
    refusals: Sequence[Refusal] = ()
    phases: list[Phase] = field(default_factory=list)
    idle: tuple[int, int] | None = None
    """From when to when nothing ran, where that was measured."""
    cost: SamplerCost = field(default_factory=SamplerCost)
    replayed_from: str = ""
    """The file it was loaded from."""

    def between(self, start_ns: int, end_ns: int, margin_ns: int) -> Sequence[MeterSeries]:
        return [series.between(start_ns, end_ns, margin_ns) for series in self.series]


def this_machine(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Its host's name and what it is told from other machines by."""
    host = environment.get("FARANDOLE_NODE") or socket.gethostname()
    try:
        return host, Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return host, host


def tell_phase(name: str, start_ns: int, end_ns: int) -> None:
    """To whoever samples around this process. One line, in one write: several may append. Other machines have other clocks."""
    path = os.environ.get(PHASES_FILE)
    if not path or not Path(path).parent.is_dir():  # ranks of other hosts may have inherited the variable
        return
    told = {"phase": name, "start_ns": start_ns, "end_ns": end_ns, "machine": this_machine()[1]}
    try:
        with Path(path).open("ab", buffering=0) as file:
            file.write((json.dumps(told) + "\n").encode())
    except OSError as error:
        _log.warning("phases are not told to %s: %s", path, error.strerror)


def read_phases(path: Path, machine: str) -> list[Phase]:
    """What other processes have told of their phases; lines of other machines or cut off are left out."""
    phases = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            told = json.loads(line)
            if told["machine"] == machine:
                phases.append(Phase(str(told["phase"]), int(told["start_ns"]), int(told["end_ns"])))
        except (ValueError, TypeError, KeyError):
            continue
    return phases
