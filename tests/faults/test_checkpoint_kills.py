"""A training that is killed again and again, and started again, ends with the very bits of one that was left alone."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from ranktest import run_ranks

STEPS = 60

# What trains, and what is saved: `train(checkpointer)` goes on to the last step; `parts` and `digest()` say the rest.
NUMPY = """
import farandole as hvd
from farandole.checkpoint import Checkpointer, Keep, When
hvd.init()

class Training:
    def __init__(self):
        seed()
        self.weights, self.speed = np.zeros((64, 64)), np.zeros((64, 64))
        self.schedule, self.history = {"rate": 0.1, "best": np.inf}, {"losses": []}
        self.generator = np.random.default_rng(hvd.rank())
        self.parts = {"model": {"weights": self.weights, "speed": self.speed}, "schedule": self.schedule, "history": self.history}

    def checkpointer(self, folder, background):
        return Checkpointer(folder, self.parts, own={"data": self.generator}, when=When(steps=2), keep=Keep(last=2), background=background)

    def step(self):
        model = self.parts["model"]
        data = self.generator.normal(size=(64, 64)) + random.random() + np.random.rand()
        gradient = hvd.allreduce(model["weights"] - data, name="gradient")
        model["speed"] *= 0.9
        model["speed"] += gradient
        model["weights"] -= self.schedule["rate"] * model["speed"]
        loss = float(hvd.allreduce(np.square(gradient), name="loss").mean())
        if loss > self.schedule["best"]:
            self.schedule["rate"] *= 0.99
        self.schedule["best"] = min(loss, self.schedule["best"])
        self.history["losses"].append(loss)
        return loss

    def ends_with(self):
        model = self.parts["model"]
        arrays = [model["weights"], model["speed"]]
        return [arrays, [self.schedule, self.history, self.generator.random(), random.random(), np.random.rand()]]
"""

TORCH = """
import torch
import farandole.torch as hvd
hvd.init()

class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        )
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
        self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters())
        self.history = {"losses": []}
        seed()
        torch.manual_seed(hvd.rank())

    def checkpointer(self, folder, background):
        checkpoint = hvd.checkpoint
        return checkpoint.Checkpointer(
            folder, model=self.model, optimizer=self.optimizer, schedule=self.schedule, history=self.history,
            when=checkpoint.When(steps=2), keep=checkpoint.Keep(last=2), background=background,
        )

    def step(self):
        self.optimizer.zero_grad()
        data = torch.randn(16, 16) + random.random() + float(np.random.rand())
        loss = self.model(data).square().mean()
        loss.backward()
        self.optimizer.step()
        mean = hvd.allreduce(loss.detach(), name="loss").item()
        self.schedule.step(mean)
        self.history["losses"].append(mean)
        return mean

    def ends_with(self):
        tensors = [*self.model.state_dict().values(), *(v for s in self.optimizer.state.values() for v in s.values())]
        drawn = [random.random(), np.random.rand(), torch.rand(1).item()]
        return [[t.detach().numpy() for t in tensors], [self.history, self.schedule.state_dict(), drawn]]
"""

# Each life draws its kill from a seed and its number; the last one is left alone, and then trains once more from the
# start, without checkpoints, to know what it should have ended with.
LIVES = """
import hashlib, json, os, random, signal, sys, threading, time
from pathlib import Path
import numpy as np

def seed():
    random.seed(hvd.rank())
    np.random.seed(hvd.rank())
{training}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_soon(seconds):
    timer = threading.Timer(seconds, die)
    timer.daemon = True
    timer.start()

def die_at_call(count):
    # Everything a save does to the disk goes through these.
    calls = [0]
    def counted(function):
        def call(*args, **kwargs):
            calls[0] += 1
            if calls[0] == count:
                die()
            return function(*args, **kwargs)
        return call
    for name in ("pwrite", "ftruncate", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))

