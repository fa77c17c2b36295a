"""What every power sensor gives: meters, and readings of them that are differenced later.

A reading is the raw number the hardware shows and when it showed it; what it means in joules is the meter's. Nothing
is computed while sampling, so that a recorded trace goes through the same arithmetic as a live run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

__all__ = ["PARTS", "Clocks", "Meter", "Part", "Provenance", "Reading", "Refusal", "Sensor"]

Part = Literal["node", "cpu", "memory", "gpu"]
PARTS: tuple[Part, ...] = ("node", "cpu", "memory", "gpu")

# What no single meter of a part can show: beyond it a difference is a reset or a faulty reading.
_PLAUSIBLE_W: dict[Part, float] = {"node": 20_000.0, "cpu": 2_000.0, "memory": 2_000.0, "gpu": 5_000.0}


class Provenance(StrEnum):
    """How a figure is known."""

    NODE = "measured-node"
    COMPONENT = "measured-component"
    MODELLED = "modelled"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """One counter of energy, or one gauge of power."""

    name: str
    part: Part
    """What of the node it covers."""
    sensor: str
    """RAPL, Cray pm_counters, ...: meters of different sensors may show the same joules twice."""
    provenance: Provenance
    kind: Literal["energy", "power"]
    unit: float
    """Joules (energy) or watts (power) of one raw count."""
    wraps_at: int | None = None
    """The raw count at which the counter begins anew; None: it never does."""
    ceiling_w: float | None = None
    """The power limit that is set, or the most the meter can show; a model shows no more."""
    package: str = ""
    """Meters with the same package may be dies that mirror one counter."""
    note: str = ""
    """What a model assumes."""

    @property
    def measured(self) -> bool:
        return self.provenance in (Provenance.NODE, Provenance.COMPONENT)

    @property
    def plausible_w(self) -> float:
        return _PLAUSIBLE_W[self.part]


class Reading(NamedTuple):
    monotonic_ns: int
    realtime_ns: int
    raw: int | None
    """None: it could not be read."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The timeline's clock, and the one of the calendar."""

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    realtime_ns: Callable[[], int] = time.time_ns


class Sensor(Protocol):
    """A source of readings; `read` never raises for what the hardware does."""

    @property
    def name(self) -> str: ...

    @property
    def meters(self) -> Sequence[Meter]: ...

    def read(self, clock: Clocks) -> Sequence[Reading]:
        """One reading of each meter, in their order."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A sensor that is there and cannot be used."""

    sensor: str
    part: Part
    """What it would have measured, above all."""
    reason: str
    advice: str
    """What to type."""
