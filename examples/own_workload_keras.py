"""Your own data and Keras model, through everything that `farandole run` and `farandole study` do.

    farandole run examples/own_workload_keras.py -n 2
    farandole run examples/own_workload_keras.py -n 2 --framework jax
    farandole study lr examples/own_workload_keras.py --ranks 1,2
"""

from dataclasses import dataclass

import keras
import numpy as np

from farandole.workloads import KerasModel, Parameters, TrainingData, Workload, option, split


@dataclass(kw_only=True)
class Settings(Parameters):
    epochs: int = option(10, "passes over the training data")
    batch_size: int = option(25, "batch size per rank")
    optimizer: str = option("adam", "which")
    learning_rate: float | None = option(0.003, "of one rank alone")
    filters: int = option(8, "of the convolution")


def load(parameters: Settings, folder) -> TrainingData:  # images of a bar that stands or lies
    random = np.random.default_rng(0)
    images, stands = random.normal(0, 0.5, (1000, 12, 12, 1)).astype(np.float32), np.arange(1000) % 2
    for image, upright, place in zip(images, stands, random.integers(0, 12, 1000)):
        image[:, place] += upright
        image[place, :] += 1 - upright
    return split(images, stands.astype(np.float32))


def build(parameters: Settings, data: TrainingData) -> keras.Model:
    found = [keras.layers.Conv2D(parameters.filters, 5, activation="relu"), keras.layers.GlobalMaxPooling2D()]
    return keras.Sequential([keras.Input((12, 12, 1)), *found, keras.layers.Dense(1, "sigmoid")])


MODEL = KerasModel(
    build=build, loss="binary_crossentropy", metrics=lambda parameters, data: [keras.metrics.BinaryAccuracy(name="accuracy")]
)
WORKLOAD = Workload(name="bars", title="bars that stand or lie", parameters=Settings, load=load, keras=MODEL, watched="accuracy")
