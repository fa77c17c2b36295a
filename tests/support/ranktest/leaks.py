"""A test that leaves threads, open files, environment variables or another working directory behind fails."""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from ranktest.processes import wait_until

__all__ = ["leaks_nothing"]

THREADS_END_S = 1.0
FILE_TOLERANCE = 4
"""Imports inside a test may keep a few files open for good (caches, /dev/null, a resource tracker's pipe)."""
CHANGED_BY_PYTEST = frozenset({"PYTEST_CURRENT_TEST"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessState:
    """What a test must leave as it found it."""

    threads: frozenset[threading.Thread]
    files: frozenset[tuple[str, str]]
    environment: frozenset[tuple[str, str]]
    directory: str

    @classmethod
    def now(cls) -> Self:
        return cls(
            threads=frozenset(threading.enumerate()),
            files=frozenset(_open_files()),
            environment=frozenset(
                (name, os.environ[name]) for name in os.environ if name not in CHANGED_BY_PYTEST
            ),
            directory=str(Path.cwd()),
        )

    def leaks_until(self, after: Self) -> list[str]:
        """What has come since, in words."""
        threads, files = after.threads - self.threads, after.files - self.files
        variables = sorted({name for name, _ in self.environment ^ after.environment})
        found = [f"thread {thread.name}" for thread in threads]
        if len(files) > FILE_TOLERANCE:
            found += [f"open file {target}" for _, target in sorted(files)]
        found += [f"environment variable {name}" for name in variables]
        if after.directory != self.directory:
            found.append(f"working directory {after.directory}, was {self.directory}")
        return found


@pytest.fixture(autouse=True)
def leaks_nothing() -> Iterator[None]:
    before = ProcessState.now()
    yield
    wait_until(lambda: before.threads >= set(threading.enumerate()), THREADS_END_S)
    leaks = before.leaks_until(ProcessState.now())
    os.chdir(before.directory)
    if leaks:
        pytest.fail(f"the test left behind: {'; '.join(leaks)}", pytrace=False)


def _open_files() -> Iterator[tuple[str, str]]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield descriptor.name, str(descriptor.readlink())
