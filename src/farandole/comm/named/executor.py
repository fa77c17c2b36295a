"""Carrying out the coordinator's verdicts, in the order in which they came, on every rank alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from farandole.comm.named.letters import Mailbox
from farandole.comm.named.negotiate import OperationRequest, Verdict
from farandole.comm.named.pending import Handle, Operation, PendingOperations
from farandole.errors import MismatchError, RankFailedError, StalledError
from farandole.observe import timeline

__all__ = ["Batch", "Executor"]

Batch = list[tuple[Operation, Verdict]]


class Executor:
    """Turns verdicts into operations that run, and into errors."""

    def __init__(
        self,
        rank: int,
        pending: PendingOperations,
        mailbox: Mailbox,
        run_batch: Callable[[Batch], list[Any]],
        stand_in: Callable[[OperationRequest], Operation],
        on_joined: Callable[[tuple[int, ...]], None],
        close: Callable[[str], None],
    ) -> None:
        """`rank` counts within the set; the functions are those of Engine."""
        self._rank = rank
        self._pending = pending
        self._mailbox = mailbox
        self._run_batch = run_batch
        self._stand_in = stand_in
        self._on_joined = on_joined
        self._close = close
        self.whole = True
        """Whether every operation that was begun was carried out."""

    def carry_out(self, verdicts: list[Verdict]) -> None:
        """The verdicts of one message; operations among them run together."""
        batch: list[tuple[Handle, Verdict]] = []
        for verdict in verdicts:
            handle = self._pending.get(verdict.key)
            if verdict.key == "" and verdict.left:
                self._coordinator_left(verdict)
            elif verdict.joined is not None:
                self._on_joined(verdict.joined)
            elif verdict.forgotten is not None:
                self._end_forgotten(handle, verdict.forgotten)
            elif handle is None and verdict.stand_in is not None:
                batch.append((Handle(self._stand_in(verdict.stand_in), background=False), verdict))
            elif handle is None:
                continue
            elif verdict.error is not None:
                self._pending.end_with(handle, RankFailedError if verdict.left else MismatchError, verdict.error)
            else:
                batch.append((handle, verdict))
        if batch:
            self._run(batch)

    def _coordinator_left(self, verdict: Verdict) -> None:
        self._mailbox.coordinator_left = True
        with self._pending.lock:
            self._pending.close(f"{verdict.error} and takes part in nothing more", RankFailedError)
        self._pending.end_all()

    def _end_forgotten(self, handle: Handle | None, request: tuple[int, int]) -> None:
        """`request`: the rank that asked, and its number. A later handle may have the same key."""
        if handle is not None and handle.forgetting is not None:
            number, error = handle.forgetting
            if request == (self._rank, number):
                self._pending.end(handle, error=error)

    def _run(self, batch: list[tuple[Handle, Verdict]]) -> None:
        start_ns = time.monotonic_ns()
        for handle, _ in batch:
            handle.moving = True
        if timeline.active():
            _show_negotiation(batch, start_ns)
        try:
            values = self._run_batch([(handle.operation, verdict) for handle, verdict in batch])
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        end_ns = time.monotonic_ns()
        for (handle, _), value in zip(batch, values):
            self._pending.end(handle, value=value)
            if timeline.active():
                kind = handle.operation.request.kind.upper()
                timeline.span(handle.key, kind, start_ns, end_ns, handle.timeline_arguments())

    def _fail(self, batch: list[tuple[Handle, Verdict]], error: BaseException) -> None:
        self.whole = False
        for handle, _ in batch:
            self._pending.end(handle, error=error)
        if isinstance(error, StalledError):
            # Data of it may still come, and nothing tells it from that of the next operation.
            key = batch[0][0].key
            self._close(f"has given up {key} half-way: start the job again, or shutdown() and init() on every rank")
            self._mailbox.flush()


def _show_negotiation(batch: list[tuple[Handle, Verdict]], end_ns: int) -> None:
    timeline.cycle_start(end_ns)
    for handle, _ in batch:
        kind = handle.operation.request.kind.upper()
        timeline.span(handle.key, f"NEGOTIATE_{kind}", handle.started_ns, end_ns, handle.timeline_arguments())
