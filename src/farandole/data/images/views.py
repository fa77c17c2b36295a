"""What a network sees of an image: pixels in, `size` x `size` x 3 float32 out, near 0 and of deviation near 1.

    RandomView   a random part of 8% to 100% of the area, 3:4 to 4:3, resized; mirrored at random; on request other light
    MiddleView    resized to a little more than `size`, and the middle of it

Random numbers are those of the generator that is passed, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from farandole.data.images.codec import Pixels, resized

__all__ = ["MiddleView", "RandomView", "View"]

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's images, from 0 to 1, by colour."""
_SHIFT, _SCALE = 255 * np.array(MEAN, np.float32), 1 / (255 * np.array(DEVIATION, np.float32))
_AREAS, _SHAPES, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
_BRIGHTNESS, _CONTRAST = 32.0, (0.5, 1.5)
_MARGIN = 256 / 224

Floats = NDArray[np.float32]


class View(Protocol):
    @property
    def size(self) -> int: ...

    def see(self, image: Pixels, random: np.random.Generator, out: Floats) -> None:
        """Write what there is to see of `image` into `out`, (size, size, 3)."""


@dataclass(frozen=True, slots=True)
class RandomView:
    size: int
    distort: bool = False
    """Change brightness and contrast at random."""

    def see(self, image: Pixels, random: np.random.Generator, out: Floats) -> None:
        top, left, height, width = _random_part(image.shape[0], image.shape[1], random)
        part = resized(image[top : top + height, left : left + width], self.size, self.size)
        np.subtract(part[:, ::-1] if random.random() < 0.5 else part, _SHIFT, out=out)
        if self.distort:
            _change_light(out, random)
        np.multiply(out, _SCALE, out=out)


@dataclass(frozen=True, slots=True)
class MiddleView:
    size: int

    def see(self, image: Pixels, random: np.random.Generator, out: Floats) -> None:
        height, width = image.shape[:2]
        factor = self.size * _MARGIN / min(height, width)
        whole = resized(image, max(self.size, round(width * factor)), max(self.size, round(height * factor)))
        top, left = (whole.shape[0] - self.size) // 2, (whole.shape[1] - self.size) // 2
        np.subtract(whole[top : top + self.size, left : left + self.size], _SHIFT, out=out)
        np.multiply(out, _SCALE, out=out)


def _random_part(height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Top, left, height and width; where no such part fits in ten tries, the largest in the middle."""
    for _ in range(_TRIES):
        area = height * width * random.uniform(*_AREAS)
        shape = math.exp(random.uniform(math.log(_SHAPES[0]), math.log(_SHAPES[1])))
        wide, high = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < wide <= width and 0 < high <= height:
            return int(random.integers(height - high + 1)), int(random.integers(width - wide + 1)), high, wide
    wide, high = min(width, round(height * _SHAPES[1])), min(height, round(width / _SHAPES[0]))
    return (height - high) // 2, (width - wide) // 2, high, wide


def _change_light(pixels: Floats, random: np.random.Generator) -> None:
    """Of pixels around the mean; in place."""
    pixels *= random.uniform(*_CONTRAST)
    pixels += random.uniform(-_BRIGHTNESS, _BRIGHTNESS)
