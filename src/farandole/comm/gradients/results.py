"""Where the results of large gradients are read: a window that the ranks of a node share, where there is room for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Transport
from farandole.comm.node.shared import ResultWindow, SharingUnavailable

__all__ = ["Results"]


class Results:
    """Of some gradients, by number, flat. Collective to make."""

    def __init__(self, node: Transport, wanted: Mapping[int, tuple[int, np.dtype[Any]]]) -> None:
        """`wanted`: bytes and type of each gradient whose result goes to the window."""
        self.problem = ""
        """Why there is no window; results are then left where the gradients were."""
        self._window: ResultWindow | None = None
        self._private: dict[int, AnyArray] = {}
        self._shared: dict[int, AnyArray] = {}
        self._changed: dict[int, bool] = {}
        if wanted:
            try:
                self._window = ResultWindow(node, [nbytes for nbytes, _ in wanted.values()])
            except SharingUnavailable as error:
                self.problem = f"no window for results ({error})"
            else:
                self._take_views(self._window, wanted)

    def _take_views(self, window: ResultWindow, wanted: Mapping[int, tuple[int, np.dtype[Any]]]) -> None:
        for position, (index, (_, dtype)) in enumerate(wanted.items()):
            self._private[index] = window.private(position).view(dtype)
            self._shared[index] = window.shared(position).view(dtype)

    @property
    def kind(self) -> str:
        return "none" if self._window is None else "shared"

    def shared(self, index: int) -> AnyArray | None:
        """Where the node's ranks write a result."""
        return self._shared.get(index)

    def private(self, index: int) -> AnyArray | None:
        """Where this rank reads it; what it changes there stays its own."""
        return self._private.get(index)

    def changed(self, index: int) -> bool:
        """Whether this rank had changed the previous result."""
        return self._changed.get(index, False)

    def refresh(self) -> None:
        """Drop what this rank has changed: new results are there."""
        if self._window is not None:
            self._changed = dict(zip(self._private, self._window.refresh()))

    def close(self) -> None:
        if self._window is not None:
            self._window.close()
