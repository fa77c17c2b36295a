"""Arrays that travel from one rank to another, by name. A message goes through

    announced   the sender says its name, type and shape, and where its data is
    matched     the receiver has asked that rank for that name, and type and shape are what it expects
    moved       small: the data came with the announcement
                same node: the receiver reads the sender's memory (process_vm_readv), and needs no help
                otherwise: the receiver asks for the data, and MPI carries it
    taken       the sender hears of it, and may change its array

Messages of one name between two ranks keep their order; those of different names have none. What is announced lies with its
sender: only small data is held on its way, and of that no more than a window's worth for each pair of ranks.

A sender that gives up clears its message's mark, a word which the receiver reads after the data: what it has read counts only
while the mark stands.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from farandole.comm.bytes.transport import AnyArray, Request, Transport
from farandole.comm.bytes.waiting import (
    Subject,
    all_arrived,
    note_caller,
    slow_waits,
    wait_until,
)
from farandole.comm.channels.halves import LEAST_BYTES, help_reader, read_with_help
from farandole.comm.channels.mailboxes import Mailboxes
from farandole.comm.channels.messages import Announcement, Expected, Received, Transfer, shown
from farandole.comm.named.driver import BackgroundThread
from farandole.comm.node.exchange import read_memory, readable, wanted_exchange
from farandole.comm.node.routes import note_fallback
from farandole.comm.node.shared import SharingUnavailable
from farandole.errors import EngineStopped, FarandoleError, MismatchError, RankFailedError, SettingsError
from farandole.observe import timeline

__all__ = ["Transfers", "open_transfers"]

SMALL_BYTES = 4096
WINDOW_BYTES = 1 << 20
"""Of small data that a rank has sent another and that was not taken yet."""
CLOSING_S = 1.0

_LETTERS, _DATA = 1, 2
_ANNOUNCED, _WANTED, _TAKEN, _GONE, _ROOM = range(5)


class Neighbours(NamedTuple):
    """The ranks of a node that read each other's memory, in its order."""

    processes: dict[int, int]
    """By rank."""
    mailboxes: Mailboxes | None


