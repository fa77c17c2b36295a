"""What runs on ranks, where, and what came of it."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranktest.job import RanksFailed

__all__ = ["DOORS", "Call", "Outcome", "Place"]

DOORS = {
    "numpy": "farandole",
    "torch": "farandole.torch",
    "keras": "farandole.keras",
    "tensorflow": "farandole.tensorflow",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where calls run. Calls of one place share a launch."""

    ranks: int
    door: str
    env: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.door not in DOORS:
            raise ValueError(f"door={self.door!r} is unknown. Use one of {', '.join(DOORS)}")
        if self.ranks < 1:
            raise ValueError(f"n={self.ranks} ranks cannot run a test. Use 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One function of a test file, with its arguments."""

    name: str
    module: str
    path: Path
    function: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float

    def packed(self) -> tuple[str, str, str, bytes]:
        """Arguments are packed apart: they may name things of the module, which a rank imports first."""
        arguments = pickle.dumps({"args": tuple(self.args), "kwargs": dict(self.kwargs)})
        return self.module, str(self.path), self.function, arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a call returned on each rank, or why it failed."""

    values: tuple[Any, ...] = ()
    failure: str | None = None

    def checked(self) -> list[Any]:
        """The values in the order of ranks."""
        if self.failure is not None:
            raise RanksFailed(self.failure)
        return list(self.values)
