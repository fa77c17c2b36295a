"""NT3's demo from files to accuracy: `farandole run` against Keras with pandas, and its training against DDP.

    before   1 process of 2 threads: pandas, Keras' own layers and fit(), as one types it
    tuned    the same with the allocator settings of `farandole launch`
    DDP      2 ranks of 1 thread: the model of `farandole run`, its batches and validation, in a loop with DDP, so tuned
    ours     2 ranks of 1 thread: farandole run nt3 -n 2

Each is a whole run, started anew; they take turns, each turn with a seed of its own. All have the same work to do (the
preset's epochs, divided where there are two ranks) and the same files, read before by nobody.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.cases import Case
from bench.estimates import median
from bench.launching import launch_words, run
from bench.rows import Row, Target, compared
from farandole.comm.node.arithmetic import prepare
from farandole.data.make import make
from farandole.data.matrix import read_matrix
from farandole.launch.environment import ALLOCATOR_VARIABLES
from farandole.workloads.nt3 import FILES, NT3, WORKLOAD

__all__ = ["measure"]

OURS, BEFORE, TUNED, DDP = "farandole run", "pandas and Keras", "pandas and Keras, our allocator settings", "DDP"
PHASES = ("start", "load", "preprocess", "build", "broadcast", "train", "evaluate", "save")
ACCURACY_LOST = 0.02
_RANKS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    """What a contestant is told."""

    framework: str
    data: Path
    out: Path
    epochs: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Found:
    seconds: dict[str, float]
    """By phase; the total is that of the command."""
    accuracy: float


def measure(*, quick: bool, framework: str = "torch") -> tuple[list[Row], list[Case]]:
    epochs = NT3(**WORKLOAD.presets["demo"]).epochs
    contestants = {OURS: _ours, BEFORE: _before, TUNED: _tuned}
    if framework == "torch":
        contestants[DDP] = _ddp
    found = _rounds(contestants, framework, epochs, 1 if quick else 2)
    what = f"nt3 demo, {epochs} epochs, {framework}"
    cases = [_case(f"{what}: {phase}", found, phase) for phase in ("total", *PHASES)]
    return _rows(what, found, cases), cases


def _rounds(
    contestants: dict[str, Callable[[_Turn], _Found]], framework: str, epochs: int, rounds: int
) -> dict[str, list[_Found]]:
    found: dict[str, list[_Found]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        made = Path(folder, "made")
        make(FILES, made, preset="demo")
        # Compiled once on a machine, in nobody's time.
        read_matrix(next(made.glob("*.csv")), header=False, columns=[0], cache=False)
        prepare(np.dtype(np.float32))
        for number in range(rounds):
            order = list(contestants)[:: 1 if number % 2 == 0 else -1]
            for name in order:
                print(f"nt3: run {number + 1} of {rounds}, {name}", file=sys.stderr, flush=True)
                turn = _turn(
                    Path(folder, f"{number}-{order.index(name)}"), made, framework, epochs, number + 1
                )
                found[name].append(contestants[name](turn))
    return found


def _turn(place: Path, made: Path, framework: str, epochs: int, seed: int) -> _Turn:
    """With files of its own: those of others may have a cache beside them."""
    shutil.copytree(made, place / "data")
    return _Turn(framework=framework, data=place / "data", out=place / "out", epochs=epochs, seed=seed)


# The contestants


def _ours(turn: _Turn) -> _Found:
    words = ["run", "nt3", "-n", str(_RANKS), "--framework", turn.framework, "--output-dir", str(turn.out)]
    given = ["--data-dir", str(turn.data), "--epochs", str(turn.epochs), "--rng_seed", str(turn.seed)]
    total = _timed([sys.executable, "-m", "farandole", *words, *given], {"OMP_NUM_THREADS": "1"})
    record = json.loads((turn.out / "run.json").read_text())
    seconds = {name: record["seconds"][name]["max"] for name in PHASES}
    seconds["load"] += record["seconds"]["compile"]["max"]  # numba, which the other contestants need not load
    return _Found(seconds | {"total": total}, record["final"]["test"]["accuracy"])


def _before(turn: _Turn) -> _Found:
    return _plain(turn, {})


def _tuned(turn: _Turn) -> _Found:
    return _plain(turn, ALLOCATOR_VARIABLES)


def _plain(turn: _Turn, variables: dict[str, str]) -> _Found:
    demo = NT3(**WORKLOAD.presets["demo"])
    settings = {
        "folder": str(turn.data), "epochs": turn.epochs, "optimizer": demo.optimizer, "rate": demo.learning_rate,
        "batch": demo.batch_size, "seed": turn.seed,
    }  # fmt: skip
    turn.out.mkdir()
    out = turn.out / "found.json"
    words = [sys.executable, "-m", "bench.nt3_plain", json.dumps(settings), str(out)]
    threads = {"OMP_NUM_THREADS": str(_RANKS), "TF_NUM_INTRAOP_THREADS": str(_RANKS)}
    total = _timed(words, {"KERAS_BACKEND": turn.framework} | threads | variables)
    found = json.loads(out.read_text())
    return _Found(found["seconds"] | {"total": total}, found["accuracy"])


def _ddp(turn: _Turn) -> _Found:
    settings = {
        "benchmark": "nt3", "preset": "demo", "data_dir": str(turn.data), "epochs": turn.epochs, "rng_seed": turn.seed,
    }  # fmt: skip
    turn.out.mkdir()
    out = turn.out / "found.json"
    script = [sys.executable, "-m", "bench.nt3_ddp", json.dumps(settings), str(out)]
    total = _timed(
        [*launch_words(_RANKS), "--threads", "1", "--", *script], {"KERAS_BACKEND": turn.framework}
    )
    found = json.loads(out.read_text())
    return _Found(found["seconds"] | {"total": total}, found["accuracy"])


def _timed(words: list[str], variables: dict[str, str]) -> float:
    began = time.perf_counter()
    run(words, variables)
    return time.perf_counter() - began


# The rows


def _case(what: str, found: dict[str, list[_Found]], phase: str) -> Case:
    samples = {
        name: [one.seconds[phase] for one in of]
        for name, of in found.items()
        if all(phase in one.seconds for one in of)
    }
    return Case(
        what=what,
        samples=samples,
        notes={"accuracy": {n: [o.accuracy for o in of] for n, of in found.items()}},
    )


def _rows(what: str, found: dict[str, list[_Found]], cases: list[Case]) -> list[Row]:
    total, *phases = cases
    train = phases[PHASES.index("train")]
    rows = [compared(total, OURS, BEFORE, least=1.5), compared(total, OURS, TUNED), _accuracy(what, found)]
    if DDP in found:
        rows.append(compared(train, OURS, DDP, least=1.0))
    shares = {name: {case.what: _share(case, total, name) for case in phases} for name in (OURS, BEFORE)}
    for case in phases:
        if BEFORE in case.samples:
            share, before = (f"{shares[name][case.what]:.0%}" for name in (OURS, BEFORE))
            rows.append(
                compared(_named(case, f"{case.what}, {share} of the run, was {before}"), OURS, BEFORE)
            )
    return rows


def _share(case: Case, total: Case, name: str) -> float:
    return median(case.samples[name]) / median(total.samples[name]) if name in case.samples else 0.0


def _named(case: Case, what: str) -> Case:
    return Case(what=what, samples=case.samples, notes=case.notes)


def _accuracy(what: str, found: dict[str, list[_Found]]) -> Row:
    ours, before = (median([one.accuracy for one in found[name]]) for name in (OURS, BEFORE))
    wanted = f">= {before:.1%} - {ACCURACY_LOST:.0%}"
    return Row(
        what=f"{what}: test accuracy",
        ours=ours,
        target=Target(wanted=wanted, found=ours, met=ours >= before - ACCURACY_LOST),
    )
