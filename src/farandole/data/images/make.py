"""Synthetic JPEG files in ImageNet's layout: every class has a pattern of its own colours, which images show shifted and noisy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from farandole.data.images.codec import Pixels, encoded, resized
from farandole.errors import SettingsError

__all__ = ["make_images"]

_PATCHES = 5  # of a pattern's side
_NOISE = 24.0
_QUALITY = 90


def make_images(
    folder: str | Path, *, classes: int = 10, train: int = 20, test: int = 5, width: int = 500, height: int = 375, seed: int = 0
) -> int:
    """So many images of each class, in train/ and val/; the same seed gives the same images. How many were written."""
    for name, value in {"classes": classes, "train": train, "test": test, "width": width, "height": height}.items():
        least = 8 if name in ("width", "height") else 1
        if value < least:
            raise SettingsError(f"{name}={value}: expected {least} or more")
    if Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise SettingsError(f"{folder} is not empty. Choose another folder.")
    for number in range(classes):
        pattern = np.random.default_rng([seed, number]).integers(30, 225, (_PATCHES, _PATCHES, 3)).astype(np.uint8)
        for part, count in (("train", train), ("val", test)):
            place = Path(folder, part, f"class{number:04d}")
            place.mkdir(parents=True, exist_ok=True)
            for image in range(count):
                random = np.random.default_rng([seed, number, part == "val", image])
                (place / f"{image:06d}.jpg").write_bytes(encoded(_image(pattern, width, height, random), _QUALITY))
    return classes * (train + test)


def _image(pattern: Pixels, width: int, height: int, random: np.random.Generator) -> Pixels:
    shifted = np.roll(pattern, random.integers(_PATCHES, size=2), axis=(0, 1))
    noise = random.normal(0, _NOISE, (height, width, 1)).astype(np.float32)
    return (resized(shifted, width, height) + noise).clip(0, 255).astype(np.uint8)
