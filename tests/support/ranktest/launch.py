"""One launch of a batch: follow the ranks' journals, see who is late or wrong, and say it."""

import contextlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ranktest.calls import DOORS, Call, Outcome, Place
from ranktest.job import Job, launch_command
from ranktest.journal import Journals

__all__ = ["Launch"]

START_S = 120.0
END_S = 30.0
PEERS_OF_A_FAILURE_S = 2.0
STACKS_S = 1.0
POLL_S = 0.02


class Launch:
    """Runs calls in order on one set of ranks, up to the first that does not pass on all of them."""

    def __init__(self, place: Place, calls: Sequence[Call], directory: Path) -> None:
        self._place = place
        self._calls = calls
        self._directory = directory
        self._journals = Journals(directory, place.ranks)
        self._current = 0  # the first call that has not passed on every rank

    def run(self) -> dict[str, Outcome]:
        """The outcomes that are known now: at least one, and at most one failure unless ranks cannot start."""
        with self._job() as job:
            trouble = self._watch(job)
            left = job.leftovers()
        if left:
            trouble = f"{trouble or 'passed'}, and left behind: {'; '.join(left)}"
        outcomes = {call.name: self._passed(index) for index, call in enumerate(self._calls[: self._current])}
        return outcomes | (self._blame(trouble, job) if trouble else {})

    def _job(self) -> Job:
        spec = {
            "door": DOORS[self._place.door],
            "calls": [call.packed() for call in self._calls],
        }
        (self._directory / "batch").write_bytes(pickle.dumps(spec))
        command = [sys.executable, "-m", "onrank", str(self._directory / "batch")]
        command = launch_command("mpiexec", self._place.ranks) + command
        env = dict(self._place.env)
        return Job(command, launcher="mpiexec", workdir=self._directory, cwd=self._directory, env=env)

    def _watch(self, job: Job) -> str | None:
        """Follow the job to its end; what went wrong, in words."""
        progress = time.monotonic()
        while job.returncode is None:
            if self._refresh():
                progress = time.monotonic()
            if self._all_reported_a_failure() or time.monotonic() - progress > self._patience_s():
                break
            time.sleep(POLL_S)
        self._refresh()
        return self._verdict(job)

    def _verdict(self, job: Job) -> str | None:
        failed, patience_s = self._failed(), self._patience_s()
        if job.returncode is None:
            self._dump_stacks()
            job.kill()
            if not failed:
                return f"hung: nothing moved for {patience_s:g} s, so the job was killed"
        if failed:
            return f"failed on rank {', '.join(map(str, failed))}"
        if job.returncode != 0 or not self._finished():
            return f"ended the job with exit code {job.returncode}"
        return None

    def _refresh(self) -> bool:
        grown = self._journals.refresh()
        while not self._finished() and self._journals.all_have("passed", self._current):
            self._current += 1
        return grown

    def _finished(self) -> bool:
        return self._current == len(self._calls)

    def _started(self) -> bool:
        return self._current > 0 or self._journals.any_has("start", 0)

    def _failed(self) -> list[int]:
        return [rank for rank in self._journals.ranks if self._journals.event(rank, "failed", self._current)]

    def _all_reported_a_failure(self) -> bool:
        """Ranks that finished the call wait for the failed one in the barrier: nothing more will come."""
        reported = all(
            self._journals.event(rank, "failed", self._current)
            or self._journals.event(rank, "done", self._current)
            for rank in self._journals.ranks
        )
        return bool(self._failed()) and reported

    def _patience_s(self) -> float:
        if not self._started():
            return START_S
        if self._finished():
            return END_S
        return PEERS_OF_A_FAILURE_S if self._failed() else self._calls[self._current].timeout_s

    def _dump_stacks(self) -> None:
        """Each rank writes where its threads are, even from inside an MPI call."""
        for pid in self._journals.process_ids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)

    def _passed(self, call: int) -> Outcome:
        done = [self._journals.event(rank, "done", call) for rank in self._journals.ranks]
        return Outcome(values=tuple(entry["value"] for entry in done if entry))

    def _blame(self, trouble: str, job: Job) -> dict[str, Outcome]:
        if not self._started():
            failure = f"{self._place.ranks} ranks could not start: the launch {trouble}{job.output()}"
            return {call.name: Outcome(failure=failure) for call in self._calls}
        index = min(self._current, len(self._calls) - 1)
        call = self._calls[index]
        states = "".join(
            f"\n--- rank {rank}: {self._journals.state(rank, index)}" for rank in self._journals.ranks
        )
        failure = f"{call.name} on {self._place.ranks} ranks {trouble}{states}{job.output()}"
        return {call.name: Outcome(failure=failure)}
