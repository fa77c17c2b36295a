"""Why a command has failed, from what it has said."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["why_failed"]

_OURS = "farandole: "
_BLAMED = re.compile(rf"{_OURS}(rank (\d+) failed: .+)")
"""What `farandole launch` says of the rank that has failed first; indented lines with facts follow."""
_ERROR = re.compile(r" +error +(.+)")
_OF_A_RANK = re.compile(r"\[\d+\] ")
_WARNING = re.compile(rf"{_OURS}\d+ ranks share ")
_TRACEBACK = "Traceback (most recent call last):"
_LONGEST = 300


def why_failed(said: str, code: int) -> str:
    """In one line: the rank that the launcher blames and its error, or else the program's own last words."""
    lines = [line.rstrip() for line in said.splitlines() if line.strip() and not _WARNING.match(line)]
    blames = [at for at, line in enumerate(lines) if _BLAMED.match(line)]
    if not blames:
        return f"exit code {code}: {_last_words(lines)[-_LONGEST:] or 'it said nothing'}"
    return _of_blamed(lines[: blames[-1]], lines[blames[-1] :])


def _of_blamed(before: Sequence[str], block: Sequence[str]) -> str:
    found = _BLAMED.match(block[0])
    assert found is not None
    told, rank = found[1], found[2]
    error = next((fact[1] for line in block[1:] if (fact := _ERROR.match(line))), None) or _said_by(rank, before, "exit code" in told)
    return f"{told}: {error.removeprefix(_OURS)[-_LONGEST:]}" if error else told


def _said_by(rank: str, lines: Sequence[str], ended: bool) -> str:
    """Its exception, or where it has `ended` by itself its last words; one rank alone has the terminal for itself."""
    own = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}] ")]
    own = own or [line for line in lines if not line.startswith(_OURS) and not _OF_A_RANK.match(line)]
    return _last_words(own) if ended else _exception(own)


def _last_words(lines: Sequence[str]) -> str:
    """An exception, which libraries may talk after, or an error of ours, which comes last; without either the last line."""
    lines = [_OF_A_RANK.sub("", line, count=1) for line in lines]
    ours = [line for line in _after_traceback(lines) if line.startswith(_OURS)]
    return ours[-1] if ours else _exception(lines) or next((line for line in reversed(lines) if not line.startswith(" ")), "")


def _exception(lines: Sequence[str]) -> str:
    return next((line for line in _after_traceback(lines) if not line.startswith(" ")), "")


def _after_traceback(lines: Sequence[str]) -> Sequence[str]:
    """What follows the head of the last one."""
    heads = [at for at, line in enumerate(lines) if line == _TRACEBACK]
    return lines[heads[-1] + 1 :] if heads else ()
