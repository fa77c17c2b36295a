"""Streams: batches that some processes of a node make and all others read in place, each exactly once, in one order (docs/channels.md).

    stream = Stream("batches", {"x": ((64, 784), "float32"), "y": ((64,), "int64")}, depth=4, subscribers=2)

    with stream.producer() as producer:            for batch in stream.subscribe():
        for x, y in data:                              train(batch["x"], batch["y"])
            producer.put(x=x, y=y)

ring.py is the memory, rendezvous.py how processes find it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.bytes.waiting import note_caller, pauses
from farandole.comm.current import world_or_none
from farandole.comm.streams.ring import CLOSED, DATA, LIVE, LOST, VOID, Layout, Member, Ring
from farandole.comm.world.stall_settings import StallSettings
from farandole.errors import DataError, RankFailedError, SettingsError, StalledError
from farandole.observe import timeline

__all__ = ["Producer", "Stream", "Subscriber"]

_SHOWN_AS = {"producer": "WAIT_FOR_ROOM", "subscriber": "WAIT_FOR_SLOT"}
LOOK_S = 0.05
"""How often a wait looks for processes that have died."""


class Stream:
    """A ring of slots that this node's processes share, for as long as one of them has it open.

    Whoever opens it first makes it; all others must open it alike. Ranks of one world find each other by the name; other
    processes need the same `secret`, e.g. one that whoever started them made with `secrets.token_hex()`.
    """

    def __init__(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        depth: int = 4,
        producers: int = 1,
        subscribers: int = 1,
        secret: str | bytes | None = None,
        warn_s: float | None = None,
        abort_s: float | None = None,
    ) -> None:
        """`fields`: the arrays of a slot by name, each as (shape, type) or an array like it. `depth`: slots.

        The stream ends when `producers` have closed. No slot is used again before `subscribers` have joined.
        `warn_s` and `abort_s`: after which time a wait says whom it waits for, and ends with StalledError; otherwise as
        FARANDOLE_STALL_CHECK_TIME_SECONDS and FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS say.
        """
        stalls = StallSettings.from_environment()
        self.name = name
        self.stalls = StallSettings(
            warn_s=stalls.warn_s if warn_s is None else warn_s, abort_s=stalls.abort_s if abort_s is None else abort_s
        )
        layout = Layout(
            fields={key: self._field(key, value) for key, value in fields.items()},
            depth=depth, producers=producers, subscribers=subscribers,
        )  # fmt: skip
        self.ring = Ring(name, _secret(name, secret), layout)
        self._close = weakref.finalize(self, _close, self.ring, os.getpid())

    def producer(self, name: str | None = None) -> Producer:
        """Fill slots from now on; `name` is what others call it."""
        return Producer(self, name or _own_name())

    def subscribe(self, start: int | None = None, name: str | None = None) -> Subscriber:
        """Read from the oldest place that is there, or from place `start`; `name` is what others call it."""
        return Subscriber(self, start, name or _own_name())

    def position(self) -> int:
        """The next place to be filled."""
        return self.ring.head

    def subscribers(self) -> dict[str, int]:
        """Who reads at the moment, and which place."""
        return {member.name: member.cursor for member in self.ring.subscribers()}

    def close(self) -> None:
        """No process can open the stream through this one any more; its producers and subscribers go on."""
        self._close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How slots are shown: the doors have their own.

    def _field(self, name: str, value: Any) -> tuple[tuple[int, ...], str]:
        shape, dtype = (value.shape, value.dtype) if hasattr(value, "dtype") else value
        kind = np.dtype(dtype)
        if kind.hasobject or kind.itemsize == 0:
            raise SettingsError(f"stream: {name} is of {kind}; give a type of numbers")
        return tuple(int(size) for size in shape), kind.name if kind.isnative else kind.str

    def _to_read(self, arrays: dict[str, AnyArray]) -> Any:
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    def _to_fill(self, arrays: dict[str, AnyArray]) -> Any:
        return arrays

    def _check_unchanged(self, shown: Any) -> None:
        """NumPy does not let anybody write."""


class _Waiting:
    """A wait for others that names them when it takes long."""

    def __init__(self, stream: Stream, what: str, whom: Callable[[], str], timeout: float | None) -> None:
        self._stream, self._what, self._whom, self._timeout = stream, what, whom, timeout
        self._began_ns = time.monotonic_ns()
        self._warned = False

    def __iter__(self) -> Iterator[None]:
        """Pauses, now and then with a look at the time; raises once it has taken too long."""
        began = time.monotonic()
        for _ in pauses(patient=True):
            yield
            self._speak(time.monotonic() - began)

    def _speak(self, waited_s: float) -> None:
        stalls = self._stream.stalls
        limit_s = min((s for s in (self._timeout, stalls.abort_s or None) if s is not None), default=float("inf"))
        text = f"stream {self._stream.name!r}: {self._what} has waited {waited_s:.1f} s"
        if waited_s > limit_s:
            raise StalledError(f"{text} for {self._whom()}; the limit is {limit_s:g} s")
        if stalls.warn_s and waited_s > stalls.warn_s and not self._warned:
            self._warned = True
            print(f"farandole: {text} for {self._whom()}\n", end="", file=sys.stderr, flush=True)

    def show(self) -> None:
        timeline.span(f"stream {self._stream.name}", _SHOWN_AS[self._what], self._began_ns, time.monotonic_ns())


class Producer:
    """Fills slots. Close it when there is no more; one that ends otherwise is told to the subscribers as lost."""

    def __init__(self, stream: Stream, name: str) -> None:
        note_caller()
        self._stream, self._ring = stream, stream.ring
        self._index = self._ring.add_producer(name)
        self._slots = [stream._to_fill(self._ring.arrays(i)) for i in range(self._ring.layout.depth)]
        self._lost = weakref.finalize(self, _lose, self._ring, self._index, os.getpid())

    @contextlib.contextmanager
    def slot(self, timeout: float | None = None) -> Iterator[Any]:
        """The next slot's arrays, to be filled in place; subscribers see them once the block has ended without an exception."""
        with self._claimed(timeout) as place:
            yield self._slots[place % len(self._slots)]

    @contextlib.contextmanager
    def raw_slot(self) -> Iterator[AnyArray]:
        """The next slot as bytes."""
        with self._claimed(None) as place:
            yield self._ring.raw(place % len(self._slots))

    @contextlib.contextmanager
    def _claimed(self, timeout: float | None) -> Iterator[int]:
        place = self._next(timeout)
        kind = VOID
        try:
            yield place
            kind = DATA
        finally:
            self._ring.complete(place, kind)

    def put(self, arrays: Mapping[str, Any] | None = None, *, timeout: float | None = None, **more: Any) -> None:
        """Copy arrays, one for each field, into the next slot."""
        given = {**(arrays or {}), **more}
        fields = self._ring.layout.fields
        if set(given) != set(fields):
            raise SettingsError(f"stream {self._stream.name!r}: put() got {sorted(given)}, and its fields are {sorted(fields)}")
        wrong = [f"{key} is {found}, not {fields[key]}" for key in fields if (found := self._stream._field(key, _kind(given[key]))) != fields[key]]
        if wrong:
            raise SettingsError(f"stream {self._stream.name!r}: put() {'; '.join(wrong)}")
        with self.slot(timeout) as slot:
            for key, value in given.items():
                slot[key][...] = value

    def _next(self, timeout: float | None) -> int:
        if not self._lost.alive:
            raise SettingsError(f"stream {self._stream.name!r}: this producer is closed")
        place = self._ring.claim(self._index)
        if place is not None:
            return place
        waiting = _Waiting(self._stream, "producer", self._laggards, timeout)
        looked = time.monotonic()
        for _ in waiting:
            place = self._ring.claim(self._index)
            if place is not None:
                break
            if time.monotonic() - looked > LOOK_S:
                self._ring.drop_dead()
                self._ring.producers()
                looked = time.monotonic()
        waiting.show()
        assert place is not None
        return place

    def _laggards(self) -> str:
        layout, head = self._ring.layout, self._ring.head
        if not self._ring.all_joined():
            return f"{layout.subscribers} subscribers to join"
        last = head - layout.depth
        late = [f"{one}, which has read {one.cursor} of {head}" for one in self._ring.subscribers() if one.cursor <= last]
        return f"subscriber {'; '.join(late)}" if late else "another producer"

    def close(self, timeout: float | None = None) -> None:
        """There is no more from this producer. Returns when all subscribers that are expected have joined."""
        if not self._lost.alive:
            return
        if not self._ring.all_joined():
            waiting = _Waiting(self._stream, "producer", self._laggards, timeout)
            for _ in waiting:
                if self._ring.all_joined():
                    break
        self._lost.detach()
        self._ring.end_producer(self._index, CLOSED)

    def fail(self, reason: str) -> None:
        """There is no more, and should have been: subscribers get an error that says this."""
        if self._lost.detach() is not None:
            self._ring.end_producer(self._index, LOST, reason)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self.close()
        else:
            self._lost()


