"""How the ranks of one node read each other's arrays.

Work is divided into slots (a bucket of gradients, or the one array of an ad-hoc operation). For each
slot and sequence number a rank goes through

    post      my array is complete: peers may read it
    reduced   my slice of the result is complete: peers may read it
    released  I have read all I need: you may change your array

Each of the three is one 64-bit word per slot and rank on a board in shared memory. Two ways to read a
peer's array share this interface: `DirectExchange` reads the peer's own memory (process_vm_readv, one
copy, done by the kernel), `WindowExchange` has each rank copy its array into shared memory first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Transport
from farandole.comm.node.fences import fence
from farandole.comm.node.neighbours import death_of
from farandole.comm.node.shared import SharedBlock, SharingUnavailable
from farandole.errors import RankFailedError, SettingsError

__all__ = [
    "WORDS", "Board", "DirectExchange", "Exchange", "WindowExchange", "close_memory", "open_exchange", "read_memory", "readable",
    "wanted_exchange", "write_memory",
]  # fmt: skip

POSTED, REDUCED, RELEASED, SOURCE, RESULT = range(5)
WORDS = 5


class Board:
    """Progress words of every (slot, rank) of a node."""

    def __init__(self, node: Transport, slots: int) -> None:
        self.rank = node.rank
        self.size = node.size
        shape = (WORDS, slots, node.size)
        self._slots = slots
        self._block = SharedBlock(node, 8 * int(np.prod(shape)))
        self.words = self._block.view(0, shape, np.int64)
        """By word, slot and rank."""
        # The same memory: for single words, and the few of a slot, Python's own view is several times faster.
        self._flat: memoryview = self.words.reshape(-1).data

    def _at(self, word: int, slot: int) -> int:
        return (word * self._slots + slot) * self.size

    def mark(self, word: int, slot: int, value: int) -> None:
        fence()
        self._flat[self._at(word, slot) + self.rank] = value

    def announce(self, slot: int, value: int, source: int, result: int) -> None:
        """This rank's arrays are at these addresses, and it has posted them: several marks at once."""
        stride, at = self._slots * self.size, self._at(0, slot) + self.rank
        self._flat[SOURCE * stride + at] = source
        self._flat[RESULT * stride + at] = result
        fence()
        self._flat[POSTED * stride + at] = value

    def take_back(self, value: int) -> None:
        """Undo this rank's marks of `value`, in every slot."""
        mine = self.words[: RELEASED + 1, :, self.rank]
        np.minimum(mine, value - 1, out=mine)
        fence()

    def reached(self, word: int, slot: int, value: int) -> bool:
        """Whether every rank has come to `value`."""
        at = self._at(word, slot)
        done = min(self._flat[at : at + self.size].tolist()) >= value
        if done:
            fence()
        return done

    def all_reached(self, word: int, value: int, slots: int) -> bool:
        """Whether every rank has come to `value` in the first `slots` slots."""
        at = self._at(word, 0)
        done = min(self._flat[at : at + slots * self.size].tolist(), default=value) >= value
        if done:
            fence()
        return done

    def late(self, word: int, slot: int, value: int) -> list[int]:
        """Node ranks that have not come to `value`."""
        return [int(r) for r in np.flatnonzero(self.words[word, slot] < value)]

    def all(self, word: int, slot: int) -> AnyArray:
        """Every rank's word."""
        words: AnyArray = self.words[word, slot]
        return words

    def get(self, word: int, slot: int, rank: int) -> int:
        return int(self._flat[self._at(word, slot) + rank])


class Exchange(Protocol):
    """Reading peers' arrays; offsets and counts are in bytes."""

    board: Board
    kind: str

    def post(self, slot: int, sequence: int, source: AnyArray, result: AnyArray) -> None:
        """Let peers read `source` now, and `result` as it becomes complete."""
        ...

    def read_source(self, slot: int, rank: int, offset: int, scratch: AnyArray) -> AnyArray:
        """A peer's bytes from `offset`, as many as fit `scratch`; there or in place."""
        ...

    def publish(self, slot: int, sequence: int, result: AnyArray, start: int, stop: int) -> None:
        """Bytes [start, stop) of my result are complete."""
        ...

    def read_result(self, slot: int, rank: int, offset: int, into: AnyArray) -> None: ...


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PTRACER = 0x59616D61
_PTRACER_ANY, _PTRACER_NONE = ctypes.c_ulong(-1), ctypes.c_ulong(0)
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_open_to_neighbours = False


