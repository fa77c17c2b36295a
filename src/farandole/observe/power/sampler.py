"""The sampler: one thread that reads all meters of a node at even intervals, and says what that took."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from farandole.errors import SettingsError
from farandole.observe.power.discover import Found
from farandole.observe.power.meters import Clocks, Meter
from farandole.observe.power.recording import MeterSeries, Recording, SamplerCost, this_machine

__all__ = ["DEFAULT_INTERVAL_S", "Sampler"]

DEFAULT_INTERVAL_S = 0.1
_SHORTEST_S, _LONGEST_S = 0.001, 10.0
_EVER_NS = 1 << 62
_FRESH_S = 0.005
"""A phase that begins this soon after a sample needs none of its own."""


class Sampler:
    """Samples while entered; `sample` takes one more at once. May be entered again: the series go on."""

    def __init__(self, found: Found, *, interval_s: float = DEFAULT_INTERVAL_S, clock: Clocks | None = None) -> None:
        _check_interval(interval_s, found.meters)
        self.interval_s = interval_s
        self._found = found
        self._meters = list(found.meters)
        self._clock = clock or Clocks()
        self._series = [MeterSeries() for _ in self._meters]
        self._cost = SamplerCost()
        self._machine = this_machine()
        self._lock = threading.Lock()
        self._sampled_at = -math.inf
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; the last thing it does is a sample."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stopping,), name="farandole-power", daemon=True)
        self._thread.start()
        self.sample()

    def stop(self) -> None:
        """End; the first thing it does is a sample, so that little time lies between it and what has ended."""
        self.sample()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()

    def close(self) -> None:
        """End, and let go of the sensors; what was sampled stays."""
        if self._thread is not None:
            self.stop()
        with self._lock:
            self._found.close()

    def sample(self) -> None:
        """Read every meter now."""
        with self._lock:
            began_ns = time.thread_time_ns()
            self._read()
            self._cost.cpu_s += (time.thread_time_ns() - began_ns) / 1e9

    def sample_unless_fresh(self) -> None:
        if time.monotonic() - self._sampled_at > _FRESH_S:
            self.sample()

    def recording(self, start_ns: int = 0, end_ns: int = _EVER_NS, margin_ns: int = 0) -> Recording:
        """A copy of what was sampled so far, or around a stretch of time."""
        host, machine = self._machine
        with self._lock:
            return Recording(
                meters=self._meters,
                series=[series.between(start_ns, end_ns, margin_ns) for series in self._series],
                interval_s=self.interval_s, host=host, machine=machine,
                refusals=list(self._found.refusals), cost=replace(self._cost),
            )  # fmt: skip

    def _read(self) -> None:
        if not self._found.sensors:
            return
        self._sampled_at = time.monotonic()
        readings = [reading for sensor in self._found.sensors for reading in sensor.read(self._clock)]
        for series, reading in zip(self._series, readings, strict=True):
            series.add(reading)
        self._cost.samples += 1

    def _run(self, stopping: threading.Event) -> None:
        ticked_s = due_s = time.monotonic()
        ticked_cpu_s = 0.0
        while True:
            due_s += self.interval_s
            last = stopping.wait(max(due_s - time.monotonic(), 0.0))
            late = max(int((time.monotonic() - due_s) / self.interval_s), 0)
            due_s += late * self.interval_s
            with self._lock:
                if not last:
                    self._read()
                now_s, now_cpu_s = time.monotonic(), time.thread_time()
                self._cost.missed += late
                self._cost.running_s += now_s - ticked_s
                self._cost.cpu_s += now_cpu_s - ticked_cpu_s
            if last:
                return
            ticked_s, ticked_cpu_s = now_s, now_cpu_s


def _check_interval(interval_s: float, meters: Sequence[Meter]) -> None:
    """Twice in the shortest time in which a counter may come around."""
    rounds_s = [meter.wraps_at * meter.unit / meter.plausible_w for meter in meters if meter.wraps_at is not None]
    longest_s = min([_LONGEST_S, *(seconds / 2 for seconds in rounds_s)])
    if not _SHORTEST_S <= interval_s <= longest_s:
        raise SettingsError(
            f"a sample every {interval_s:g} s: expected {_SHORTEST_S:g} to {longest_s:.3g} s here, e.g. {DEFAULT_INTERVAL_S:g}"
        )
