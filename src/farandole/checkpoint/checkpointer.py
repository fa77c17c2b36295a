"""Checkpoints of a training on any number of ranks.

The first rank writes and reads; the others send it what only they have (their random numbers) and get from it what
it has read, so that all ranks go on from the same bytes, whatever disks they see.

    save        gather what each rank has of its own, write, tell every rank how it went
    restore     find the newest that is whole, compare it with the script on every rank, hand it out, load
    step        count, and save or end the job when it is time
"""

from __future__ import annotations

import atexit
import math
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import numpy as np

import farandole
from farandole.checkpoint.background import Background
from farandole.checkpoint.folder import Entry
from farandole.checkpoint.gathering import gather_objects
from farandole.checkpoint.generators import NumpyRandom, PythonRandom
from farandole.checkpoint.held import Held
from farandole.checkpoint.joules import Joules
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.parts import (
    Content,
    Guarded,
    Part,
    Progress,
    as_part,
    check_fit,
    content,
    differences,
    put,
    taken,
    taken_own,
)
from farandole.checkpoint.store import Store
from farandole.checkpoint.timing import Clock, SignalNotes, When
from farandole.checkpoint.tree import Flat, describe
from farandole.comm.bytes.transport import AnyArray
from farandole.comm.named.collectives import allgather_object, broadcast_async_, broadcast_object, synchronize
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.errors import CheckpointError

__all__ = ["Checkpointer"]

T = TypeVar("T")


