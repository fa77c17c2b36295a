"""Functions of others that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """What was replaced, and how to undo it."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`make` gets the function of that name and returns the one to stand there; nothing where there is none."""
        if not hasattr(owner, name):
            return
        before = vars(owner).get(name, _ABSENT)
        ours = make(getattr(owner, name))
        setattr(owner, name, ours)
        self._undo.append(lambda: _put_back(owner, name, ours, before))

    def on_undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def _put_back(owner: Any, name: str, ours: Any, before: Any) -> None:
    """Somebody who has put another function around ours keeps it: it does nothing while nobody records."""
    if vars(owner).get(name) is not ours:
        return
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
