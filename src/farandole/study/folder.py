"""A study's folder: `study.json`, the plan, and `results.jsonl`, a line for every attempt that has ended.

Results are only ever appended to, and read by results/reading.py. One study writes at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from farandole.errors import DataError
from farandole.observe.environment import environment
from farandole.results.reading import Study, counting, read_plan, study_of
from farandole.results.schema import PLAN, RESULTS, RUN, SCHEMA
from farandole.study.points import Point

__all__ = ["StudyFolder", "made_with", "now", "versions_of"]

_IDENTITY = ("kind", "benchmark", "preset", "fixed")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def made_with(command: str, *packages: str) -> dict[str, Any]:
    """What a plan has of the last time it was typed, and every result of the time it was made."""
    from farandole.train.rank.record import git_state

    return {"command": command, "environment": environment(*packages), "git": git_state()}


def versions_of(made: Mapping[str, Any]) -> dict[str, str]:
    """Of Python and the packages that something was made with, as far as they are known."""
    told = made.get("environment") or {}
    found = {"Python": told.get("python"), **(told.get("packages") or {})}
    return {name: str(version) for name, version in found.items() if version}


class StudyFolder:
    """Read and written by the study; read by tables and pages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned: set[str] = set()

    @property
    def exists(self) -> bool:
        return (self.path / PLAN).exists()

    def plan(self) -> dict[str, Any]:
        """What is in study.json."""
        return read_plan(self.path)

    def study(self) -> Study:
        """With its results. What had to be left out is said once."""
        found = study_of(self.path, self.plan())
        for warning in found.warnings:
            if warning not in self._warned and (self.path / RESULTS).exists():
                print(f"farandole: {self.path}: {warning}", file=sys.stderr)
            self._warned.add(warning)
        return found

    def write_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Points of before stay; a folder that holds another study is refused."""
        plan = json.loads(json.dumps(plan))  # as it is read again: a tuple is a list
        merged = {"schema": SCHEMA, **plan, "created": now()}
        if self.exists:
            old = self.check_same(plan)
            merged["created"] = old["created"]
            known = {(point["key"], point["repeat"]) for point in plan["points"]}
            merged["points"] = [p for p in old["points"] if (p["key"], p["repeat"]) not in known] + list(plan["points"])
        elif (self.path / RESULTS).exists():
            raise DataError(f"{self.path} has {RESULTS} but no {PLAN}: choose another --out.")
        self._write(PLAN, json.dumps(merged, indent=1) + "\n")
        return merged

    def check_current(self) -> None:
        """DataError where the folder is of an older version."""
        if (version := self.plan()["schema"]) != SCHEMA:
            raise DataError(
                f"{self.path} was written by an older version (schema {version}): its tables and page can be made, and nothing "
                "can be added to it, because points are told apart by more now. Choose another --out."
            )

    def check_same(self, new: Mapping[str, Any]) -> dict[str, Any]:
        """The plan that is here, empty where none is. DataError where it is of another study."""
        self._check_no_run()
        old = self.plan() if self.exists else {}
        if old:
            self.check_current()
        for name in _IDENTITY:
            if old and old.get(name) != new.get(name):
                raise DataError(
                    f"{self.path} holds another study: {old.get('title')!r} ({name}: {_brief(old.get(name))}), not "
                    f"{new.get('title')!r} ({name}: {_brief(new.get(name))}). Choose another --out."
                )
        return old

    def results(self) -> list[dict[str, Any]]:
        """Every line, in order."""
        return self.study().raw

    def last_results(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The line that counts of every point that has ended."""
        return {(line["key"], line["repeat"]): line for line in counting(self.results())}

    def missing(self, points: Sequence[Point]) -> list[Point]:
        """Points without a good result; failed ones are worth another try."""
        done = self.last_results()
        return [p for p in points if done.get((p.key, p.repeat), {}).get("status") != "ok"]

    def append(self, *results: Mapping[str, Any]) -> None:
        """On the disk when it returns. What a crash has left of a line before is removed."""
        file = self.path / RESULTS
        try:
            with file.open("ab+") as stream:
                _drop_cut_line(stream)
                stream.writelines((json.dumps(result) + "\n").encode() for result in results)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise DataError(f"{file} cannot be written: {error.strerror}. Make room, and type the same again: it goes on from there.") from error

    def new_run(self, point: Point) -> str:
        """A folder for the next attempt, relative to the study; those before are kept."""
        for attempt in range(1, 10_000):
            name = f"points/{point.name}" + (f"-{attempt}" if attempt > 1 else "")
            with contextlib.suppress(FileExistsError):
                (self.path / name).mkdir(parents=True)
                return name
        raise DataError(f"{self.path}/points/{point.name} was tried 10,000 times")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One study at a time writes here."""
        self._make()
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"another study is writing into {self.path}. Wait for it, or choose another --out.") from None
            yield

    def _check_no_run(self) -> None:
        """A study would write its page over that of a run."""
        if (self.path / RUN).exists():
            raise DataError(f"{self.path} is the directory of a run: it has {RUN}. Choose another --out.")

    def _make(self) -> None:
        self._check_no_run()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.path} cannot be made: {error.strerror}. Choose another --out.") from error

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all."""
        self._make()
        partial = self.path / f".{name}.{os.getpid()}"
        partial.write_text(text)
        partial.replace(self.path / name)


def _drop_cut_line(stream: Any) -> None:
    """The end of the file becomes the end of a line."""
    stream.seek(0)
    *_, last = stream.read().split(b"\n")
    if not last:
        return
    try:
        json.loads(last)
        stream.write(b"\n")
    except ValueError:
        stream.truncate(stream.tell() - len(last))


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 120 else f"{text[:117]}..."