class Checkpointer:
    """Saves `parts`, which are alike on all ranks, and `own`, of which each rank has its own.

    Parts are dicts, NumPy generators, or whatever has state_dict() and load_state_dict(). Python's and NumPy's
    random numbers are added to `own`. With `background`, saves that are due are made while training goes on.
    Collective: every rank of the set makes it and calls its methods.
    """

    def __init__(
        self,
        folder: str | Path,
        parts: Mapping[str, Any],
        *,
        own: Mapping[str, Any] | None = None,
        when: When | None = None,
        keep: Keep | None = None,
        background: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        runtime = process_set.runtime()
        self.folder = Path(folder)
        self.progress = Progress()
        self.came_from: Path | None = None
        """The checkpoint that training has gone on from."""
        self._parts = {name: as_part(name, value) for name, value in parts.items()}
        self._own: dict[str, Part] = {"python": PythonRandom(), "numpy": NumpyRandom()}
        self._own |= {name: as_part(name, value) for name, value in (own or {}).items()}
        self._when = when or When()
        self._in_background = background
        self._set = process_set
        self._rank, self._size, self._root = runtime.transport.rank, runtime.transport.size, runtime.members[0]
        self._background = Background()
        self._signals = SignalNotes()
        self._clock: Clock | None = None
        self._started_at = time.monotonic()
        self._joules = Joules(process_set)
        self._steps_since_meeting, self._next_meeting = 0, 1
        self._saved: tuple[int, int] | None = None
        self._store = self._of_first(lambda: self._open(keep or Keep()))
        self._not_heeded = self._finished()

    def _open(self, keep: Keep) -> Store:
        """The folder, on the rank that writes."""
        store = Store(self.folder, keep, self.say)
        atexit.register(_end_of_program, weakref.ref(self))
        return store

    def _finished(self) -> list[Entry]:
        """What there is to go on from, on the rank that writes; empty on the others. Collective."""
        store = self._store
        return self._of_first(lambda: [] if store is None else store.finished()) or []

    @property
    def saved_at(self) -> int | None:
        """The step of the newest checkpoint of this training; None where there is none."""
        return None if self._saved is None else self._saved[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        # Ranks that raise may be alone in it: no collective then.
        if kind is None:
            self.close()
        else:
            self._let_go()

    # Restoring

    def restore(self) -> Manifest | None:
        """Go on from the newest checkpoint that is whole; None where there is none. Collective."""
        self.wait()
        store = self._store
        loaded = self._of_first(lambda: None if store is None else store.newest())
        told = None
        if loaded is not None:
            told = (loaded.manifest, loaded.state, describe(loaded.arrays), str(loaded.entry.path))
        told = broadcast_object(told, self._root, "checkpoint.found", self._set)
        if told is None:
            self._not_heeded = self._finished()
            return None
        manifest, state, infos, where = told
        misfits = differences(self._parts, state, infos)
        check_fit(allgather_object(misfits, "checkpoint.fit", self._set), where)
        arrays = self._hand_out({} if loaded is None else loaded.arrays, infos)
        self._load(state, arrays)
        self._not_heeded, self.came_from = [], Path(where)
        self._say_restored(manifest, state, where)
        return manifest  # type: ignore[no-any-return]

    def _hand_out(self, arrays: dict[str, AnyArray], infos: Mapping[str, Any]) -> dict[str, AnyArray]:
        if self._size == 1:
            return arrays
        if self._rank:
            arrays = {name: np.empty(info.shape, np.dtype(info.dtype)) for name, info in infos.items()}
        handles = [
            broadcast_async_(array.reshape(-1).view(np.uint8), self._root, f"checkpoint/{name}", self._set)
            for name, array in arrays.items()
            if array.nbytes
        ]
        for handle in handles:
            synchronize(handle)
        return arrays

    def _load(self, state: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
        put(self._parts, state["parts"], arrays)
        if self._rank < len(state["ranks"]):
            put(self._own, state["ranks"][self._rank], arrays)
        self.progress = Progress(**state["progress"])
        self._saved = (self.progress.step, self.progress.epoch)
        self._started_at = time.monotonic()
        self._joules.begin()

    def _say_restored(self, manifest: Manifest, state: dict[str, Any], where: str) -> None:
        self.say(f"going on from {where} (step {manifest.step}, epoch {manifest.epoch})")
        unused = sorted(set(state["parts"]) - set(self._parts))
        if unused:
            self.say(f"it also has {', '.join(unused)}, for which the script has no use")
        if manifest.ranks != self._size:
            self.say(
                f"it was saved by {manifest.ranks} ranks, this is a job of {self._size}: results will differ from those of "
                f"{manifest.ranks}, by rounding and by who draws which random numbers"
            )

    # Saving

    def save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save now, and return when it is safe on disk. Collective."""

        def write(store: Store, manifest: Manifest, what: Content) -> None:
            self._write(store, manifest, what.state, what.flat.arrays)

        self._save(metrics, write)

    def async_save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save in the background what the state is now; what goes wrong is raised by a later call. Collective."""

        def start(store: Store, manifest: Manifest, what: Content) -> None:
            state = what.state  # without what was copied already
            self._background.start(what.flat, lambda arrays: self._write(store, manifest, state, arrays))

        self._save(metrics, start)

    def wait(self) -> None:
        """Return when the save in the background is safe on disk. Collective."""
        self._raise_on_all(self._background_problem())

    def settle(self) -> None:
        """Return when held arrays may be changed again; doors call it before an optimizer's step."""
        self._background.settle()

    def _save(
        self, metrics: Mapping[str, float] | None, write: Callable[[Store, Manifest, Content], None]
    ) -> None:
        began = time.monotonic()
        self._raise_on_all(self._background_problem())
        self._joules.add_to(self.progress)
        by_rank = gather_objects(taken_own(self._own, self._rank), self._set)
        self._of_first(lambda: self._write_all(by_rank or [], metrics or {}, write))
        self._note_saved(time.monotonic() - began)

    def _write_all(
        self, by_rank: list[Flat], metrics: Mapping[str, float], write: Callable[[Store, Manifest, Content], None]
    ) -> None:
        assert self._store is not None
        self._check()
        progress = replace(self.progress, train_s=self._train_s())
        write(self._store, self._manifest(progress, metrics), content(progress, taken(self._parts), by_rank))

    def _check(self) -> None:
        """A training from the start must not push out, one by one, what another has saved, nor one that has failed."""
        for part in self._parts.values():
            if isinstance(part, Guarded):
                part.check_before_save()
        if self._not_heeded:
            raise CheckpointError(
                f"{self.folder} has checkpoints already, the newest is {self._not_heeded[-1].path.name}, which this "
                "training has not gone on from. Call restore() before the first save, or give another folder"
            )

    def _write(self, store: Store, manifest: Manifest, state: Any, arrays: Mapping[str, AnyArray | Held]) -> None:
        store.write(manifest, state, arrays)

    def _manifest(self, progress: Progress, metrics: Mapping[str, float]) -> Manifest:
        return Manifest(
            step=progress.step, epoch=progress.epoch, ranks=self._size, saved_at=time.time(),
            train_s=progress.train_s, energy_j=progress.energy_j, energy_provenance=progress.energy_provenance,
            energy_reason=progress.energy_reason, version=farandole.__version__,
            metrics={name: float(value) if math.isfinite(value) else None for name, value in metrics.items()},
        )  # fmt: skip

    def _background_problem(self) -> str:
        try:
            self._background.finish()
        except Exception as error:  # whatever it is, all ranks are to hear of it
            return f"the save in the background has failed: {_words(error)}"
        return ""

    def _train_s(self) -> float:
        return self.progress.train_s + time.monotonic() - self._started_at

    def _note_saved(self, exposed_s: float) -> None:
        self._saved = (self.progress.step, self.progress.epoch)
        if self._clock is not None and self._store is not None:
            self._clock.saved(exposed_s, self._store.last_s)

    # When it is time

    def step(self, metrics: Mapping[str, float] | None = None) -> None:
        """Count a step, and save if it is time. May end the program, with everything saved. Collective."""
        self.progress.step += 1
        self.progress.step_in_epoch += 1
        self._steps_since_meeting += 1
        every = self._when.steps
        due = every is not None and self.progress.step % every == 0
        self._act(due, self._steps_since_meeting >= self._next_meeting, metrics)

    def end_epoch(self, metrics: Mapping[str, float] | None = None, *, due: bool = False) -> None:
        """Count an epoch, and save if it is time or `due`; the sampler must be at the next one already. Collective."""
        self.progress.epoch += 1
        self.progress.step_in_epoch = 0
        every = self._when.epochs
        self._act(due or (every is not None and self.progress.epoch % every == 0), True, metrics)

    def _act(self, due: bool, meet: bool, metrics: Mapping[str, float] | None) -> None:
        if self._when.signals:
            self._signals.start()
        reasons, problem = self._meet() if meet else (set(), "")
        ending = reasons & {"SIGTERM", "time limit"}
        if ending:
            self._end(ending.pop(), problem, metrics)
        if problem:
            raise CheckpointError(problem)
        if due or reasons:
            (self.async_save if self._in_background else self.save)(metrics)

    def _meet(self) -> tuple[set[str], str]:
        """Why to save, or to end, and what the save in the background has failed with: the same on all ranks."""
        reasons, steps, problem = self._signals.take(), 0, ""
        if self._store is not None:
            problem = self._background_problem() if self._background.is_done() else ""
            clock = self._clock = self._clock or Clock(self._when, _nbytes(self._parts))
            steps = clock.next_meeting(self._steps_since_meeting)
            reasons |= {"time limit"} if clock.time_is_up() else set()
            reasons |= {"interval"} if clock.is_due() else set()
        found = allgather_object((reasons, steps, problem), "checkpoint.meeting", self._set)
        self._steps_since_meeting, self._next_meeting = 0, found[0][1]
        return set().union(*(said for said, *_ in found)), found[0][2]

    def _end(self, reason: str, problem: str, metrics: Mapping[str, float] | None) -> NoReturn:
        self._signals.ignore()
        problem = problem or self._told_by_first(self._background_problem())
        if problem:
            self.say(problem)
        if problem or self._saved != (self.progress.step, self.progress.epoch):
            self.save(metrics)
        self.close()
        self.say(
            f"ended at step {self.progress.step} on account of the {reason}, with everything saved in {self.folder}. "
            "To go on, start the same command again"
        )
        raise SystemExit(0)

    # Ending

    def close(self) -> None:
        """Wait for what is being saved, and let others use the folder. Collective."""
        try:
            self.wait()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._signals.stop()
        if self._store is not None:
            self._tell_problem()
            self._store.close()

    def _tell_problem(self) -> None:
        problem = self._background_problem()
        if problem:
            self.say(problem)

    def _raise_on_all(self, problem: str) -> None:
        """`problem` is the first rank's."""
        told = self._told_by_first(problem)
        if told:
            raise CheckpointError(told)

    def _of_first(self, get: Callable[[], T]) -> T | None:
        """What the first rank gets; None on the others. What it raises is raised on all. Collective."""
        found: T | None = None
        cause: Exception | None = None
        if self._rank == 0:
            try:
                found = get()
            except Exception as error:  # whatever it is, all ranks are to hear of it
                cause = error
        told = self._told_by_first(_words(cause))
        if told:
            raise CheckpointError(told) from cause
        return found

    def _told_by_first(self, problem: str) -> str:
        told: str = broadcast_object(problem, self._root, "checkpoint.outcome", self._set)
        return told

    def say(self, text: str) -> None:
        """To standard error, once for all ranks."""
        if self._rank == 0:
            print(f"farandole: checkpoint: {text}", file=sys.stderr, flush=True)


def _words(error: Exception | None) -> str:
    if error is None or isinstance(error, CheckpointError):
        return str(error or "")
    return f"{type(error).__name__}: {error}"


def _nbytes(parts: Mapping[str, Part]) -> int:
    """0 where the state cannot be saved: a save will say why."""
    try:
        return sum(array.nbytes for array in taken(parts).arrays.values())
    except Exception:  # of the first rank alone: the others wait for it
        return 0


def _end_of_program(reference: weakref.ref[Checkpointer]) -> None:
    """A save that nobody has asked for since must not fail in silence."""
    checkpointer = reference()
    if checkpointer is not None:
        checkpointer._tell_problem()
