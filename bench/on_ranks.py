"""One rank of a benchmark: `farandole launch -n 2 --threads 1 -- python -m bench.on_ranks WHAT SETTINGS OUT`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import farandole.torch as hvd
from bench import (
    allreduce,
    channels,
    checkpoints,
    gradients,
    hosts,
    idle,
    observing,
    parameter_server,
    streams,
    training,
)
from bench.cases import Case, Measured
from bench.contest import Ranks

__all__ = ["MEASURES"]

MEASURES: dict[str, Callable[..., list[Case]]] = {
    "allreduce": allreduce.measure,
    "channels": channels.measure,
    "checkpoints": checkpoints.measure,
    "gradients": gradients.measure,
    "hosts": hosts.measure,
    "idle": idle.measure,
    "observing": observing.measure,
    "parameter_server": parameter_server.measure,
    "steps": training.measure,
    "streams": streams.measure,
    "timeline": training.measure_timeline,
}


def main(what: str, settings: str, out: str) -> None:
    hvd.init()
    ranks = Ranks(Path(out).parent)
    cases = MEASURES[what](ranks, **json.loads(settings))
    if ranks.rank == 0:
        facts = hvd.describe() | {"torch_threads": torch.get_num_threads()}
        Path(out).write_text(json.dumps(Measured(cases=cases, facts=facts).as_json()))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
