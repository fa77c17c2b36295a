"""What the launcher says of a job that failed: which rank, where, how, why, and what to type."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from farandole.launch.mpiexec import INSTALL_MPI
from farandole.launch.ranks import Rank

__all__ = ["failure_block", "last_error_line"]

_SHOWN = 3


def failure_block(cause: Rank, others: Iterable[Rank], logs: Sequence[Path], repeat: str) -> str:
    """Several lines, the first of which says it all."""
    facts = [
        ("host", f"{cause.place.host}, pid {cause.pid}"),
        ("error", last_error_line(cause)),
        ("hint", _hint(cause)),
        ("others", _others(cause, others)),
        ("logs", " ".join(map(str, logs))),
        ("repeat", repeat),
    ]
    head = f"rank {cause.number} failed: {_how(cause)}"
    return "\n".join([head, *(f"  {name:<7} {text}" for name, text in facts if text)])


def _how(cause: Rank) -> str:
    return cause.how() if cause.failed else "it ended in order while other ranks still needed it"


def last_error_line(rank: Rank) -> str:
    """The exception that ended a rank, or else the last thing it wrote to standard error."""
    ended = rank.ended
    if ended is None:
        return ""
    if ended.exception is not None:
        return f"{ended.exception.type}: {ended.exception.message}".splitlines()[0]
    lines = [line.strip() for line in ended.stderr_tail.splitlines() if line.strip()]
    return lines[-1][:400] if lines and ended.code and not ended.problem else ""


def _hint(cause: Rank) -> str:
    ended = cause.ended
    if ended is None:
        return ""
    if ended.signal == signal.SIGKILL:
        return "someone typed kill -9, or the kernel ran out of memory: see dmesg"
    if "cannot load MPI library" in ended.stderr_tail:
        return f"no MPI library was found. Type: {INSTALL_MPI}"
    return ""


def _others(cause: Rank, others: Iterable[Rank]) -> str:
    """Ranks that failed by themselves too, which may explain more."""
    failed = [rank for rank in others if rank.failed and rank is not cause]
    told = [f"rank {rank.number} ({last_error_line(rank) or rank.how()})" for rank in failed[:_SHOWN]]
    more = len(failed) - len(told)
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
