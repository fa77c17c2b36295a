"""Pieces that are posted, and the threads that reduce them in their order while backward goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farandole.comm.bytes.waiting import Subject, mark_internal_thread, shown_when_slow

__all__ = ["PieceQueue"]


class PieceQueue:
    """The pieces of one step after the other, by place."""

    def __init__(self, count: int, reduce: Callable[[int], None], threads: int, *, one_at_a_time: bool) -> None:
        """`one_at_a_time`: threads that have to share a core with the training thread only push each other out of its cache."""
        self._count = count
        self._reduce = reduce
        self._one_at_a_time = one_at_a_time
        self._lock = threading.Lock()
        self._work_came = threading.Condition(self._lock)
        self._work_done = threading.Condition(self._lock)
        self._busy = 0
        self._error: BaseException | None = None
        self._closed = False
        self.begin()
        self._threads = [self._thread(number) for number in range(threads)]

    @property
    def threads(self) -> int:
        return len(self._threads)

    def begin(self) -> None:
        """A step begins: nothing is posted."""
        with self._lock:
            self._next = 0
            self._reduced = 0
            self._posted = [False] * self._count
            self._unposted = self._count

    def post(self, place: int) -> None:
        """A piece may be reduced."""
        with self._lock:
            self._posted[place] = True
            self._unposted -= 1
            # The training thread comes for the last piece itself.
            if place == self._next and (self._unposted or not self._one_at_a_time):
                self._work_came.notify()

    def reduce_next(self) -> bool:
        """Reduce the next piece here; False where it is not posted, or somebody else's."""
        with self._lock:
            place = self._take()
        if place is None:
            return False
        try:
            self._reduce(place)
        except BaseException:
            self._end(reduced=False)
            raise
        self._end(reduced=True)
        return True

    def wait(self, subject: Callable[[], Subject]) -> None:
        """Until all pieces are reduced: the threads have taken those that are not."""
        with self._lock:
            if self._reduced >= self._count:
                return
        with self._lock, shown_when_slow(subject()) as look:
            while self._reduced < self._count and self._error is None:
                self._work_done.wait(timeout=0.2)
                look()
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def give_up(self, patience_s: float) -> bool:
        """The step has failed: take no more pieces; whether no thread is in one any more."""
        with self._lock:
            self._next = self._count
            idle = self._work_done.wait_for(lambda: self._busy == 0, timeout=patience_s)
            self._error = None
        return idle

    def close(self) -> bool:
        """Let the threads end; whether they have."""
        with self._lock:
            self._closed = True
            self._work_came.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)
        return not any(thread.is_alive() for thread in self._threads)

    def _take(self) -> int | None:
        if self._busy and self._one_at_a_time:
            return None
        if self._next < self._count and self._posted[self._next]:
            self._next += 1
            self._busy += 1
            return self._next - 1
        return None

    def _end(self, *, reduced: bool, error: BaseException | None = None) -> None:
        """A piece that was taken is done, or not; an `error` is for the training thread to raise."""
        with self._lock:
            self._busy -= 1
            if reduced:
                self._reduced += 1
            else:
                self._next = self._count  # the step has failed: nobody is to wait for its other pieces
                self._error = error
            self._work_done.notify()

    def _thread(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._work, name=f"farandole-team-{number}", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        mark_internal_thread()
        while True:
            with self._lock:
                while (place := self._take()) is None and not self._closed:
                    self._work_came.wait()
            if place is None:
                return
            try:
                self._reduce(place)
            except BaseException as error:
                self._end(reduced=False, error=error)
            else:
                self._end(reduced=True)
