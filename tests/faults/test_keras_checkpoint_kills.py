"""Trainings with Keras that are killed again and again, on each backend, and checkpoints that go from one to the next."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from ranktest import run_ranks

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed"),
]
BACKENDS = ["torch", "tensorflow", "jax"]

TRAINING = """
import hashlib, os, random, signal, sys, threading
import keras
import numpy as np
import farandole.keras as hvd
hvd.init()

def made():
    keras.utils.set_random_seed(7 + hvd.rank())
    layers = [keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", metrics=["mae"])
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.5, min_delta=0.5)
    return model, plateau

def fit(model, epochs, callbacks, first=0):
    x = np.random.default_rng(hvd.rank()).normal(size=(40, 8)).astype("float32")
    together = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model.fit(
        x, x.sum(1, keepdims=True), batch_size=8, verbose=0, epochs=epochs, initial_epoch=first, callbacks=[*together, *callbacks]
    )

def digest(model, plateau):
    found = hashlib.sha256(repr((plateau.wait, plateau.best, random.random(), np.random.rand())).encode())
    for variable in [*model.variables, *model.optimizer.variables]:
        found.update(keras.ops.convert_to_numpy(variable).tobytes())
    return found.hexdigest()
"""

LIVES = """
class Death(keras.callbacks.Callback):
    left = None

    def on_train_batch_end(self, batch, logs=None):
        if self.left is not None and not checkpointer.passing:
            self.left -= 1
            if self.left == 0:
                threading.Timer(wait_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

folder, drawn_from, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
life = int(os.environ["FARANDOLE_RESTART"])
draw = random.Random(1000 * drawn_from + life)
victim, after, wait_s = draw.randrange(-1, hvd.size()), draw.randrange(2, 12), draw.uniform(0.0, 0.02)
background, when = draw.random() < 0.5, draw.choice([{"steps": 2}, {"steps": 5}, {"epochs": 1}])

model, plateau = made()
checkpointer = hvd.checkpoint.Checkpointer(
    folder, model, callbacks=[plateau], when=hvd.checkpoint.When(**when), background=background
)
first, death = checkpointer.restore(), Death()
if life < kills and victim in (hvd.rank(), -1):
    death.left = after
fit(model, 12, [plateau, death, checkpointer], first)
found = digest(model, plateau)
if life < kills:
    os.kill(os.getpid(), signal.SIGKILL)

model, plateau = made()
fit(model, 12, [plateau])
result([found, digest(model, plateau), first])
"""

READER = """
folder = sys.argv[1]
model, plateau = made()
checkpointer = hvd.checkpoint.Checkpointer(folder, model, callbacks=[plateau])
first = checkpointer.restore()
if first:
    from farandole.checkpoint import read
    saved = read(folder)
    for variables, part in [(model.variables, "model"), (model.optimizer.variables, "optimizer")]:
        assert len(variables) == len(saved[part])
        for variable, array in zip(variables, saved[part].values()):
            assert np.array_equal(keras.ops.convert_to_numpy(variable), array), variable.path
fit(model, first + 2, [plateau, checkpointer], first)
result([first, float(model.evaluate(np.zeros((8, 8), "float32"), np.zeros((8, 1)), verbose=0)[0])])
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path, backend: str, kills: int = 4) -> None:
    done = run_ranks(
        2, TRAINING + LIVES, args=[str(tmp_path / "run"), "0", str(kills)], launcher="farandole",
        launcher_args=["--restarts", str(kills)], timeout=500, cwd=tmp_path, env={"KERAS_BACKEND": backend},
    )  # fmt: skip
    assert done.stderr.count("starting again") == kills, done.stderr
    assert "going on from" in done.stderr, done.stderr
    for found, expected, _ in done.results:
        assert found == expected, f"other bits than an undisturbed training\n{done.stderr}"


def test_each_backend_goes_on_from_what_another_has_saved(tmp_path: Path) -> None:
    losses = []
    for life, backend in enumerate(["torch", "tensorflow", "jax", "torch"]):
        done = run_ranks(
            1, TRAINING + READER, args=[str(tmp_path / "run")], timeout=200, cwd=tmp_path, env={"KERAS_BACKEND": backend}
        )
        first, loss = done.results[0]
        assert first == 2 * life
        assert ("it was saved by Keras on" in done.stderr) == (life > 0), done.stderr
        losses.append(loss)
    assert losses[-1] < losses[0], json.dumps(losses)
