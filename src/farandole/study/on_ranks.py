"""Ranks that read together: `farandole launch -n 2 -- python -m farandole.study.on_ranks TURNS OUT`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import farandole
from farandole.study.nursery import warm
from farandole.study.turn import Figures, Turn, combined, take

__all__: list[str] = []


def main(turns: str, out: str) -> None:
    """Every turn of the file TURNS, one after the other; figures of all ranks go to OUT."""
    warm("fast")
    farandole.init()
    found = [_measured(Turn(**turn)) for turn in json.loads(Path(turns).read_text())]
    if farandole.rank() == 0:
        Path(out).write_text(json.dumps([asdict(figures) for figures in found]))
    farandole.shutdown()


def _measured(turn: Turn) -> Figures:
    reason = farandole.broadcast_object(turn.prepare() if farandole.rank() == 0 else None)
    if reason is not None:
        return Figures(reason=reason)
    return combined(farandole.allgather_object(take(turn, farandole.barrier)))


if __name__ == "__main__":
    main(*sys.argv[1:])
