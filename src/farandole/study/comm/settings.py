"""What `farandole bench comm` is asked to measure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from farandole.errors import SettingsError

__all__ = ["COLLECTIVES", "DEFAULT_SIZES", "CommSettings", "parse_sizes", "size_text"]

COLLECTIVES = ("allreduce", "broadcast", "allgather", "reducescatter")
DEFAULT_SIZES = "8:256M"
SMALLEST, LARGEST = 4, 4 << 30
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_STEP = 4


@dataclass(kw_only=True, slots=True)
class CommSettings:
    sizes: Sequence[int]
    """Bytes, rising."""
    collectives: Sequence[str] = ("allreduce",)
    seconds: float = 2.0
    """How long each size of each collective is measured."""

    def __post_init__(self) -> None:
        self.sizes = sorted(set(self.sizes))
        for nbytes in self.sizes:
            if not SMALLEST <= nbytes <= LARGEST:
                raise SettingsError(
                    f"a size of {nbytes:,} bytes: use {SMALLEST} bytes (one float32) to {size_text(LARGEST)}."
                )
        unknown = [name for name in self.collectives if name not in COLLECTIVES]
        if unknown or not self.collectives:
            raise SettingsError(f"--collectives {','.join(unknown)}: use some of {','.join(COLLECTIVES)}")
        if not 0 < self.seconds < 3600:
            raise SettingsError(f"--seconds {self.seconds:g}: how long to measure each size, e.g. 2")


def parse_sizes(text: str) -> list[int]:
    """`8,4K,1M`, or `8:256M` for powers of 4 times 8 and the last one."""
    return [size for word in text.split(",") for size in _range(word, text)]


def _range(word: str, whole: str) -> list[int]:
    first, *rest = [_bytes(end, whole) for end in word.split(":")]
    if not rest:
        return [first]
    last = rest[0]
    if len(rest) > 1 or not 0 < first <= last:
        raise SettingsError(
            f"--sizes {whole}: {word!r} is not a range. Write the smaller end first, e.g. 8:256M"
        )
    sizes = [first]
    while sizes[-1] * _STEP <= last:
        sizes.append(sizes[-1] * _STEP)
    return sizes if sizes[-1] == last else [*sizes, last]


def _bytes(word: str, whole: str) -> int:
    found = _SIZE.fullmatch(word.strip())
    if found is None:
        raise SettingsError(
            f"--sizes {whole}: {word!r} is not a size. Write bytes, e.g. 8,4K,1M, or a range, e.g. 8:256M"
        )
    return int(found[1]) * _UNITS[found[2].upper()]


def size_text(nbytes: float) -> str:
    """`8 B`, `64 KiB`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"
