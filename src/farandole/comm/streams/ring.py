"""The memory of a stream: slots in a ring, and who fills and reads them.

    header      what this is, and a digest that only those can make who know the secret
    layout      the stream's settings, as text
    producers   one entry each, never used again
    subscribers one entry each, with a cursor: the slot it reads, or will read next
    marks       of each slot: which place of the stream it holds, who fills it, whether it is complete
    slots       the arrays

Places of the stream are numbered from 0; place n is in slot n % depth. A producer claims the next place under the file's lock
(flock, which the system lets go when a process dies), fills the slot without it, and marks it complete. It claims a slot only when
the cursor of every subscriber is past what it held. What is of a process that has died (told by its number and the time at which
it was started) counts no more: its subscriber holds nobody up, its unfinished slot is passed over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from farandole.comm.bytes.room import FOLDER, MORE_ROOM
from farandole.comm.bytes.transport import AnyArray
from farandole.comm.bytes.waiting import pauses
from farandole.comm.node.arithmetic import bfloat16
from farandole.comm.node.fences import fence, missing
from farandole.comm.streams.rendezvous import Meeting, keyed, started
from farandole.errors import DataError, MismatchError, SettingsError

__all__ = ["CLOSED", "DATA", "FREE", "LIVE", "LOST", "VOID", "Layout", "Member", "Ring"]

MAGIC, VERSION = 0x6661_7261_6E64_6F6C, 1
MOST_MEMBERS = 256
ALIGN = 64

# Words of the header; four of the digest follow.
_MAGIC, _VERSION, _NBYTES, _TEXT, _HEAD, _MADE, _JOINED, _DIGEST = range(8)
_DIGEST_WORDS = 4
# Words of a member.
_STATE, _PID, _STARTED, _CURSOR, _NAME = range(5)
_MEMBER = 16
_NAME_BYTES = 8 * (_MEMBER - _NAME)
FREE, LIVE, CLOSED, LOST = range(4)
# Words of a slot's mark.
_CLAIM, _OWNER, _KIND, _CHECK, _MARK = range(5)
_SLOT = 8
DATA, VOID = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What all who open a stream must agree on."""

    fields: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape and type of the arrays of a slot, by name."""
    depth: int
    producers: int
    subscribers: int

    def __post_init__(self) -> None:
        if not self.fields:
            raise SettingsError("a stream needs at least one array: fields={'x': ((64, 3), 'float32')}")
        for name in ("depth", "producers", "subscribers"):
            if getattr(self, name) < (0 if name == "subscribers" else 1):
                raise SettingsError(f"stream: {name}={getattr(self, name)}; give 1 or more")

    def text(self) -> str:
        return json.dumps(asdict(self) | {"fields": [[name, *field] for name, field in self.fields.items()]})

    def offsets(self) -> dict[str, int]:
        """Where each array begins in a slot."""
        found, at = {}, 0
        for name, (shape, dtype) in self.fields.items():
            found[name] = at
            at += -(-math.prod(shape) * _dtype(dtype).itemsize // ALIGN) * ALIGN
        return found

    def slot_bytes(self) -> int:
        name, (shape, dtype) = list(self.fields.items())[-1]
        return self.offsets()[name] + math.prod(shape) * _dtype(dtype).itemsize


def _dtype(name: str) -> np.dtype[Any]:
    return bfloat16 if name == "bfloat16" else np.dtype(name)


@dataclass(frozen=True, slots=True)
class Member:
    """A producer or subscriber, as others see it."""

    name: str
    pid: int
    state: int
    cursor: int

    def __str__(self) -> str:
        return f"{self.name!r} (process {self.pid})"


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


class Ring:
    """A stream's memory, mapped by this process."""

    def __init__(self, name: str, secret: bytes, layout: Layout) -> None:
        if missing():
            raise SettingsError(f"stream {name!r}: {missing()}")
        self.name, self.layout = name, layout
        self._secret, self._text = secret, layout.text().encode()
        members = _pages(8 * _MEMBER * MOST_MEMBERS)
        self._at = {"text": mmap.PAGESIZE}
        self._at["producers"] = self._at["text"] + _pages(len(self._text))
        self._at["subscribers"] = self._at["producers"] + members
        self._at["marks"] = self._at["subscribers"] + members
        self._at["slots"] = self._at["marks"] + _pages(8 * _SLOT * layout.depth)
        self._stride = _pages(layout.slot_bytes())
        self.nbytes = self._at["slots"] + self._stride * layout.depth
        self._meeting = Meeting(name, secret, self._make, self._check)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # no page is missed for the first time in the middle of a batch
        self._memory = mmap.mmap(self._meeting.handle, self.nbytes, flags=flags)
        self._header = self._words("header", _DIGEST + _DIGEST_WORDS)
        self._producers = self._words("producers", _MEMBER * MOST_MEMBERS)
        self._subscribers = self._words("subscribers", _MEMBER * MOST_MEMBERS)
        self._marks = self._words("marks", _SLOT * layout.depth)
        self._token = int.from_bytes(self._digest(self._text)[:7], "little")
        self._threads = threading.Lock()
        weakref.finalize(self, os.close, self._meeting.handle)

    def _words(self, part: str, count: int) -> memoryview:
        at = self._at.get(part, 0)
        return memoryview(self._memory)[at : at + 8 * count].cast("q")

    def _digest(self, text: bytes) -> bytes:
        return keyed(self._secret, f"{VERSION}/{self.name}/{text.decode(errors='replace')}")

    def _make(self, handle: int) -> None:
        try:
            os.posix_fallocate(handle, 0, self.nbytes)
        except OSError as error:
            raise SettingsError(
                f"stream {self.name!r}: {FOLDER} has no room for {self.nbytes / 2**20:.1f} MiB, {self.layout.depth} slots of "
                f"{self._stride / 2**20:.1f} MiB ({error.strerror}). Use fewer slots or smaller ones; {MORE_ROOM}"
            ) from None
        header = np.array([MAGIC, VERSION, self.nbytes, len(self._text), 0, 0, 0], np.int64).tobytes()
        os.pwrite(handle, header + self._digest(self._text), 0)
        os.pwrite(handle, self._text, self._at["text"])

    def _check(self, handle: int) -> None:
        """That what was found is a stream of this version, made by one who knows the secret, and like this one."""
        words = np.frombuffer(os.pread(handle, 8 * _DIGEST, 0), np.int64)
        if len(words) < _DIGEST or words[_MAGIC] != MAGIC or words[_VERSION] != VERSION:
            raise DataError(f"stream {self.name!r}: what was found is damaged, or of another version of farandole")
        text = os.pread(handle, min(max(int(words[_TEXT]), 0), 1 << 20), self._at["text"])
        if os.pread(handle, 8 * _DIGEST_WORDS, 8 * _DIGEST) != self._digest(text):
            raise DataError(f"stream {self.name!r}: what was found is damaged, or not of this job")
        if text != self._text:
            raise MismatchError(
                f"stream {self.name!r} was opened as {text.decode()}, and here as {self._text.decode()}: open it alike everywhere"
            )
        if os.fstat(handle).st_size != self.nbytes:
            raise DataError(f"stream {self.name!r}: the file was cut short")

    def close(self) -> None:
        """No process finds the stream through this one any more."""
        self._meeting.close()

    def arrays(self, slot: int) -> dict[str, AnyArray]:
        """Those of a slot, in place."""
        start = self._at["slots"] + slot * self._stride
        return {
            name: np.frombuffer(self._memory, _dtype(dtype), math.prod(shape), start + at).reshape(shape)
            for (name, (shape, dtype)), at in zip(self.layout.fields.items(), self.layout.offsets().values())
        }

    def raw(self, slot: int) -> AnyArray:
        """A slot as bytes."""
        return np.frombuffer(self._memory, np.uint8, self.layout.slot_bytes(), self._at["slots"] + slot * self._stride)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes and threads out; whoever dies inside is out."""
        with self._threads:
            for _ in pauses():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._meeting.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
            try:
                fence()
                yield
            finally:
                fence()
                fcntl.flock(self._meeting.handle, fcntl.LOCK_UN)

    # Members

    def add_producer(self, name: str) -> int:
        with self.locked():
            made = self._header[_MADE]
            if made == MOST_MEMBERS:
                raise SettingsError(f"stream {self.name!r} has had {made} producers, the most there can be")
            self._enter(self._producers, made, name, 0)
            self._header[_MADE] = made + 1
        return made

    def add_subscriber(self, name: str, start: int | None) -> int:
        with self.locked():
            head = self._header[_HEAD]
            oldest = max(0, head - self.layout.depth)
            if head and self._marks[oldest % self.layout.depth * _SLOT + _CLAIM] != oldest + 1:
                oldest += 1  # a producer has died as it began to claim that slot
            if start is not None and start < oldest:
                raise SettingsError(
                    f"stream {self.name!r}: place {start} is there no more; the oldest is {oldest}, the next {head}"
                )
            self._drop_dead()
            free = next((i for i in range(MOST_MEMBERS) if self._subscribers[i * _MEMBER] == FREE), None)
            if free is None:
                raise SettingsError(f"stream {self.name!r} has {MOST_MEMBERS} subscribers, the most there can be")
            self._enter(self._subscribers, free, name, oldest if start is None else start)
            self._header[_JOINED] += 1
        return free

    def _enter(self, table: memoryview, index: int, name: str, cursor: int) -> None:
        at = index * _MEMBER
        table[at + _PID], table[at + _STARTED] = os.getpid(), started(os.getpid())
        table[at + _CURSOR] = cursor
        self._rename(table, index, name)
        fence()
        table[at + _STATE] = LIVE

    def _rename(self, table: memoryview, index: int, name: str) -> None:
        at = index * _MEMBER + _NAME
        table[at : at + _MEMBER - _NAME] = memoryview(name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")).cast("q")

    def _member(self, table: memoryview, index: int) -> Member:
        words = table[index * _MEMBER : (index + 1) * _MEMBER]
        name = words[_NAME:].tobytes().rstrip(b"\0").decode(errors="replace")
        return Member(name, words[_PID], words[_STATE], words[_CURSOR])

    def _dead(self, table: memoryview, index: int) -> bool:
        at = index * _MEMBER
        return table[at] == LIVE and started(table[at + _PID]) != table[at + _STARTED]

    def cursor(self, subscriber: int) -> int:
        return self._subscribers[subscriber * _MEMBER + _CURSOR]

    def leave(self, subscriber: int) -> None:
        self._subscribers[subscriber * _MEMBER] = FREE

    def end_producer(self, producer: int, state: int, reason: str = "") -> None:
        """CLOSED, or LOST for a reason that is shown instead of its name."""
        if reason:
            self._rename(self._producers, producer, reason)
        fence()
        self._producers[producer * _MEMBER] = state

    def drop_dead(self) -> None:
        """Subscribers that have died hold nobody up any more."""
        with self.locked():
            self._drop_dead()

    def _drop_dead(self) -> None:
        for index in range(MOST_MEMBERS):
            if self._dead(self._subscribers, index):
                self.leave(index)

    def subscribers(self) -> list[Member]:
        found = (self._member(self._subscribers, i) for i in range(MOST_MEMBERS))
        return [member for member in found if member.state == LIVE]

    def producers(self) -> list[Member]:
        """All there have been; those that have died are lost from now on."""
        for index in range(self._header[_MADE]):
            if self._dead(self._producers, index):
                self._producers[index * _MEMBER] = LOST
        return [self._member(self._producers, i) for i in range(self._header[_MADE])]

    def all_joined(self) -> bool:
        """Whether as many subscribers as are expected have come, even if they have left."""
        return self._header[_JOINED] >= self.layout.subscribers

    # Producing

    @property
    def head(self) -> int:
        """The next place to be claimed."""
        return self._header[_HEAD]

    def has_room(self) -> bool:
        head, depth = self.head, self.layout.depth
        if head < depth:
            return True
        if not self.all_joined():
            return False
        states, cursors = self._subscribers[::_MEMBER].tolist(), self._subscribers[_CURSOR::_MEMBER].tolist()
        slowest = min((cursor for state, cursor in zip(states, cursors) if state == LIVE), default=head)
        return head - slowest < depth and self._filled(head % depth)

    def _filled(self, slot: int) -> bool:
        """Whether nobody is at it: where there are no subscribers, producers may meet in a slot."""
        at = slot * _SLOT
        owner = self._marks[at + _OWNER]
        busy = self._marks[at + _MARK] != self._marks[at + _CLAIM] and self._producers[owner * _MEMBER] == LIVE
        return not busy or self._dead(self._producers, owner)

    def claim(self, producer: int) -> int | None:
        """The next place, where its slot is free."""
        if not self.has_room():
            return None
        with self.locked():
            if not self.has_room():
                return None
            place = self.head
            at = place % self.layout.depth * _SLOT
            self._marks[at + _MARK] = 0
            fence()
            self._marks[at + _OWNER] = producer
            self._marks[at + _CLAIM] = place + 1
            fence()
            self._header[_HEAD] = place + 1
        return place

    def complete(self, place: int, kind: int) -> None:
        at = place % self.layout.depth * _SLOT
        self._marks[at + _KIND] = kind
        self._marks[at + _CHECK] = (place + 1) ^ self._token
        fence()
        self._marks[at + _MARK] = place + 1

    # Reading

    def move(self, subscriber: int, place: int) -> None:
        """A subscriber has done with all before this place."""
        fence()
        self._subscribers[subscriber * _MEMBER + _CURSOR] = place

    def kind(self, place: int) -> int:
        """DATA or VOID once it is complete, 0 before; an error where the slot holds what it should not."""
        at = place % self.layout.depth * _SLOT
        mark = self._marks[at + _MARK]
        if mark <= place and mark >= 0:
            return 0
        fence()
        kind = self._marks[at + _KIND]
        if mark != place + 1 or self._marks[at + _CHECK] != mark ^ self._token or kind not in (DATA, VOID):
            raise DataError(f"stream {self.name!r}: the slot of place {place} was overwritten or is damaged; nothing of it was used")
        return kind

    def deserted(self, place: int) -> bool:
        """Whether whoever has claimed a place can complete it no more."""
        at = place % self.layout.depth * _SLOT
        if self.head <= place or self._marks[at + _CLAIM] != place + 1:
            return False
        ended = self.producers()[self._marks[at + _OWNER]].state != LIVE
        fence()
        return ended and self.kind(place) == 0
