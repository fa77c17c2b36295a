"""Images as samples to train on: a batch is made of files by threads, some batches ahead of whoever takes them.

What is random about an image follows from the seed, the epoch and the image's number: threads, ranks and resumed runs change nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.data.images.codec import check_installed, decoded
from farandole.data.images.folder import ImageFiles
from farandole.data.images.views import View

__all__ = ["ImageSamples"]

Rows = NDArray[np.intp]
Batch = tuple[NDArray[np.float32], NDArray[np.int64]]
_AHEAD = 2
"""Batches under way beside the one that is waited for."""


def _threads() -> int:
    """As many as the rank computes with: they share its cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else len(os.sched_getaffinity(0))


@dataclass(slots=True)
class _Spent:
    """By all threads together."""

    read_s: float = 0.0
    decode_s: float = 0.0
    view_s: float = 0.0
    images: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, began: float, read: float, pixels: float) -> None:
        now = time.perf_counter()
        with self.lock:
            self.read_s += read - began
            self.decode_s += pixels - read
            self.view_s += now - pixels
            self.images += 1


class ImageSamples:
    """Images by number; `batch` makes one at once, `batches` makes several ahead."""

    at_hand = True
    """A batch from `batches` is there when it is asked for, so that frameworks need not make any ahead."""

    def __init__(self, files: ImageFiles, view: View, *, seed: int = 0, threads: int = 0) -> None:
        check_installed()
        self._files, self._view, self._seed = files, view, seed
        self._threads = threads
        self._spent = _Spent()

    def __len__(self) -> int:
        return len(self._files)

    def batch(self, rows: Rows) -> Batch:
        """As the first epoch sees it."""
        (found,) = self.batches(0, [rows])
        return found

    def batches(self, epoch: int, orders: Sequence[Rows]) -> Iterator[Batch]:
        """A batch for each of `orders`, in turn: inputs (n, size, size, 3) and class numbers."""
        pool = ThreadPoolExecutor(self._threads or _threads(), "farandole-images")
        try:
            begun: deque[_Begun] = deque()
            for rows in orders:
                begun.append(self._begin(pool, epoch, rows))
                if len(begun) > _AHEAD:
                    yield begun.popleft().finished()
            while len(begun) > 1:
                yield begun.popleft().finished()
            last = [one.finished() for one in begun]
        finally:
            pool.shutdown(cancel_futures=True)
        yield from last

    def spent(self) -> Mapping[str, float]:
        """Seconds of threads so far, and how many images they made: read_s, decode_s, view_s, images."""
        found = self._spent
        return {"read_s": found.read_s, "decode_s": found.decode_s, "view_s": found.view_s, "images": found.images}

    def _begin(self, pool: ThreadPoolExecutor, epoch: int, rows: Rows) -> _Begun:
        inputs = np.empty((len(rows), self._view.size, self._view.size, 3), np.float32)
        made = [pool.submit(self._make, epoch, int(row), inputs[place]) for place, row in enumerate(rows)]
        return _Begun(inputs, self._files.labels[rows], made)

    def _make(self, epoch: int, row: int, out: NDArray[np.float32]) -> None:
        path, began = self._files.paths[row], time.perf_counter()
        data = Path(path).read_bytes()
        read = time.perf_counter()
        image = decoded(data, path)
        pixels = time.perf_counter()
        self._view.see(image, np.random.default_rng([self._seed, epoch, row]), out)
        self._spent.add(began, read, pixels)


@dataclass(slots=True)
class _Begun:
    """A batch whose images are being made."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    made: list[Future[Any]]

    def finished(self) -> Batch:
        for one in self.made:
            one.result()
        return self.inputs, self.labels
