"""Folders of JPEG files: a folder a class, in `train` and `val` as ImageNet has them, or in one folder that is divided."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farandole.data.split import drawn, held_out
from farandole.errors import DataError

__all__ = ["ImageFiles", "ImageSet", "find_images"]

TRAIN, TEST = "train", ("val", "validation", "test")
SUFFIXES = (".jpg", ".jpeg")


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Files in the order of their names, and the number of each one's class."""

    paths: Sequence[str]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.paths)

    def some(self, rows: NDArray[np.intp]) -> ImageFiles:
        return ImageFiles([self.paths[row] for row in rows], self.labels[rows])


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSet:
    train: ImageFiles
    test: ImageFiles
    classes: tuple[str, ...]
    """The names of their folders; a label is the place in here."""


def find_images(folder: str | Path, *, test: float = 0.1, seed: int = 0) -> ImageSet:
    """The images of a folder. Without `train` and `val` in it, a random share `test` is held out, the same for one seed."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder. Expected {folder / TRAIN}/CLASS/*.jpg, or {folder}/CLASS/*.jpg.")
    if not (folder / TRAIN).is_dir():
        classes = _classes(folder)
        whole = _files(folder, classes)
        order, count = drawn(len(whole), seed), held_out(len(whole), test)
        return ImageSet(train=whole.some(np.sort(order[count:])), test=whole.some(np.sort(order[:count])), classes=classes)
    held = next((folder / name for name in TEST if (folder / name).is_dir()), None)
    if held is None:
        raise DataError(f"{folder} has {TRAIN} and none of {', '.join(TEST)}. Put images to test on there, or name {folder / TRAIN} to divide it.")
    classes = _classes(folder / TRAIN)
    return ImageSet(train=_files(folder / TRAIN, classes), test=_files(held, classes), classes=classes)


def _classes(folder: Path) -> tuple[str, ...]:
    found = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")))
    if not found:
        raise DataError(f"{folder} has no folders. Expected one for each class, with its JPEG files: {folder}/CLASS/*.jpg.")
    return found


def _files(folder: Path, classes: Sequence[str]) -> ImageFiles:
    """Of every class at least one, and of no other class."""
    there = _classes(folder)
    if unknown := sorted({*there} - {*classes}):
        raise DataError(f"{folder / unknown[0]}: no class of that name is trained on. There are {_some(classes)}.")
    paths: list[str] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        found = _jpegs(folder / name)
        paths += found
        labels += [number] * len(found)
    return ImageFiles(paths, np.array(labels, np.int64))


def _jpegs(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(f"{folder}: this class has no folder here. Make one with its JPEG files, or remove the class elsewhere.")
    found = sorted(entry.path for entry in os.scandir(folder) if entry.name.lower().endswith(SUFFIXES))
    if not found:
        raise DataError(f"{folder} has no images. Expected files with names in {' or '.join(SUFFIXES)}.")
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
