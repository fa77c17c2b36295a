"""What the ranks of a batch wrote about the calls they made."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Journals"]

HARNESS_FRAMES = ("/onrank/__main__.py", "<frozen runpy>")


class Journals:
    """The journals of all ranks, read again whenever they have grown."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self.ranks = range(ranks)
        self._files = {rank: directory / f"rank.{rank}.jsonl" for rank in self.ranks}
        self._stacks = {rank: directory / f"rank.{rank}.stack" for rank in self.ranks}
        self._events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.ranks}
        self._bytes = 0

    def refresh(self) -> bool:
        """Read what is new; True if anything is."""
        size = sum(file.stat().st_size for file in self._files.values() if file.exists())
        if size == self._bytes:
            return False
        self._bytes = size
        self._events = {rank: list(_lines(file)) for rank, file in self._files.items()}
        return True

    def event(self, rank: int, event: str, call: int | None = None) -> dict[str, Any] | None:
        """The event of this rank, or None."""
        found = (
            entry for entry in self._events[rank] if entry["event"] == event and entry.get("call") == call
        )
        return next(found, None)

    def all_have(self, event: str, call: int | None = None) -> bool:
        return all(self.event(rank, event, call) for rank in self.ranks)

    def any_has(self, event: str, call: int | None = None) -> bool:
        return any(self.event(rank, event, call) for rank in self.ranks)

    def process_ids(self) -> list[int]:
        ready = (self.event(rank, "ready") for rank in self.ranks)
        return [entry["pid"] for entry in ready if entry]

    def state(self, rank: int, call: int) -> str:
        """Where this rank is or was in this call, in words."""
        failed = self.event(rank, "failed", call)
        if failed:
            return str(failed["error"]).rstrip()
        if not self.event(rank, "start", call):
            return "had not started it"
        where = "had finished it" if self.event(rank, "done", call) else "was in it"
        return "\n".join([where, *self._stack(rank)])

    def _stack(self, rank: int) -> list[str]:
        lines = self._stacks[rank].read_text().splitlines()
        return [line for line in lines if not any(frame in line for frame in HARNESS_FRAMES)]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines: the last one may still be on its way."""
    if file.exists():
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)
