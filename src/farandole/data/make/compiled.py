"""Kernels compiled by numba when they are first called, so that importing this package does not need it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from farandole.errors import SettingsError

__all__ = ["compiled"]

P = ParamSpec("P")
R = TypeVar("R")


class compiled(Generic[P, R]):
    """Decorates a function that numba compiles without the GIL. It may call no other such function."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._compiled: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._compiled is None:
            with self._lock:
                self._compiled = self._compiled or _compile(self._function)
        return self._compiled(*args, **kwargs)


def _compile(function: Callable[P, R]) -> Callable[P, R]:
    try:
        import numba
    except ImportError as error:
        raise SettingsError(
            "making data files needs numba, which is not installed. Type: pip install 'farandole[data]'"
        ) from error
    jit: Any = numba.njit
    try:
        return jit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # neither the package nor the home directory can be written: compile every time
        return jit(nogil=True)(function)  # type: ignore[no-any-return]