def _open_memory() -> None:
    """Let neighbours read it where Yama leaves that to parents unless the process agrees; a refusal shows in the first read.

    Agreed to is any process of this user. The kernel takes one process otherwise, and its descendants: with more than two
    ranks that would be their common ancestor, which is another under every mpiexec, belongs to somebody else under Slurm, and
    may have gone (daemons).
    """
    global _open_to_neighbours
    if YAMA.exists() and YAMA.read_text().strip() == "1":
        _open_to_neighbours = True
        _libc.prctl(_PR_SET_PTRACER, _PTRACER_ANY, 0, 0, 0)


def close_memory() -> None:
    """Nobody will read it any more."""
    global _open_to_neighbours
    if _open_to_neighbours:
        _open_to_neighbours = False
        _libc.prctl(_PR_SET_PTRACER, _PTRACER_NONE, 0, 0, 0)



def read_memory(pid: int, address: int, into: AnyArray) -> None:
    """Copy `into.nbytes` bytes of another process's memory."""
    _copy_memory(_libc.process_vm_readv, pid, address, into)


def write_memory(pid: int, address: int, data: AnyArray) -> None:
    """Copy an array into another process's memory."""
    _copy_memory(_libc.process_vm_writev, pid, address, data)


def _copy_memory(call: Callable[..., int], pid: int, address: int, array: AnyArray) -> None:
    done, total = 0, array.nbytes
    base = array.ctypes.data
    while done < total:
        local = _Vector(base + done, total - done)
        remote = _Vector(address + done, total - done)
        count = call(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if count <= 0:
            raise _unreadable(pid, ctypes.get_errno())
        done += count


def _unreadable(pid: int, number: int) -> Exception:
    if number == errno.ESRCH:
        return death_of(pid)
    return OSError(number, f"reading the memory of process {pid}: {os.strerror(number)}")


def readable(node: Transport) -> list[int]:
    """The process of every rank, when all may read each other's memory. Collective: every rank of the node calls it."""
    _libc.process_vm_readv.restype = _libc.process_vm_writev.restype = ctypes.c_ssize_t
    was_open = _open_to_neighbours
    _open_memory()
    token = np.frombuffer(secrets.token_bytes(16), np.uint8).copy()
    peers = node.allgather_object((os.getpid(), token.ctypes.data, token.tobytes()))
    problem = next(filter(None, (_check(*peer) for peer in peers)), None)
    problems = [p for p in node.allgather_object(problem) if p is not None]
    if problems:
        if not was_open:
            close_memory()
        raise SharingUnavailable(problems[0])
    return [pid for pid, _, _ in peers]


def _check(pid: int, address: int, token: bytes) -> str | None:
    """Process numbers may mean another process in another container: compare a secret."""
    if pid == os.getpid():
        return None
    found = np.zeros(16, np.uint8)
    try:
        read_memory(pid, address, found)
    except (OSError, RankFailedError) as error:  # in another container, there may be no such process
        return str(error)
    return None if found.tobytes() == token else f"process {pid} is not the neighbour it should be"


class DirectExchange:
    """Peers' memory is read where it lies; results stay in the arrays of their owners."""

    kind = "direct"

    def __init__(self, node: Transport, slots: int) -> None:
        self.board = Board(node, slots)
        self._pids = readable(node)
        self.others = np.array([0 if pid == os.getpid() else pid for pid in self._pids], np.int64)
        """Whose memory each rank's array is in, 0 for this one's."""

    def post(self, slot: int, sequence: int, source: AnyArray, result: AnyArray) -> None:
        address = source.ctypes.data
        self.board.announce(slot, sequence, address, address if result is source else result.ctypes.data)

    def addresses(self, slot: int) -> AnyArray:
        """Where every rank's array begins, in its own memory."""
        return self.board.all(SOURCE, slot)

    def read_source(self, slot: int, rank: int, offset: int, scratch: AnyArray) -> AnyArray:
        read_memory(self._pids[rank], self.board.get(SOURCE, slot, rank) + offset, scratch)
        return scratch

    def why_unreadable(self, slot: int, rank: int) -> Exception:
        """The error to raise when a neighbour's memory could not be read: what a second attempt says."""
        pid = self._pids[rank]
        try:
            read_memory(pid, self.board.get(SOURCE, slot, rank), np.zeros(1, np.uint8))
        except (OSError, RankFailedError) as error:
            return error
        return _unreadable(pid, errno.EFAULT)

    def publish(self, slot: int, sequence: int, result: AnyArray, start: int, stop: int) -> None:
        self.board.mark(REDUCED, slot, sequence)

    def read_result(self, slot: int, rank: int, offset: int, into: AnyArray) -> None:
        read_memory(self._pids[rank], self.board.get(RESULT, slot, rank) + offset, into)


class WindowExchange:
    """Arrays are copied into shared memory, where peers read them in place."""

    kind = "window"

    def __init__(self, node: Transport, slot_bytes: list[int]) -> None:
        self.board = Board(node, len(slot_bytes))
        room = [-(-n // 64) * 64 for n in slot_bytes]
        self._offsets = [0, *np.cumsum(room).tolist()]
        stride = max(self._offsets[-1], 64)
        self._block = SharedBlock(node, 2 * node.size * stride)
        windows = self._block.view(0, (2, node.size, stride), np.uint8)
        self._sources, self._results = windows[0], windows[1]
        self._rank = node.rank

    def post(self, slot: int, sequence: int, source: AnyArray, result: AnyArray) -> None:
        at = self._offsets[slot]
        self._sources[self._rank, at : at + source.nbytes] = source.reshape(-1).view(np.uint8)
        self.board.mark(POSTED, slot, sequence)

    def read_source(self, slot: int, rank: int, offset: int, scratch: AnyArray) -> AnyArray:
        at = self._offsets[slot] + offset
        part: AnyArray = self._sources[rank, at : at + scratch.nbytes]
        return part.view(scratch.dtype)

    def publish(self, slot: int, sequence: int, result: AnyArray, start: int, stop: int) -> None:
        at = self._offsets[slot]
        self._results[self._rank, at + start : at + stop] = result.reshape(-1).view(np.uint8)[start:stop]
        self.board.mark(REDUCED, slot, sequence)

    def read_result(self, slot: int, rank: int, offset: int, into: AnyArray) -> None:
        at = self._offsets[slot] + offset
        into.view(np.uint8)[:] = self._results[rank, at : at + into.nbytes]


def wanted_exchange() -> str:
    """What FARANDOLE_NODE_EXCHANGE asks for: direct, window or none."""
    wanted = os.environ.get("FARANDOLE_NODE_EXCHANGE", "direct")
    if wanted not in ("direct", "window", "none"):
        raise SettingsError(f"FARANDOLE_NODE_EXCHANGE={wanted!r}: use direct, window or none")
    return wanted


def open_exchange(node: Transport, slot_bytes: list[int]) -> tuple[Exchange | None, str]:
    """The best way the node's ranks have to read each other's arrays, and why not a better one.

    Collective: every rank of the node calls it. FARANDOLE_NODE_EXCHANGE=direct|window|none forces one.
    """
    forced = wanted_exchange()
    if forced == "none":
        return None, "FARANDOLE_NODE_EXCHANGE=none"
    reason = ""
    try:
        if forced != "window":
            return DirectExchange(node, len(slot_bytes)), ""
    except SharingUnavailable as error:
        reason = f"cannot read neighbours' memory ({error})"
    try:
        return WindowExchange(node, slot_bytes), reason
    except SharingUnavailable as error:
        return None, f"{reason}; cannot share memory ({error})".lstrip("; ")
