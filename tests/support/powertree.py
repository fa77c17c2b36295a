"""A machine whose true power is known: folders as the kernel shows them, and a clock that the test turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from farandole.observe.power import Recording, Sampler, find_sensors
from farandole.observe.power.meters import Clocks

__all__ = ["EPOCH_NS", "Machine", "Zone", "ramp", "steady"]

EPOCH_NS = 1_700_000_000_000_000_000
Joules = Callable[[float], float]
"""The energy taken since second 0."""


def steady(watts: float) -> Joules:
    return lambda second: watts * second


def ramp(start_w: float, watts_a_second: float) -> Joules:
    return lambda second: start_w * second + watts_a_second * second**2 / 2


class Zone:
    """A counter of microjoules that wraps."""

    def __init__(self, path: Path, joules: Joules, *, range_j: float, first_j: float) -> None:
        self.path = path
        self.joules = joules
        self.range_uj = round(range_j * 1e6)
        self.first_uj = round(first_j * 1e6)

    def show(self, second: float) -> str:
        return str((self.first_uj + round(self.joules(second) * 1e6)) % self.range_uj)


class Machine:
    """Files below `root`, written anew for every moment at which the meters are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.second = 0.0
        self._shows: dict[Path, Callable[[float], str]] = {}
        self.clock = Clocks(
            monotonic_ns=lambda: round(self.second * 1e9),
            # Two clocks are never read at once, so that they seem to drift apart and back.
            realtime_ns=lambda: EPOCH_NS + round(self.second * 1e9) + round(self.second * 10) % 3 * 400,
        )

    def write(self, place: str, text: str) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def shows(self, place: str, text: Callable[[float], str]) -> None:
        """A file whose content depends on the second."""
        self._shows[self.write(place, text(0.0))] = text

    def rapl(
        self,
        zone: str,
        name: str,
        joules: Joules,
        *,
        range_j: float = 65_532.61,
        first_j: float = 1_000.0,
        limit_w: float | None = None,
    ) -> Zone:
        """A zone of powercap, e.g. `0` or, below it, `0:1`."""
        folder = f"sys/class/powercap/intel-rapl:{zone}"
        self.write(f"{folder}/name", name + "\n")
        self.write(f"{folder}/max_energy_range_uj", f"{round(range_j * 1e6)}\n")
        if limit_w is not None:
            self.write(f"{folder}/constraint_0_power_limit_uw", f"{round(limit_w * 1e6)}\n")
            self.write(f"{folder}/constraint_0_max_power_uw", f"{round(limit_w * 1e6)}\n")
        made = Zone(self.root / folder / "energy_uj", joules, range_j=range_j, first_j=first_j)
        self.shows(f"{folder}/energy_uj", lambda second: made.show(second))
        return made

    def proc(self, *, cores: int = 4, gigabytes: float = 16.0, busy: float = 0.5, used: float = 0.25) -> None:
        """`busy` of the cores' time and `used` of the memory, steadily."""

        def stat(second: float) -> str:
            ticks = second * os.sysconf("SC_CLK_TCK") * cores
            counts = [round(ticks * busy), 0, 0, round(ticks * (1 - busy)), 0, 0, 0, 0, 0, 0]
            lines = [" ".join(["cpu ", *map(str, counts)]), *(f"cpu{core} 0 0 0 0 0 0 0 0 0 0" for core in range(cores))]
            return "\n".join(lines) + "\n"

        total_kb = round(gigabytes * 1e9 / 1024)
        free_kb = round(total_kb * (1 - used))
        self.shows("proc/stat", stat)
        self.write("proc/meminfo", f"MemTotal: {total_kb} kB\nMemFree: {free_kb} kB\nMemAvailable: {free_kb} kB\n")

    def breaks(self, place: str) -> None:
        """A file that is there and cannot be read any more, as of a faulty register."""
        path = self.root / place
        del self._shows[path]
        path.unlink()
        path.mkdir()

    def at(self, second: float) -> None:
        """Turn the clock. Files are overwritten in place: those who read them keep them open."""
        self.second = second
        for path, text in self._shows.items():
            path.write_text(text(second))

    def sampled(self, seconds: Iterable[float], *, interval_s: float = 0.1) -> Recording:
        """What a sampler records that reads the meters at these seconds."""
        self.at(0.0)
        with closing(find_sensors(self.root, {})) as found:
            sampler = Sampler(found, interval_s=interval_s, clock=self.clock)
            for second in seconds:
                self.at(second)
                sampler.sample()
            return sampler.recording()
