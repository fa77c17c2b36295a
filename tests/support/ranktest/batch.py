"""Test functions on ranks, many in one launch.

Starting Python, a framework and MPI costs far more than most tests, so that the calls of one batch, whichever files
they are from, share a launch, up to a number: some leave communicators behind, and MPI has only so many.
A call that fails, hangs or ends the job is named with the state of every rank; the calls after it run in a new
launch, so that no failure reaches its neighbours.
"""

import inspect
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ranktest.calls import Call, Outcome, Place
from ranktest.launch import Launch

__all__ = ["Batch", "call_of", "run_function"]

MOST_CALLS = 250


class Batch:
    """The calls of one place, run when the first of them is asked for."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._calls: list[Call] = []
        self._outcomes: dict[str, Outcome] = {}

    def add(self, call: Call) -> None:
        self._calls.append(call)

    def outcome(self, name: str) -> Outcome:
        while name not in self._outcomes:
            waiting = [call for call in self._calls if call.name not in self._outcomes]
            with tempfile.TemporaryDirectory(prefix="farandole-test-") as directory:
                self._outcomes |= Launch(self.place, waiting[:MOST_CALLS], Path(directory)).run()
        return self._outcomes[name]


def run_function(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    door: str = "numpy",
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> list[Any]:
    """Run one function, `function(fd, *args)`, on `n` ranks; what it returned on each of them."""
    batch = Batch(Place(ranks=n, door=door, env=tuple(sorted((env or {}).items()))))
    batch.add(call_of(function, function.__name__, args=args, timeout_s=timeout))
    return batch.outcome(function.__name__).checked()


def call_of(function: Callable[..., Any], name: str, **details: Any) -> Call:
    """Ranks import the function's file, so that it must stand at the top level of one."""
    path = inspect.getsourcefile(function)
    if path is None or function.__qualname__ != function.__name__:
        raise ValueError(
            f"{function.__qualname__} cannot be imported by ranks. Define it at the top of the test file"
        )
    return Call(
        name=name,
        module=function.__module__,
        path=Path(path).resolve(),
        function=function.__name__,
        **details,
    )
