"""A training that is killed again and again ends with the very bits of one that was left alone."""

import random
from pathlib import Path
from typing import Any

import pytest

from ranktest import run_ranks

STEPS = 40

TRAINING = """
import hashlib, os, random, signal, sys, threading, time
import numpy as np
import torch
import farandole.torch as hvd

hvd.init()
folder, victim, kind, when, background = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5] == "1"

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at_call(count):
    # Only those of the checkpoint: everything goes through these.
    calls = [0]
    def counted(function):
        def call(*args, **kwargs):
            calls[0] += 1
            if calls[0] == count:
                die()
            return function(*args, **kwargs)
        return call
    for name in ("writev", "fsync", "mkdir", "rename", "replace", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(256, 8)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
torch.manual_seed(hvd.rank())
random.seed(hvd.rank())
np.random.seed(hvd.rank())
history = {"losses": []}
checkpointer = hvd.checkpoint.Checkpointer(
    folder, model=model, optimizer=optimizer, schedule=schedule, history=history,
    when=hvd.checkpoint.When(steps=2), keep=hvd.checkpoint.Keep(last=2), background=background,
)
checkpointer.restore()
if victim in (hvd.rank(), -1):
    if kind == "time":
        timer = threading.Timer(when, die)
        timer.daemon = True
        timer.start()
    elif kind == "call":
        die_at_call(int(when))
while checkpointer.progress.step < int(sys.argv[6]):
    optimizer.zero_grad()
    data = torch.randn(16, 64) + random.random() + float(np.random.rand())
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    schedule.step(mean)
    history["losses"].append(mean)
    checkpointer.step({"loss": mean})
checkpointer.close()
digest = hashlib.sha256()
for tensor in [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]:
    digest.update(tensor.detach().numpy().tobytes())
digest.update(repr([history, schedule.state_dict(), random.random(), np.random.rand(), torch.rand(1).item()]).encode())
result([digest.hexdigest(), len(history["losses"])])
"""


def train(folder: Path, ranks: int, *, victim: int = -2, kind: str = "no", when: float = 0, background: bool = False) -> Any:
    """How it went, killed or not."""
    args = [str(folder), str(victim), kind, str(when), str(int(background)), str(STEPS)]
    return run_ranks(ranks, TRAINING, args=args, launcher="farandole", timeout=90, expect=None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By number of ranks, what every rank ends with when nothing happens."""
    found: dict[int, list[Any]] = {}

    def ends(ranks: int) -> list[Any]:
        if ranks not in found:
            found[ranks] = train(tmp_path_factory.mktemp("undisturbed") / "run", ranks).results
        return found[ranks]

    return ends


def drawn_kill(draw: random.Random, ranks: int) -> dict[str, Any]:
    """Half of the kills hit the rank that writes, at one of the calls of a save; the others any rank, or all."""
    if draw.random() < 0.5:
        return {"victim": 0, "kind": "call", "when": draw.randrange(1, 60)}
    return {"victim": draw.choice([-1, *range(ranks)]), "kind": "time", "when": round(draw.uniform(0.0, 0.8), 3)}


def survive(folder: Path, ranks: int, kills: int, draw: random.Random) -> tuple[list[Any], list[int]]:
    """What ranks end with after kills, and how many steps there were to go on from each time."""
    went_on = [0]
    for _ in range(kills):
        kill = drawn_kill(draw, ranks)
        run = train(folder, ranks, background=draw.random() < 0.5, **kill)
        assert "is damaged" not in run.stderr, f"{kill}\n{run.stderr}"
        assert run.returncode in (0, 137), f"{kill}\n{run.stderr}"
        went_on.append(newest_step(folder))
        assert went_on[-1] >= went_on[-2], f"{kill}: a checkpoint was lost"
    return train(folder, ranks).results, went_on


def newest_step(folder: Path) -> int:
    from farandole.checkpoint.folder import check, entries

    whole = [entry for entry in entries(folder) if not entry.kind]
    for entry in whole:
        check(entry)
    return whole[-1].step if whole else 0


def test_killed_and_resumed_training_ends_with_the_same_bits(undisturbed, tmp_path: Path) -> None:
    found, went_on = survive(tmp_path / "run", 2, 3, random.Random(6))
    assert found == undisturbed(2)
    assert went_on[-1] > 0, "no kill came after a save"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("ranks", [2, 3])
def test_killed_again_and_again(undisturbed, tmp_path: Path, ranks: int, seed: int) -> None:
    """200 kills in all."""
    kills = 3 if ranks == 2 else 2
    found, _ = survive(tmp_path / "run", ranks, kills, random.Random(100 * ranks + seed))
    assert found == undisturbed(ranks)
