"""Memory of processes: what they have now, what they share, and the most they had."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["PeakMemory", "anonymous_bytes", "mapped_bytes", "own_bytes", "resident_peak_bytes", "restart_resident_peak"]

_SAMPLE_S = 0.01


def own_bytes() -> int:
    """Memory that exists because of this process: without the pages of files it has mapped."""
    found = _fields(Path("/proc/self/status"))
    return found.get("RssAnon", 0) + found.get("RssShmem", 0)


def resident_peak_bytes() -> int:
    """The most this process had in memory, mapped files included."""
    return _fields(Path("/proc/self/status")).get("VmHWM", 0)


def restart_resident_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def anonymous_bytes() -> int:
    """Memory in use that is no file's, counted page by page: pages of libraries are shared with whoever comes and goes."""
    _give_back()
    return _fields(Path("/proc/self/smaps_rollup")).get("Anonymous", 0)


def _give_back() -> None:
    """What was freed and kept for later use is not in use; C libraries other than glibc keep it to themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def mapped_bytes(start: int, size: int) -> int:
    """Of the files and shared memory mapped at these addresses, what is in memory; a page that n processes have counts 1/n."""
    found = [fields for low, high, fields in _mappings() if low < start + size and start < high]
    return sum(max(fields.get("Pss", 0) - fields.get("Anonymous", 0), 0) for fields in found)


def _mappings() -> Iterator[tuple[int, int, dict[str, int]]]:
    """First and last address of every mapping, and its fields."""
    blocks = re.split(r"^([0-9a-f]+)-([0-9a-f]+) .*\n", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)[1:]
    for low, high, text in zip(blocks[::3], blocks[1::3], blocks[2::3]):
        yield int(low, 16), int(high, 16), _kilobytes(text)


def _fields(path: Path) -> dict[str, int]:
    try:
        return _kilobytes(path.read_text())
    except OSError:
        return {}


def _kilobytes(text: str) -> dict[str, int]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs if rest.endswith(" kB")}


class PeakMemory:
    """By how much this process's own memory grows at most while this is entered.

    It is looked at every hundredth of a second, which needs the GIL: right for work that releases it.
    """

    def __init__(self) -> None:
        self._before = own_bytes()
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="farandole-study-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        self.bytes = max(self.bytes, own_bytes() - self._before)
