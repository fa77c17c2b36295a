"""What ranks send back: the seconds of every contestant, round by round."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Case", "Measured"]


@dataclass(kw_only=True, slots=True)
class Case:
    """Contestants at the same work."""

    what: str
    """The work, e.g. `100 MiB`."""
    samples: dict[str, list[float]]
    """By contestant: seconds of each round, in the order in which rounds were run."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Whatever else was found, e.g. how arrays travelled."""


@dataclass(kw_only=True, slots=True)
class Measured:
    """All cases of one set of ranks, and what these ranks stood on."""

    cases: list[Case]
    facts: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Measured:
        return cls(cases=[Case(**case) for case in found["cases"]], facts=found["facts"])
