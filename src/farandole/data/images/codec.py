"""JPEG bytes to pixels and back, and pixels to another size, by simplejpeg and OpenCV: both let other threads run meanwhile."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.errors import DataError, SettingsError

__all__ = ["Pixels", "check_installed", "decoded", "encoded", "resized"]

Pixels = NDArray[np.uint8]
"""(height, width, 3), red first."""
_CUT_OFF = "Premature end"
LEAST = 8
"""Pixels on a side, below which there is nothing to see."""


@functools.cache
def _libraries() -> tuple[Any, Any]:
    try:
        import cv2
        import simplejpeg
    except ImportError as error:
        raise SettingsError(f"images cannot be read: {error}. Type: pip install 'farandole[images]'") from error
    cv2.setNumThreads(1)  # images go to threads, each to one
    return simplejpeg, cv2


def check_installed() -> None:
    """Say at once what to install."""
    _libraries()


def decoded(data: bytes, path: str | Path) -> Pixels:
    """The image in `data`, which is the content of `path`.

    Data sets have some files that JPEG's own decoder refuses and other programs show: with four colours, or PNG by another name.
    """
    simplejpeg, cv2 = _libraries()
    try:
        image = simplejpeg.decode_jpeg(data)
    except ValueError as error:
        found = None if _CUT_OFF in str(error) or not data else cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if found is None:
            raise DataError(f"{path} is no JPEG that can be read: {error}. Replace or remove it.") from None
        image = cv2.cvtColor(found, cv2.COLOR_BGR2RGB)
    if min(image.shape[:2]) < LEAST:
        raise DataError(f"{path} is too small, {image.shape[1]} x {image.shape[0]} pixels: expected {LEAST} or more on a side. Remove it.")
    return image  # type: ignore[no-any-return]


def encoded(image: Pixels, quality: int) -> bytes:
    return _libraries()[0].encode_jpeg(image, quality=quality)  # type: ignore[no-any-return]


def resized(image: Pixels, width: int, height: int) -> Pixels:
    """Averaged where it becomes smaller, interpolated where larger."""
    _, cv2 = _libraries()
    smaller = image.shape[0] > height and image.shape[1] > width
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)  # type: ignore[no-any-return]
