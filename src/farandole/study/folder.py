"""A study's folder: `study.json`, the plan, and `results.jsonl`, a line for every attempt that has ended.

Results are only ever appended to. One study writes at a time; a line that a crash has cut is dropped and said.
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

from farandole.errors import DataError, SettingsError
from farandole.observe.environment import environment
from farandole.report.loaders import is_measured
from farandole.study.points import Point

__all__ = ["PLAN", "RESULTS", "SCHEMA", "StudyFolder", "made_with", "now"]

SCHEMA = 1
PLAN, RESULTS, RUN = "study.json", "results.jsonl", "run.json"
_IDENTITY = ("kind", "benchmark", "preset", "fixed")
_RESULT_KEYS = ("schema", "study", "key", "settings", "repeat", "status", "figures")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def made_with(command: str, *packages: str) -> dict[str, Any]:
    """What a plan has of the last time it was typed, and every result of the time it was made."""
    from farandole.train.record import git_state

    return {"command": command, "environment": environment(*packages), "git": git_state()}


class StudyFolder:
    """Read and written by the study; read by tables and pages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told_of_cut = False

    @property
    def exists(self) -> bool:
        return (self.path / PLAN).exists()

    def plan(self) -> dict[str, Any]:
        """What is in study.json."""
        file = self.path / PLAN
        try:
            content = json.loads(file.read_text())
        except FileNotFoundError:
            raise DataError(f"{self.path} holds no study: there is no {PLAN} in it.") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read ({error}). Choose another folder.") from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA or "points" not in content:
            raise DataError(f"{file} is no study of this version (schema {SCHEMA}). Choose another folder.")
        return content

    def plan_of_runs(self, asked: str) -> dict[str, Any]:
        """The same. SettingsError for a study of loaders, of which nobody can have what was `asked`."""
        plan = self.plan()
        if is_measured(plan):
            raise SettingsError(
                f"{asked}: {self.path} is a study of loaders, which trains nothing. For its figures type: "
                f"farandole study table {self.path}, for its page farandole report {self.path}"
            )
        return plan

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

    def check_same(self, new: Mapping[str, Any]) -> dict[str, Any]:
        """The plan that is here, empty where none is. DataError where it is of another study."""
        self._check_no_run()
        old = self.plan() if self.exists else {}
        for name in _IDENTITY:
            if old and old.get(name) != new.get(name):
                raise DataError(
                    f"{self.path} holds another study: {old.get('title')!r} ({name}: {_brief(old.get(name))}), not "
                    f"{new.get('title')!r} ({name}: {_brief(new.get(name))}). Choose another --out."
                )
        return old

    def results(self) -> list[dict[str, Any]]:
        """Every attempt, in order. A last line that was cut is dropped, which is said once."""
        file = self.path / RESULTS
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        plan = self.plan()
        keys = {point["key"] for point in plan["points"]}
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(_result(json.loads(line)))
            except ValueError:
                if number == len(lines):
                    self._tell_of_cut(file)
                    break
                raise DataError(f"{file}, line {number}: {line[:60]!r} is no result. Repair or remove it.") from None
            if found[-1]["study"] != plan["kind"] or found[-1]["key"] not in keys:
                raise DataError(
                    f"{file}, line {number} is of another study ({found[-1]['study']}, {found[-1]['key']}): a folder holds "
                    "one. Move that line to a folder of its own."
                )
        return found

    def _tell_of_cut(self, file: Path) -> None:
        if not self._told_of_cut:
            print(f"farandole: {file}: the last line was cut in the middle and is dropped", file=sys.stderr)
        self._told_of_cut = True

    def last_results(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Of every point that has ended, the attempt that counts: the last that succeeded, or else the last."""
        chosen: dict[tuple[str, int], dict[str, Any]] = {}
        for result in self.results():
            at = result["key"], result["repeat"]
            if result["status"] == "ok" or at not in chosen or chosen[at]["status"] != "ok":
                chosen[at] = result
        return chosen

    def missing(self, points: Sequence[Point]) -> list[Point]:
        """Points without a good result; failed ones are worth another try."""
        done = self.last_results()
        return [p for p in points if done.get((p.key, p.repeat), {}).get("status") != "ok"]

    def append(self, *results: Mapping[str, Any]) -> None:
        """On the disk when it returns. What a crash has left of a line before is removed."""
        file = self.path / RESULTS
        with file.open("ab+") as stream:
            _drop_cut_line(stream)
            stream.writelines((json.dumps(result) + "\n").encode() for result in results)
            stream.flush()
            os.fsync(stream.fileno())

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


def _result(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or any(name not in content for name in _RESULT_KEYS):
        raise ValueError("no result")
    return content


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
