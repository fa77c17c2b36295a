"""The world that this process is a rank of, for whatever runs within it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.errors import NotInitializedError

if TYPE_CHECKING:
    from farandole.comm.world.state import World

__all__ = ["current", "enter", "leave", "world_or_none"]

_world: World | None = None


def current() -> World:
    """The world; an error that says to call init() before."""
    if _world is None:
        raise NotInitializedError("farandole is not initialised: call farandole.init() first")
    return _world


def world_or_none() -> World | None:
    return _world


def enter(world: World) -> None:
    global _world
    _world = world


def leave() -> World | None:
    """The world that was, which nobody finds any more."""
    global _world
    left, _world = _world, None
    return left