def digest(ends):
    arrays, values = ends
    found = hashlib.sha256(repr(values).encode())
    for array in arrays:
        found.update(array.tobytes())
    return found.hexdigest()

def whole(folder):
    from farandole.checkpoint.folder import check, entries
    found = [entry for entry in entries(folder) if not entry.kind]
    for entry in found:
        check(entry)
    return [entry.step for entry in found]

folder, drawn_from, kills, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
life = int(os.environ["FARANDOLE_RESTART"])
draw = random.Random(1000 * drawn_from + life)
# Half of the kills hit the rank that writes, at one of the calls of a save; the others any rank, or all.
call = draw.randrange(1, 60) if draw.random() < 0.5 else 0
victim, after, wait_s = draw.randrange(-1, hvd.size()), draw.randrange(1, 12), draw.uniform(0.0, 0.02)
background = draw.random() < 0.5

training = Training()
if hvd.rank() == 0:
    with open("lives", "a") as file:
        file.write(json.dumps(whole(folder)) + "\\n")
checkpointer = training.checkpointer(folder, background)
checkpointer.restore()
first = checkpointer.progress.step
if life < kills and call and hvd.rank() == 0:
    die_at_call(call)
while checkpointer.progress.step < steps:
    if life < kills and not call and victim in (hvd.rank(), -1) and checkpointer.progress.step == first + after:
        die_soon(wait_s)
    checkpointer.step({{"loss": training.step()}})
checkpointer.close()
found = digest(training.ends_with())
if life < kills:
    time.sleep(1)  # the kill that was drawn for a moment after the end
    die()

training = Training()
for _ in range(steps):
    training.step()
result([found, digest(training.ends_with())])
"""


def survive(folder: Path, training: str, ranks: int, *, kills: int, seed: int, steps: int = STEPS) -> list[list[int]]:
    """Kill and start again; the steps of the checkpoints each life has found."""
    script = LIVES.format(training=training)
    args = [str(folder / "run"), str(seed), str(kills), str(steps)]
    done = run_ranks(
        ranks, script, args=args, launcher="farandole", launcher_args=["--restarts", str(kills)], timeout=75 * (kills + 1), cwd=folder
    )
    assert "is damaged" not in done.stderr, done.stderr
    assert done.stderr.count("starting again") == kills, done.stderr
    for found, expected in done.results:
        assert found == expected, f"other bits than an undisturbed training\n{done.stderr}"
    return [json.loads(line) for line in (folder / "lives").read_text().splitlines()]


def check_none_lost(lives: list[list[int]]) -> None:
    for before, after in itertools.pairwise(lives):
        assert max(after, default=0) >= max(before, default=0), f"a checkpoint was lost: {lives}"
        assert len(after) >= min(2, len(before)), f"a checkpoint was lost: {lives}"


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "kills"), [(2, 4), (3, 2)])
def test_killed_and_resumed_training_ends_with_the_same_bits(tmp_path: Path, ranks: int, kills: int) -> None:
    lives = survive(tmp_path, NUMPY, ranks, kills=kills, seed=5)
    check_none_lost(lives)
    assert lives[-1], "no kill came after a save"


@pytest.mark.more
def test_a_killed_torch_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    # It kills a rank after 7 steps, and saves in the background every 2: the second one has waited for the first.
    lives = survive(tmp_path, TORCH, 2, kills=1, seed=15)
    assert lives[-1], "no kill came after a save"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("training", "ranks", "seed"),
    [
        *(pytest.param(NUMPY, ranks, seed, id=f"n{ranks}-{seed}") for ranks, seeds in ((2, 18), (3, 10), (4, 10)) for seed in range(seeds)),
        *(pytest.param(TORCH, 2, seed, id=f"torch-n2-{seed}") for seed in range(2)),
    ],
)
def test_killed_again_and_again(tmp_path: Path, training: Any, ranks: int, seed: int) -> None:
    """200 kills in all."""
    check_none_lost(survive(tmp_path, training, ranks, kills=5, seed=100 * ranks + seed))
