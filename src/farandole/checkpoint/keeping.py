"""Which checkpoints stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farandole.checkpoint.manifest import Manifest
from farandole.errors import SettingsError

__all__ = ["Keep"]

_MODES = ("min", "max")


@dataclass(kw_only=True, slots=True)
class Keep:
    """The last ones, the best ones, and some of all; what any of the three asks for stays."""

    last: int = 3
    """How many of the newest."""
    best: int = 0
    """How many with the best value of `metric`."""
    metric: str = ""
    """A name of the metrics given to `save()`."""
    mode: str = "min"
    """Whether the best is the `min` or the `max`."""
    every_steps: int | None = None
    """Also those of every n-th step, for good."""

    def __post_init__(self) -> None:
        if self.last < 1:
            raise SettingsError(f"Keep(last={self.last}): keep at least 1, or there is nothing to go on from")
        if self.best < 0 or bool(self.best) != bool(self.metric):
            raise SettingsError(
                f"Keep(best={self.best}, metric={self.metric!r}): give both, e.g. best=1, metric='loss', or neither"
            )
        if self.mode not in _MODES:
            raise SettingsError(f"Keep(mode={self.mode!r}): use one of {', '.join(_MODES)}")
        if self.every_steps is not None and self.every_steps < 1:
            raise SettingsError(f"Keep(every_steps={self.every_steps}): give 1 or more, or leave it out")

    def chosen(self, manifests: Mapping[int, Manifest]) -> set[int]:
        """The numbers of those that stay."""
        newest = sorted(manifests)[-self.last :]
        best = sorted(self._ranked(manifests))[: self.best]
        always = [n for n, m in manifests.items() if self.every_steps and m.step % self.every_steps == 0]
        return {*newest, *(number for _, number in best), *always}

    def _ranked(self, manifests: Mapping[int, Manifest]) -> list[tuple[float, int]]:
        """(rank, number) of those that have the metric; what is not a number is never the best."""
        sign = 1 if self.mode == "min" else -1
        found = [(m.metrics.get(self.metric), number) for number, m in manifests.items()]
        return [(sign * value, number) for value, number in found if value is not None]
