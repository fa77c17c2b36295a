"""NT3 as one writes it with Keras and pandas alone, in one process: python -m bench.nt3_plain SETTINGS OUT.

Layers, loss, metric, callback and files are those of the benchmark; nothing of farandole is imported.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from keras import layers  # noqa: E402


class _Phases:
    """Seconds from one mark to the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = BEGAN

    def end(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def _scaled(tables: list[Any]) -> list[tuple[Any, Any]]:
    """Labels one-hot; genes by the largest magnitude over both files, with the trailing axis of a convolution."""
    genes = [table[:, 1:] for table in tables]
    largest = np.max([np.abs(part).max(axis=0) for part in genes], axis=0)
    largest[largest == 0] = 1
    one_hot = np.eye(2, dtype="float32")
    return [
        ((part / largest)[:, :, None], one_hot[table[:, 0].astype(int)]) for part, table in zip(genes, tables)
    ]


def _model(features: int, optimizer: str, rate: float) -> Any:
    relu = {"activation": "relu"}
    model = keras.Sequential(
        [
            keras.Input((features, 1)),
            layers.Conv1D(128, 20, **relu), layers.MaxPooling1D(1),
            layers.Conv1D(128, 10, **relu), layers.MaxPooling1D(10),
            layers.Flatten(),
            layers.Dense(200, **relu), layers.Dropout(0.1),
            layers.Dense(20, **relu), layers.Dropout(0.1),
            layers.Dense(2, activation="softmax"),
        ]
    )  # fmt: skip
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.learning_rate = rate
    return model


def main(folder: str, epochs: int, optimizer: str, rate: float, batch: int, seed: int) -> dict[str, Any]:
    # What Keras draws its seeds from. Its own set_random_seed loads every framework there is.
    random.seed(seed)
    np.random.seed(seed)
    phases = _Phases()
    phases.end("start")
    files = [Path(folder, name) for name in ("nt_train2.csv", "nt_test2.csv")]
    tables = [pd.read_csv(path, header=None).values.astype("float32") for path in files]
    phases.end("load")
    (x, y), (x_test, y_test) = _scaled(tables)
    phases.end("preprocess")
    model = _model(x.shape[1], optimizer, rate)
    phases.end("build")
    slower = keras.callbacks.ReduceLROnPlateau("val_loss", 0.1, patience=10, min_delta=1e-4)
    model.fit(
        x, y, batch_size=batch, epochs=epochs, validation_data=(x_test, y_test), callbacks=[slower], verbose=0
    )
    phases.end("train")
    accuracy = model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
    phases.end("evaluate")
    return {"seconds": phases.seconds, "accuracy": accuracy}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(**json.loads(sys.argv[1]))))
