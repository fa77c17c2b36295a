"""Train an MLP or a small convolutional net with Keras 3, on any backend and any number of ranks.

    KERAS_BACKEND=torch python examples/keras_train.py
    KERAS_BACKEND=jax farandole launch -n 2 -- python examples/keras_train.py --model cnn
    KERAS_BACKEND=tensorflow mpiexec -n 2 python examples/keras_train.py --json result.json

Each rank takes `--batch-size` samples a step from its own part of the data, and the learning rate grows with the
number of ranks after a warm-up.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import farandole.keras as hvd
from farandole.optim import scaled_rate

CLASSES = 4
SIDE = 16


def patterns(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images of stripes, and the direction of the stripes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=samples)
    angle = np.pi * labels / CLASSES
    phase = rng.uniform(0, 2 * np.pi, size=samples)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    images = np.sin(6 * np.pi * along + phase[:, None, None]) + rng.normal(scale=0.5, size=(samples, SIDE, SIDE))
    return images[..., None].astype("float32"), labels.astype("int32")


def build(name: str) -> keras.Model:
    layers = keras.layers
    if name == "cnn":
        body = [
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalMaxPooling2D(),
        ]
    else:
        body = [layers.Flatten(), layers.Dense(256, activation="relu"), layers.Dense(128, activation="relu")]
    return keras.Sequential([keras.Input((SIDE, SIDE, 1)), *body, layers.Dropout(0.1), layers.Dense(CLASSES)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--samples", type=int, default=8192, help="training images, over all ranks")
    parser.add_argument("--batch-size", type=int, default=64, help="samples a rank takes in a step")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=0.02, help="of one rank")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    options = parser.parse_args()

    hvd.init()
    # Its own seed for every rank: equal ones would drop the same units out everywhere.
    keras.utils.set_random_seed(1 + hvd.rank())
    images, labels = patterns(options.samples, seed=0)
    steps = options.samples // (hvd.size() * options.batch_size)
    mine = slice(hvd.rank(), steps * options.batch_size * hvd.size(), hvd.size())

    rate = scaled_rate(options.learning_rate, hvd.size())
    model = build(options.model)
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    began = time.perf_counter()
    history = model.fit(
        images[mine],
        labels[mine],
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=patterns(1024, seed=1),
        verbose=2,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1, momentum_correction=False),
            hvd.callbacks.ProgressCallback(),
        ],
    ).history
    if hvd.rank() == 0:
        seconds = time.perf_counter() - began
        print(
            f"{options.model} on {keras.backend.backend()}, {hvd.size()} rank(s): {seconds:.1f} s, "
            f"accuracy {history['val_accuracy'][-1]:.1%}",
            flush=True,
        )
        if options.json:
            found = {"backend": keras.backend.backend(), "ranks": hvd.size(), "history": history}
            options.json.write_text(json.dumps(found, default=float))


if __name__ == "__main__":
    main()
