"""How a rank's times are laid beside those of others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CALENDAR", "Clock"]

CALENDAR = "the calendar"
"""A clock that hosts are said to share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """What to add to `time.monotonic_ns()` to get the time that all ranks share."""

    offset_ns: int = 0
    residual_ns: int | None = 0
    """By how much that may be wrong at most; None where nobody knows."""
    how: str = "one machine"
    """How it was found."""

    def as_header(self) -> dict[str, object]:
        return {"clock_offset_ns": self.offset_ns, "clock_residual_ns": self.residual_ns, "clock": self.how}
