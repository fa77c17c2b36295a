"""An exception that nobody catches ends every rank: one that has died must not leave the others waiting."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from farandole.comm.bytes.transport import Transport
from farandole.comm.world import launched
from farandole.errors import EngineStopped, RankFailedError
from farandole.observe import timeline

__all__ = ["watch_for_uncaught"]


def watch_for_uncaught(find: Callable[[], Transport | None]) -> None:
    """`find` gives the ranks that are to end with this one, if there are any."""
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:  # pragma: no cover - the process ends here
        previous(kind, error, trace)
        transport = find()
        if transport is not None and transport.size > 1:
            _end_everyone(transport, kind, error)

    sys.excepthook = hook


def _end_everyone(transport: Transport, kind: type[BaseException], error: BaseException) -> None:
    report = {
        "rank": transport.rank,
        "type": kind.__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "consequence": isinstance(error, RankFailedError | EngineStopped),
    }
    launched.tell(transport.rank, "exception.json", json.dumps(report))
    timeline.stop()
    sys.stdout.flush()
    _print_what_is_held(transport.rank)
    sys.stderr.flush()
    if launched.is_launched():
        # The launcher ends the others, and says why; MPI's abort would take its voice away.
        os._exit(1)
    transport.abort(1)


def _print_what_is_held(rank: int) -> None:
    """torch.distributed lets hooks before its own print into memory, and would print that after this one, with the rank."""
    if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
        lines = sys.stderr.getvalue().splitlines(keepends=True)
        sys.__stderr__.write("".join(f"[rank{rank}]: {line}" for line in lines))
        sys.__stderr__.flush()
