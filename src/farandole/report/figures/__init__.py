"""The figures of the page. Each is drawn twice, for wide and for narrow screens, or says why it is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farandole.report.markup import Markup

__all__ = ["Figure", "missing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A picture with its title and what a reader must know of it."""

    name: str
    title: str
    caption: str = ""
    draw: Callable[[float], Markup] | None = None
    """Given the width in pixels."""
    reason: str = ""
    """Why there is nothing to draw; without one it is a heading of what follows."""
    full: bool = False
    """As wide as the page rather than one of two columns."""


def missing(name: str, title: str, reason: str, *, full: bool = False) -> Figure:
    return Figure(name=name, title=title, reason=reason, full=full)
