"""A fresh process for every measurement, without the wait for imports.

A nursery is a process that has imported one loader's library and does nothing else; for each turn it forks
as many children as are to read at once. They begin with the library at hand and nothing of earlier turns.

    python -m farandole.study.nursery pandas        one request a line: {"turn": {...}, "ranks": 2}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from farandole.data.loaders import library, load
from farandole.launch.processes import die_with_parent
from farandole.study.machine_time import process_cpu_s
from farandole.study.turn import CACHED, STORING, Figures, Taken, Turn, combined, take

__all__ = ["Nursery", "loader_of", "warm"]

_ENDING_S = 10.0


def loader_of(method: str) -> str:
    """The loader a method of the study stands on."""
    return "fast" if method in (CACHED, STORING) else method


def warm(method: str) -> None:
    """Read a small file, so that a measured reading finds all modules imported and all functions compiled."""
    with tempfile.TemporaryDirectory(prefix="farandole-study-") as folder:
        path = Path(folder, "t.csv")
        path.write_text("id,kind,a,b\nx,1,1.5,\ny,2,2e-7,1\n")
        load(loader_of(method), path, columns=["id", "kind"], delimiter=",", na=("",))


def _warm_before_forks(method: str) -> None:
    """What may be done before forking: reading starts threads with pyarrow, importing with polars."""
    package = library(loader_of(method))
    if package == "pyarrow":
        importlib.import_module("pyarrow.csv")
        importlib.import_module("pyarrow.pandas_compat")
        importlib.import_module("pandas")  # pyarrow's arrays import it, where there is one, on their way to NumPy
    elif package != "polars":
        warm(method)


class Nursery:
    """Processes that read with one library, seen from the study."""

    def __init__(self, method: str) -> None:
        words = [sys.executable, "-m", "farandole.study.nursery", method]
        # Its own session: Ctrl-C reaches the study, which ends it; without the study the kernel does.
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    @property
    def cpu_s(self) -> float:
        """Of it and the children that have ended."""
        return process_cpu_s(self._process.pid)

    def measure(self, turn: Turn, ranks: int, limit_s: float) -> Figures:
        """Have `ranks` processes take the turn at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"turn": turn.as_json(), "ranks": ranks, "limit_s": limit_s}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            return Figures(reason=f"its process ended with code {self._process.wait()}")
        return Figures(**json.loads(answer))


# Within the nursery


def main(method: str) -> None:
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    with contextlib.suppress(Exception):  # children will meet the same, and tell
        _warm_before_forks(method)
    gc.collect()
    gc.freeze()  # so that children do not copy pages only to count references
    for line in sys.stdin:
        request = json.loads(line)
        found = _measured(Turn(**request["turn"]), request["ranks"], request["limit_s"])
        answers.write(json.dumps(asdict(found)) + "\n")


def _measured(turn: Turn, ranks: int, limit_s: float) -> Figures:
    reason = _prepared(turn, limit_s)
    if reason is not None:
        return Figures(reason=reason)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(ranks)
    children, answers = [], []
    for _ in range(ranks):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(turn, barrier, there, limit_s))
        child.start()
        there.close()
        children.append(child)
        answers.append(here)
    found = _collected(children, answers, barrier, limit_s)
    failed = [reason for reason in found if isinstance(reason, str)]
    return Figures(reason=failed[0]) if failed else combined([one for one in found if isinstance(one, Taken)])


def _prepared(turn: Turn, limit_s: float) -> str | None:
    """In a child: this process reads nothing, so that children begin with nothing."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_prepare, args=(turn, there))
    child.start()
    there.close()
    answer: str | None = _answer(here, child, limit_s)
    child.join()
    return answer


def _prepare(turn: Turn, answer: Any) -> None:
    die_with_parent()
    try:
        answer.send(turn.prepare())
    except Exception as error:  # the reason goes into the results, whatever it is
        answer.send(_told(error))


def _told(error: Exception) -> str:
    """In one line: some libraries add advice."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _child(turn: Turn, barrier: Any, answer: Any, limit_s: float) -> None:
    die_with_parent()
    try:
        warm(turn.method)
        answer.send(take(turn, lambda: barrier.wait(limit_s)))
    except Exception as error:  # the reason goes into the results, whatever it is
        answer.send(_told(error))


def _collected(children: list[Any], answers: list[Any], barrier: Any, limit_s: float) -> list[Taken | str]:
    """What every child found, or why it did not."""
    found: list[Taken | str] = []
    end = time.monotonic() + limit_s
    for child, answer in zip(children, answers):
        found.append(_answer(answer, child, end - time.monotonic()))
        if isinstance(found[-1], str):
            barrier.abort()  # the others wait for this one
    for child in children:
        child.join()
    return found


def _answer(pipe: Any, child: Any, limit_s: float) -> Any:
    try:
        if pipe.poll(max(limit_s, 0.0)):
            return pipe.recv()
        child.kill()
        return f"not done after {limit_s:.0f} s"
    except EOFError:
        child.join()
        killed = child.exitcode == -signal.SIGKILL
        return f"its process ended with code {child.exitcode}" + (" (out of memory?)" if killed else "")


if __name__ == "__main__":
    main(sys.argv[1])