class Subscriber:
    """Reads slots in place, in order: an iterator of dictionaries of arrays, each valid until the next is asked for."""

    def __init__(self, stream: Stream, start: int | None, name: str) -> None:
        note_caller()
        self._stream, self._ring = stream, stream.ring
        self._slots = [stream._to_read(self._ring.arrays(i)) for i in range(self._ring.layout.depth)]
        self._index = self._ring.add_subscriber(name, start)
        self._place = self._ring.cursor(self._index)
        self._held: Any = None
        self._left = weakref.finalize(self, _leave, self._ring, self._index, os.getpid())

    @property
    def position(self) -> int:
        """The place of the slot that is read, or of the next one."""
        return self._place

    def __iter__(self) -> Subscriber:
        return self

    def __next__(self) -> Any:
        found = self.next()
        if found is None:
            raise StopIteration
        return found

    def next(self, timeout: float | None = None) -> Any:
        """The next slot's arrays; None at the end of the stream."""
        if not self._move(timeout):
            return None
        self._held = self._slots[self._place % len(self._slots)]
        return self._held

    def raw(self) -> Iterator[AnyArray]:
        """The slots from here on, as bytes."""
        while self._move(None):
            self._held = self._ring.raw(self._place % len(self._slots))
            yield self._held

    def _move(self, timeout: float | None) -> bool:
        """To the next slot with data; False at the end of the stream."""
        if self._held is not None:
            self._release()
        while True:
            kind = self._ring.kind(self._place)
            if kind == DATA:
                return True
            if kind == 0 and not self._wait(timeout):
                return False
            if self._ring.kind(self._place) != DATA:  # its producer gave it up
                self._step()

    def _release(self) -> None:
        """What was shown may be overwritten from now on, and must not have been before."""
        held, self._held = self._held, None
        if not self._left.alive:
            raise SettingsError(f"stream {self._stream.name!r}: this subscriber is closed")
        if self._ring.kind(self._place) != DATA:
            raise DataError(f"stream {self._stream.name!r}: place {self._place} was overwritten while it was read")
        self._stream._check_unchanged(held)
        self._step()

    def _step(self) -> None:
        self._place += 1
        self._ring.move(self._index, self._place)

    def _wait(self, timeout: float | None) -> bool:
        """For the place to be complete or deserted; False where there will be none."""
        waiting = _Waiting(self._stream, "subscriber", self._whom, timeout)
        looked = time.monotonic()
        for _ in waiting:
            if self._ring.kind(self._place):
                break
            if time.monotonic() - looked > LOOK_S:
                if self._ring.deserted(self._place):
                    break
                if self._ended():
                    return False
                looked = time.monotonic()
        waiting.show()
        return True

    def _ended(self) -> bool:
        """Whether every producer has closed; an error where one was lost instead."""
        members, expected = self._ring.producers(), self._ring.layout.producers
        if len(members) < expected or any(member.state == LIVE for member in members):
            return False
        if self._ring.head > self._place:  # claimed before they ended
            return False
        if sum(member.state == CLOSED for member in members) < expected:
            lost = ", ".join(str(member) for member in members if member.state == LOST)
            raise RankFailedError(
                f"stream {self._stream.name!r}: producer {lost} has ended without closing; all {self._place} places before were read"
            )
        return True

    def _whom(self) -> str:
        members: list[Member] = [member for member in self._ring.producers() if member.state == LIVE]
        return f"producer {', '.join(map(str, members))}" if members else f"{self._ring.layout.producers} producers to join"

    def close(self) -> None:
        """Leave; nobody waits for this subscriber any more."""
        self._left()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _secret(name: str, given: str | bytes | None) -> bytes:
    if given is None:
        world = world_or_none()
        if world is None:
            raise SettingsError(f"stream {name!r}: call farandole.init() first, or give processes that are no ranks a common secret=")
        return world.name.encode()
    return given.encode() if isinstance(given, str) else given


def _own_name() -> str:
    world = world_or_none()
    return f"process {os.getpid()}" if world is None else f"rank {world.rank}"


def _kind(value: Any) -> Any:
    return value if hasattr(value, "dtype") else np.asarray(value)


# What objects leave behind when they go; not in a forked child, where they are their parent's.


def _close(ring: Ring, pid: int) -> None:
    if os.getpid() == pid:
        ring.close()


def _lose(ring: Ring, producer: int, pid: int) -> None:
    if os.getpid() == pid:
        ring.end_producer(producer, LOST)


def _leave(ring: Ring, subscriber: int, pid: int) -> None:
    if os.getpid() == pid:
        ring.leave(subscriber)
