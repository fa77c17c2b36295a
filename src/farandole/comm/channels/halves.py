"""Large messages within a node, copied by both ranks where both are there: the receiver from the front, the sender from the back.

The receiver reads the sender's memory chunk by chunk and needs nobody. A sender that waits meanwhile writes chunks into the receiver's
array, from the last on, until they meet. Each announces a chunk before it copies it, in words that only it writes: at worst one is
copied twice, with the same bytes. The receiver goes on once the sender has said that it writes no more, and reads what is missing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.node.exchange import read_memory, write_memory
from farandole.comm.node.fences import fence
from farandole.errors import RankFailedError

__all__ = ["LEAST_BYTES", "help_reader", "read_with_help"]

LEAST_BYTES = 1 << 20
CHUNK_BYTES = 256 << 10
# The receiver's words: the message it reads, whereto, and how many chunks it has begun. The sender's: the message it writes chunks
# of, the last one it did this for, the first chunk it has begun, and the first it has copied.
_NUMBER, _ADDRESS, _FRONT, _BUSY, _HELPED, _BACK, _COPIED = range(7)

_settling = threading.Lock()
_helping = threading.Lock()


def _settle() -> None:
    """Others see what was written before, before what follows is read: on x86 a lock does that, and fence() need not."""
    fence()
    with _settling:
        pass


def read_with_help(
    words: memoryview, pid: int, number: int, address: int, into: AnyArray, wait: Callable[[Callable[[], bool]], None]
) -> None:
    """The receiver's part; `into` is of bytes, `wait` returns once what it is given is true."""
    count, front = -(-into.size // CHUNK_BYTES), 0
    words[_ADDRESS], words[_FRONT] = into.ctypes.data, 0
    fence()
    words[_NUMBER] = number
    try:
        while front < count:
            words[_FRONT] = front + 1
            if words[_HELPED] == number and words[_BACK] <= front:
                break
            _read(pid, address, into, front, front + 1)
            front += 1
    finally:
        words[_NUMBER] = 0
    _settle()
    if words[_BUSY] == number:
        wait(lambda: words[_BUSY] != number)
    fence()
    if words[_HELPED] == number:
        count = min(count, words[_COPIED])
    _read(pid, address, into, front, count)


def _read(pid: int, address: int, into: AnyArray, first: int, end: int) -> None:
    part = into[first * CHUNK_BYTES : end * CHUNK_BYTES]
    if part.size:
        read_memory(pid, address + first * CHUNK_BYTES, part)


def help_reader(words: memoryview, pid: int, number: int, data: AnyArray) -> None:
    """The sender's part, once the receiver is at this message; `data` is of bytes."""
    if words[_NUMBER] != number or not _helping.acquire(blocking=False):
        return
    try:
        back = -(-data.size // CHUNK_BYTES)
        words[_BACK], words[_COPIED] = back, back
        fence()
        words[_HELPED] = words[_BUSY] = number
        _settle()
        with contextlib.suppress(OSError, RankFailedError):  # the receiver reads it then, or is no more
            _write(words, pid, number, data, back)
    finally:
        fence()
        words[_BUSY] = 0
        _helping.release()


def _write(words: memoryview, pid: int, number: int, data: AnyArray, back: int) -> None:
    while words[_NUMBER] == number and words[_FRONT] < back:
        words[_BACK] = back = back - 1
        write_memory(pid, words[_ADDRESS] + back * CHUNK_BYTES, data[back * CHUNK_BYTES : (back + 1) * CHUNK_BYTES])
        fence()
        words[_COPIED] = back
