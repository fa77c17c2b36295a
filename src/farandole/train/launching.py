"""Ranks for a run: started through the launcher, their words sorted, and what they found shown at the end."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any, TextIO

from farandole.launch.command import GRACE_S
from farandole.launch.hosts import Host
from farandole.launch.launcher import launch
from farandole.launch.settings import LaunchSettings
from farandole.progress import SENT, screen_of, show_sent
from farandole.train.preparing import LOG, TIMELINE
from farandole.train.settings import RunSettings

__all__ = ["SortedOutput", "launch_run", "read_record"]


_SAVE_S = 60.0
"""What ranks get to save a checkpoint when they are told to end."""


def launch_run(
    settings: RunSettings,
    ranks: int,
    folder: Path,
    *,
    hosts: list[Host],
    stream: TextIO,
    repeat: list[str],
    power: bool = False,
    restarts: int = 0,
    time_limit_s: float | None = None,
) -> int:
    """Run on `ranks` new ranks to the end; an exit code. Progress goes to `stream`."""
    output = SortedOutput(stream, folder / LOG)
    words = [sys.executable, "-m", "farandole.train", json.dumps(settings.as_flat())]
    job = LaunchSettings(
        command=words, ranks=ranks, hosts=hosts, timeline=folder / TIMELINE, power=power, threads=settings.threads or None,
        repeat=shlex.join(["farandole", *repeat]), variables={SENT: "1"} if output.draws else {}, restarts=restarts,
        time_limit_s=time_limit_s, grace_s=GRACE_S if settings.checkpoint_folder is None else _SAVE_S,
    )  # fmt: skip
    return launch(job, output)


def read_record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return record


class SortedOutput:
    """What rank 0 tells goes to the user as it is and is in the log already; anything else to standard error and there."""

    def __init__(self, stream: TextIO, log: Path | None = None) -> None:
        self._stream, self._log, self._screen = stream, log, screen_of(stream)
        self._begun: dict[tuple[int, str], bytes] = {}

    @property
    def draws(self) -> bool:
        """Whether rank 0 may send what there is to show."""
        return self._screen.draws

    def write(self, rank: int, stream: str, data: bytes) -> None:
        if (rank, stream) == (0, "stdout") and not self.draws:
            self._stream.write(data.decode(errors="replace"))
            self._stream.flush()
            return
        *lines, self._begun[rank, stream] = (self._begun.get((rank, stream), b"") + data).split(b"\n")
        self._print(rank, stream, lines)

    def end(self, rank: int) -> None:
        for stream in ("stdout", "stderr"):
            rest = self._begun.pop((rank, stream), b"")
            self._print(rank, stream, [rest] if rest else [])

    def close(self) -> None:
        for rank in {rank for rank, _ in self._begun}:
            self.end(rank)
        self._screen.clear()

    def _print(self, rank: int, stream: str, found: list[bytes]) -> None:
        lines = [line.decode(errors="replace") for line in found]
        if (rank, stream) == (0, "stdout"):
            for line in lines:
                if not show_sent(line, self._screen):
                    self._screen.say(line)
        elif lines:
            self._print_of("\n".join(f"[{rank}] {line}" for line in lines))

    def _print_of(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._screen.say(text, sys.stderr)
        if self._log is not None and self._log.parent.is_dir():
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
