"""Images for the CNNs: one batch of random ones again and again, or JPEG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from farandole.data.images import ImageSamples, MiddleView, RandomView, find_images
from farandole.errors import SettingsError
from farandole.workloads.cnn import Cnn
from farandole.workloads.samples import RepeatedSamples, TrainingData

__all__ = ["load"]


def load(parameters: Cnn, folder: Path | None) -> TrainingData:
    """Inputs (n, side, side, 3) float32; class numbers."""
    return _synthetic(parameters) if folder is None else _from_files(parameters, folder)


def _synthetic(parameters: Cnn) -> TrainingData:
    classes, random = parameters.classes or parameters.net.classes, np.random.default_rng(parameters.rng_seed)
    count = min(parameters.batch_size, parameters.images)
    inputs = random.standard_normal((count, parameters.side, parameters.side, 3), np.float32)
    labels = random.integers(classes, size=count)
    return TrainingData(
        train=RepeatedSamples(inputs, labels, parameters.images), test=RepeatedSamples(inputs, labels, count),
        classes=tuple(map(str, range(classes))),
    )  # fmt: skip


def _from_files(parameters: Cnn, folder: Path) -> TrainingData:
    found = find_images(folder, test=parameters.val_split, seed=parameters.rng_seed)
    if 0 < parameters.classes < len(found.classes):
        raise SettingsError(f"classes={parameters.classes}: {folder} has {len(found.classes)}. Use as many or more, or leave it out.")
    seed, threads = parameters.rng_seed, parameters.decode_threads
    return TrainingData(
        train=ImageSamples(found.train, RandomView(parameters.side, parameters.distort), seed=seed, threads=threads),
        test=ImageSamples(found.test, MiddleView(parameters.side), seed=seed, threads=threads),
        classes=found.classes,
    )
