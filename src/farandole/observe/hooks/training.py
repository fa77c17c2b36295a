"""The training thread as spans, where its steps begin and end, and functions of frameworks that are replaced meanwhile."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["STEPS", "TRAINING", "Patches", "Sink", "Training"]

STEPS = "steps"
TRAINING = "training"
_ABSENT = object()


class Sink(Protocol):
    """Where spans go: the timeline, or what starts one with the first of them."""

    def active(self) -> bool: ...

    def span(
        self, track: str, name: str, start_ns: int, end_ns: int, args: Mapping[str, object] | None = None
    ) -> None: ...


class Training:
    """One process's training, as hooks of several frameworks tell it.

    A step lasts from the end of the step before, or from the evaluation since, to the end of the optimizer's step.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.inside = False
        """Whether a model's forward pass is under way: its layers' are parts of it."""
        self.in_fit = False
        """Whether Keras trains, and says itself where steps begin and end."""
        self.layers_of_keras: tuple[type, ...] = ()
        """Modules of torch whose calls Keras' own hooks tell."""
        self.steps = 0
        self._thread = threading.main_thread().ident
        self._began_ns: int | None = None
        self._optimizer: weakref.ref[Any] | None = None

    def recording(self) -> bool:
        return threading.get_ident() == self._thread and self.sink.active()

    def span(self, name: str, start_ns: int, end_ns: int, args: Mapping[str, object] | None = None) -> None:
        if self._began_ns is None:
            self._began_ns = start_ns
        self.sink.span(TRAINING, name, start_ns, end_ns, args)

    def forward(self, start_ns: int, *, evaluates: bool) -> None:
        end_ns = time.monotonic_ns()
        self.span("EVALUATE" if evaluates else "FORWARD", start_ns, end_ns)
        if evaluates:
            self._began_ns = end_ns

    def stepped(self, optimizer: Any) -> None:
        """The optimizer has made its step. Where there are several, the first one's steps count."""
        end_ns = time.monotonic_ns()
        counted = None if self._optimizer is None else self._optimizer()
        if counted is None:
            counted, self._optimizer = optimizer, weakref.ref(optimizer)
        if counted is not optimizer or self.in_fit:
            return
        if self._began_ns is not None:
            self.step(self._began_ns, end_ns)
        self._began_ns = end_ns

    def fit_ended(self) -> None:
        """What comes now is told by the framework's own hooks again."""
        self.in_fit, self._began_ns = False, None

    def step(self, start_ns: int, end_ns: int) -> None:
        self.sink.span(STEPS, "STEP", start_ns, end_ns, {"step": self.steps})
        self.steps += 1

    def outermost(self, told: Callable[[int], None], original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a model, whose layers' calls are parts of its own; `told` gets the time at which it began."""
        self.inside = True
        start_ns = time.monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            self.inside = False
            told(start_ns)

    def timed(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a span for every call."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.recording():
                return original(*args, **kwargs)
            start_ns = time.monotonic_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self.span(name, start_ns, time.monotonic_ns())

        return call


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
