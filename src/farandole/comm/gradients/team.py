"""Teams: the threads that reduce one optimizer's gradients while backward goes on.

Every optimizer has a team of its own, with its own communicator, so that several models (the two networks
of a GAN) reduce independently and at the same time.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from farandole.comm.current import current
from farandole.errors import SettingsError

__all__ = ["Statistics", "Team", "threads_allowed"]

_said = False


@dataclass(kw_only=True, slots=True)
class Team:
    """How one optimizer's gradients are reduced."""

    threads: int = 1
    """Threads that reduce during backward; 0 leaves all of it to step()."""
    stats_every: int = 0
    """Print a line of communication statistics every so many steps; 0 never does."""

    def __post_init__(self) -> None:
        if self.threads < 0 or self.stats_every < 0:
            raise SettingsError(f"{self}: threads and stats_every must be 0 or more")


def threads_allowed(wanted: int, level: str) -> int:
    """As many threads as MPI's thread level lets communicate; rank 0 says once where that is fewer."""
    global _said
    limit = {"single": 0, "funneled": 0, "serialized": 1}.get(level, wanted)
    if limit < wanted and not _said and current().rank == 0:
        _said = True
        warnings.warn(
            f"MPI gives thread level {level}, not multiple: teams get {limit} threads instead of {wanted}",
            RuntimeWarning,
            stacklevel=3,
        )
    return min(wanted, limit)


@dataclass(slots=True)
class Statistics:
    """What one team has moved since the last reset."""

    label: str
    ranks: int
    steps: int = 0
    nbytes: int = 0
    busy_s: float = 0.0
    exposed_s: float = field(default=0.0)

    def reduced(self, nbytes: int, seconds: float) -> None:
        self.nbytes += nbytes
        self.busy_s += seconds

    def step(self, *, exposed_s: float) -> None:
        self.steps += 1
        self.exposed_s += exposed_s

    def reset(self) -> None:
        self.steps, self.nbytes, self.busy_s, self.exposed_s = 0, 0, 0.0, 0.0

    def line(self) -> str:
        rate = self.nbytes / self.busy_s / 1e9 if self.busy_s else 0.0
        return (
            f"farandole: {self.label}: {self.steps} steps on {self.ranks} ranks, {self.nbytes / 1e6:.1f} MB reduced "
            f"in {self.busy_s:.3f} s ({rate:.2f} GB/s), {self.exposed_s:.3f} s exposed"
        )