class Transfers:
    """The messages of one rank. Collective to make."""

    def __init__(self, transport: Transport, neighbours: Neighbours) -> None:
        self._transport = transport
        self._processes = neighbours.processes
        self._mailboxes = neighbours.mailboxes
        self._ranks = list(neighbours.processes)
        self._places = {rank: place for place, rank in enumerate(self._ranks)}
        self._outbox: dict[int, deque[bytes]] = {}
        """Letters to neighbours whose ring is full, in order."""
        self._rank, self._size = transport.rank, transport.size
        self._lock = threading.Lock()
        self._drive = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self._numbers = itertools.count(secrets.randbits(62))
        self._sends: dict[int, Transfer] = {}
        self._receives: defaultdict[tuple[int, str], deque[Transfer]] = defaultdict(deque)
        self._announced: defaultdict[tuple[int, str], deque[Announcement]] = defaultdict(deque)
        self._matched: deque[Transfer] = deque()
        self._moving: list[Transfer] = []
        self._abandoned: dict[int, AnyArray] = {}
        self._given_up: set[int] = set()
        """Numbers of messages whose data still comes after their sender gave them up."""
        self._posted: list[Request] = []
        self._to_self: deque[tuple[int, Any]] = deque()
        self._held: defaultdict[int, int] = defaultdict(int)
        """Bytes of small data, by the rank they are for."""
        self._used: defaultdict[int, int] = defaultdict(int)
        """Bytes of small data taken, by the rank they are from, which has not heard of it."""
        self._tracks: defaultdict[str, list[int]] = defaultdict(list)
        """Of the timeline: until when they are taken."""
        self.closed: str | None = None
        self.asynchronous = 0
        self._background = BackgroundThread(
            self, self.advance, self._give_up, "farandole-channels", patient=lambda: not self._moving
        )

    # What callers use

    def send(
        self, array: AnyArray, dest: int, name: str, *, background: bool, differentiable: bool = False, detached: bool = False
    ) -> Transfer:
        """Announce an array, which must not change until it was taken."""
        self._check("send", "dest", dest, name)
        if array.dtype.hasobject:
            raise SettingsError(f"send {name!r}: arrays of {array.dtype} cannot be sent; give one of numbers")
        array = np.ascontiguousarray(array).reshape(array.shape)
        transfer = Transfer("SEND", dest, _key(name, self._rank, dest), background, next(self._numbers), array)
        transfer.detached = detached
        with self._lock:
            self._begin(transfer)
            small = array.nbytes <= SMALL_BYTES and self._held[dest] + array.nbytes <= WINDOW_BYTES
            transfer.mark = np.array([transfer.number])
            self._sends[transfer.number] = transfer
            data = array.tobytes() if small else None
            note = (
                transfer.number, name, _told(array.dtype), array.shape, data, array.ctypes.data, transfer.mark.ctypes.data, differentiable
            )  # fmt: skip
            self._post(dest, _ANNOUNCED, note)
            self._held[dest] += array.nbytes if small else 0
        if small:
            self._end(transfer)
        return transfer

    def receive(self, source: int, name: str, expected: Expected, *, background: bool) -> Transfer:
        self._check("receive", "source", source, name)
        transfer = Transfer("RECEIVE", source, _key(name, source, self._rank), background, expected=expected)
        with self._lock:
            self._begin(transfer)
            self._receives[source, name].append(transfer)
            self._match(source, name)
        return transfer

    def poll(self, transfer: Transfer) -> bool:
        if not transfer.done:
            self.advance()
        return transfer.done

    def wait(self, transfer: Transfer) -> Any:
        """What has come; raises what went wrong."""
        try:
            subject = self._subject(transfer)
            look = self._helping(transfer)
            wait_until(lambda: look() or transfer.matched_ns > 0, subject, patient=True)
            wait_until(look, subject)
        except BaseException as error:
            self._give_up(transfer, error)
            raise
        if transfer.error is not None:
            raise transfer.error
        return transfer.value

    def _helping(self, transfer: Transfer) -> Callable[[], bool]:
        """`poll`, and with a large message to a neighbour a part of the copying."""
        array, mailboxes = transfer.array, self._mailboxes
        if transfer.kind != "SEND" or array is None or array.nbytes < LEAST_BYTES or mailboxes is None or not self._beside(transfer):
            return lambda: self.poll(transfer)
        words = mailboxes.pair(self._places[transfer.peer], self._places[self._rank])
        data = array.reshape(-1).view(np.uint8)

        def look() -> bool:
            help_reader(words, self._processes[transfer.peer], transfer.number, data)
            return self.poll(transfer)

        return look

    def _beside(self, transfer: Transfer) -> bool:
        return transfer.peer != self._rank and transfer.peer in self._processes

    def pending_keys(self) -> list[str]:
        with self._lock:
            return [transfer.key for transfer in self._pending()]

    def _check(self, verb: str, what: str, rank: int, name: str) -> None:
        if not 0 <= rank < self._size:
            raise SettingsError(f"{verb}({what}={rank}): the world has ranks 0 to {self._size - 1}")
        if not isinstance(name, str) or not name:
            raise SettingsError(f"{verb}(name={name!r}): give the message a name, alike on both ranks")

    # The end

    def finish(self) -> None:
        """Wait until what nobody holds was taken, or never will be."""
        for transfer in [send for send in list(self._sends.values()) if send.detached]:
            with contextlib.suppress(FarandoleError):
                self.wait(transfer)
        with contextlib.suppress(FarandoleError):
            wait_until(lambda: not self._outbox or self._post_rest(), Subject("channels.closing", tuple(self._ranks)))

    def close(self, reason: str) -> None:
        """Take part in nothing more."""
        with self._lock:
            if self.closed is not None:
                return
            self.closed = f"farandole is shut down on this rank, which {reason}"
            pending = self._pending()
            self.changed.notify()
        for transfer in pending:
            self._end(transfer, EngineStopped(f"{self._here()}{transfer.key}: {self.closed}"))
        self._background.join(timeout=CLOSING_S)

    def drain(self) -> None:
        """After close(), on all ranks: receive what nobody waits for."""
        self.advance()

    def free(self) -> None:
        """After drain(): give the communicator back, unless data may still come."""
        self.drain()
        if self._moving or self._posted or not self._background.join(timeout=0):
            self._transport.keep()
        self._transport.free()

    # The driver

    def _begin(self, transfer: Transfer) -> None:
        """With the lock."""
        note_caller()
        if self.closed is not None:
            raise EngineStopped(f"{self._here()}{transfer.key}: {self.closed}")
        if transfer.background:
            if self._transport.any_thread:
                self._background.start()
            self.asynchronous += 1
            self.changed.notify()

    def show_slow(self, older_than_s: float) -> list[Transfer]:
        """Let the watchdog see the messages in the background that take long."""
        now = time.monotonic()
        with self._lock:
            slow = [one for one in self._pending() if one.background and now - one.started > older_than_s]
            for transfer in slow:
                if transfer.slow is None:
                    transfer.slow = slow_waits.enter(self._subject(transfer), transfer.started, None)
        return slow

    def advance(self) -> bool:
        """One round of progress; False where another thread is at it, or this one, further out."""
        if not self._drive.acquire(blocking=False):
            return False
        try:
            if self._outbox:
                self._post_rest()
            self._read_letters()
            while self._matched:
                self._move(self._matched.popleft())
            self._complete()
        finally:
            self._drive.release()
        return True

    def _post(self, dest: int, what: int, content: object) -> None:
        if dest == self._rank:
            self._to_self.append((what, content))
            return
        letter = pickle.dumps((what, content))
        if self._mailboxes is None or dest not in self._places:
            self._posted.append(self._transport.send_message(letter, dest, _LETTERS))
        elif dest in self._outbox or not self._mailboxes.put(self._places[dest], letter):
            self._outbox.setdefault(dest, deque()).append(letter)

    def _post_rest(self) -> bool:
        """Whether every letter to a neighbour has gone."""
        assert self._mailboxes is not None
        with self._lock:
            for dest, letters in list(self._outbox.items()):
                while letters and self._mailboxes.put(self._places[dest], letters[0]):
                    letters.popleft()
                if not letters:
                    del self._outbox[dest]
            return not self._outbox

    def _tell(self, dest: int, what: int, content: object) -> None:
        with self._lock:
            if self.closed is None:
                self._post(dest, what, content)

    def _read_letters(self) -> None:
        while self._to_self:
            self._read(self._rank, *self._to_self.popleft())
        if self._mailboxes is not None:
            for place, letter in self._mailboxes.take():
                self._read(self._ranks[place], *pickle.loads(letter))
        if len(self._ranks) == self._size and self._mailboxes is not None:
            return
        while (message := self._transport.poll_message(_LETTERS)) is not None:
            self._read(message[0], *pickle.loads(message[1]))

    def _read(self, source: int, what: int, content: Any) -> None:
        if self.closed is not None:
            return
        if what == _ANNOUNCED:
            number, name, dtype, *rest = content
            note = Announcement(number, name, np.dtype(dtype), *rest)
            with self._lock:
                self._announced[source, note.name].append(note)
                self._match(source, note.name)
        elif what == _WANTED:
            self._carry(source, content)
        elif what == _TAKEN:
            number, problem, took_ns = content
            transfer = self._sends.get(number)
            if transfer is not None:
                transfer.matched_ns = transfer.matched_ns or time.monotonic_ns() - took_ns
                self._end(transfer, None if problem is None else MismatchError(self._here() + problem))
        elif what == _GONE:
            self._given_up.add(content)
        else:
            self._held[source] -= content

    def _match(self, source: int, name: str) -> None:
        """Pair what has come with who waits for it, in order. With the lock."""
        waiting, come = self._receives[source, name], self._announced[source, name]
        while waiting and come:
            transfer, transfer.note = waiting.popleft(), come.popleft()
            transfer.matched_ns = time.monotonic_ns()
            self._matched.append(transfer)
        for table in (self._receives, self._announced):
            if not table[source, name]:
                del table[source, name]

    # Moving data, at the receiver

    def _move(self, transfer: Transfer) -> None:
        note = transfer.note
        assert note is not None
        if transfer.done:  # given up meanwhile: it is for the next one who asks
            with self._lock:
                self._announced[transfer.peer, note.name].appendleft(note)
            return
        if note.data is not None:
            self._give_room(transfer.peer, len(note.data))
        try:
            if not transfer.expected.fits(note):
                self._refuse(transfer, note)
            elif note.data is not None:
                self._fill(transfer, note)[...] = np.frombuffer(note.data, np.uint8)
                self._arrived(transfer)
            elif transfer.peer in self._processes:
                self._read_from(self._processes[transfer.peer], transfer, note)
            else:
                transfer.request = self._transport.receive(self._fill(transfer, note), transfer.peer, _DATA)
                self._moving.append(transfer)
                self._tell(transfer.peer, _WANTED, note.number)
        except BaseException as error:
            self._end(transfer, error)
            if not isinstance(error, Exception):
                raise

    def _fill(self, transfer: Transfer, note: Announcement) -> AnyArray:
        """The bytes of the array to receive into."""
        out = transfer.expected.out
        transfer.array = np.empty(note.shape, note.dtype) if out is None else out
        return transfer.array.reshape(-1).view(np.uint8)

    def _give_room(self, source: int, nbytes: int) -> None:
        self._used[source] += nbytes
        if self._used[source] >= WINDOW_BYTES // 2:
            self._tell(source, _ROOM, self._used.pop(source))

    def _refuse(self, transfer: Transfer, note: Announcement) -> None:
        problem = (
            f"{transfer.key}: rank {transfer.peer} sends {shown(note.dtype, note.shape)}, "
            f"rank {self._rank} expects {transfer.expected}"
        )
        if note.data is None:
            self._tell(transfer.peer, _TAKEN, (note.number, problem, 0))
        raise MismatchError(self._here() + problem)

    def _read_from(self, process: int, transfer: Transfer, note: Announcement) -> None:
        mark = np.zeros(1, np.int64)
        into = self._fill(transfer, note)
        try:
            self._read_array(process, transfer, note, into)
            read_memory(process, note.mark, mark)
        except OSError:  # the sender has given that memory back
            mark[:] = 0
        if mark[0] != note.number:
            raise RankFailedError(f"{self._here()}{transfer.key}: rank {transfer.peer} has given up sending it")
        self._arrived(transfer)
        self._tell(transfer.peer, _TAKEN, (note.number, None, time.monotonic_ns() - transfer.matched_ns))

    def _read_array(self, process: int, transfer: Transfer, note: Announcement, into: AnyArray) -> None:
        if into.size < LEAST_BYTES or self._mailboxes is None or not self._beside(transfer):
            read_memory(process, note.address, into)
            return
        words = self._mailboxes.pair(self._places[self._rank], self._places[transfer.peer])
        subject = self._subject(transfer)
        read_with_help(words, process, note.number, note.address, into, lambda ready: wait_until(ready, subject))

    def _arrived(self, transfer: Transfer) -> None:
        note = transfer.note
        assert note is not None and transfer.array is not None
        transfer.value = Received(transfer.array, note.number, note.differentiable)
        self._end(transfer)

    # Moving data over MPI, at the sender

    def _carry(self, dest: int, number: int) -> None:
        transfer = self._sends.get(number)
        array = self._abandoned.pop(number, None) if transfer is None else transfer.array
        if array is None:
            return
        if transfer is None:  # the receiver waits for as many bytes, and must not take them for others
            self._tell(dest, _GONE, number)
            transfer = Transfer("SEND", dest, "", False, done=True)
        transfer.matched_ns = time.monotonic_ns()
        transfer.request = self._transport.send(array.reshape(-1).view(np.uint8), dest, _DATA)
        self._moving.append(transfer)

    def _complete(self) -> None:
        """End what MPI has moved."""
        with self._lock:  # others post meanwhile
            self._posted = [request for request in self._posted if not request.test()]
        moved = [transfer for transfer in self._moving if transfer.request is not None and transfer.request.test()]
        for transfer in moved:
            self._moving.remove(transfer)
            note = transfer.note
            if note is None or transfer.done:
                self._end(transfer)
            elif note.number in self._given_up:
                self._given_up.discard(note.number)
                text = f"{self._here()}{transfer.key}: rank {transfer.peer} has given up sending it"
                self._end(transfer, RankFailedError(text))
            else:
                self._arrived(transfer)

    # Ends

    def _pending(self) -> list[Transfer]:
        receives = itertools.chain.from_iterable(self._receives.values())
        return [one for one in (*self._sends.values(), *receives, *self._matched, *self._moving) if not one.done]

    def _give_up(self, transfer: Transfer, error: BaseException) -> None:
        with self._lock:
            for waiting in self._receives.values():
                if transfer in waiting:
                    waiting.remove(transfer)
                    break
        self._end(transfer, error)

    def _end(self, transfer: Transfer, error: BaseException | None = None) -> None:
        with self._lock:
            if transfer.done:
                return
            transfer.error, transfer.done = error, True
            self.asynchronous -= transfer.background
            if transfer.mark is not None:
                self._forget(transfer, error)
            if transfer.slow is not None:
                slow_waits.leave(transfer.slow)
        if timeline.active() and error is None:
            self._show(transfer)

    def _forget(self, transfer: Transfer, error: BaseException | None) -> None:
        """A message that was sent. With the lock."""
        assert transfer.mark is not None and transfer.array is not None
        del self._sends[transfer.number]
        transfer.mark[0] = 0
        if error is not None and transfer.peer not in self._processes and transfer.request is None:
            self._abandoned[transfer.number] = transfer.array

    def _show(self, transfer: Transfer) -> None:
        now_ns = time.monotonic_ns()
        matched_ns = transfer.matched_ns or transfer.started_ns
        nbytes = 0 if transfer.array is None else transfer.array.nbytes
        args = {"peer": transfer.peer, "bytes": nbytes} | ({"async": True} if transfer.background else {})
        track = self._track(transfer, now_ns)
        if matched_ns > transfer.started_ns:
            timeline.span(track, f"NEGOTIATE_{transfer.kind}", transfer.started_ns, matched_ns, args)
        timeline.span(track, transfer.kind, matched_ns, now_ns, args)

    def _track(self, transfer: Transfer, now_ns: int) -> str:
        """One on which nothing else was under way meanwhile: several messages may have one name."""
        with self._lock:
            ends = self._tracks[transfer.key]
            free = next((i for i, end_ns in enumerate(ends) if end_ns <= transfer.started_ns), len(ends))
            ends[free : free + 1] = [now_ns]
        return transfer.key if free == 0 else f"{transfer.key} #{free + 1}"

    def _subject(self, transfer: Transfer) -> Subject:
        def missing() -> list[int] | None:
            return all_arrived() if transfer.matched_ns else [transfer.peer]

        return Subject(transfer.key, tuple(sorted({self._rank, transfer.peer})), missing)

    def _here(self) -> str:
        return f"[rank {self._rank}/{self._size}] "


def _told(dtype: np.dtype[Any]) -> np.dtype[Any] | str:
    """What np.dtype() makes a type of: a few letters where they suffice, which are sent in a fifth of the time."""
    return dtype.str if dtype.kind in "biufc" and dtype.isbuiltin != 2 else dtype


def _key(name: str, source: int, dest: int) -> str:
    """Alike at both ends."""
    return f"channel.{name}.{source}-{dest}"


def open_transfers(transport: Transport, node: Transport) -> Transfers:
    """Those of the ranks of `transport`, with `node` of them on this node. Collective: every rank calls it."""
    ranks = node.allgather_object(transport.rank)
    neighbours = Neighbours({}, None)
    if wanted_exchange() == "direct":
        try:
            processes = dict(zip(ranks, readable(node)))
            neighbours = Neighbours(processes, Mailboxes(node) if node.size > 1 else None)
        except SharingUnavailable as error:
            note_fallback(f"channels go through MPI ({error})", speak=transport.rank == 0)
    return Transfers(transport, neighbours)
