"""MPI through mpi4py: the only module that imports it.

MPI is started here, on first use, with the highest thread level the library gives, and never finalised
by us (mpi4py does that at exit), so that `shutdown()` and a second `init()` work. Below
MPI_THREAD_MULTIPLE a lock keeps calls apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from farandole.comm.bytes.room import make_mpich_fit
from farandole.comm.bytes.transport import AnyArray, LocalTransport, Request, Transport
from farandole.comm.bytes.waiting import Subject, slow_waits, wait_until
from farandole.errors import FarandoleError, SettingsError

__all__ = ["MpiTransport", "describe", "from_communicator", "plain", "some_ranks", "thread_level", "world"]

# One MPI call moves at most this many bytes: MPI-3 libraries count in 32-bit integers.
MESSAGE_BYTES = 1 << 30
ABORT_S = 5
BRUCK = "2"

_lock = threading.RLock()
_module: Any = None
_problem: str | None = None


def _mpi() -> Any:
    """mpi4py's MPI module, initialised; None where no MPI library can be loaded."""
    global _module, _problem
    with _lock:
        if _module is None and _problem is None:
            try:
                _module = _start()
            except FarandoleError:
                raise  # a setting that cannot work, and no lack of MPI
            except (ImportError, RuntimeError, OSError) as error:
                _problem = str(error).splitlines()[0]
        return _module


def _start() -> Any:
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    from mpi4py import MPI

    if not MPI.Is_initialized():
        wanted = os.environ.get("FARANDOLE_MPI_THREAD_LEVEL", "multiple").upper()
        levels = {"SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"}
        if wanted not in levels:
            names = ", ".join(sorted(level.lower() for level in levels))
            raise SettingsError(f"FARANDOLE_MPI_THREAD_LEVEL={wanted.lower()}: use one of {names}")
        with _added_to_environment(_workarounds(MPI.get_vendor()[0])):
            MPI.Init_thread(getattr(MPI, f"THREAD_{wanted}"))
    return MPI


def _workarounds(vendor: str) -> dict[str, str]:
    """What a library must be told before it starts, unless the user has told it something else."""
    if vendor == "MPICH":
        return make_mpich_fit()
    if vendor == "Intel MPI":
        # The algorithm of its own choice never ends where ranks send very different amounts (300,000 bytes and 3).
        return {"I_MPI_ADJUST_IALLGATHERV": BRUCK}
    if vendor == "Open MPI" and "PMIX_RANK" not in os.environ:
        # Without mpiexec it leaves 16 MiB in /dev/shm when it ends, and one process needs no shared memory.
        return {"OMPI_MCA_btl": "^sm,vader"}
    return {}


@contextlib.contextmanager
def _added_to_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Not for good: what this process starts next may be an mpiexec."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def thread_level() -> str:
    """`multiple`, `serialized`, `funneled`, `single`, or `none` without MPI."""
    mpi = _mpi()
    if mpi is None:
        return "none"
    names = {getattr(mpi, f"THREAD_{n}"): n for n in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    return names[mpi.Query_thread()].lower()


def describe() -> dict[str, str]:
    """The library, its version and its thread level; `problem` where none can be loaded."""
    mpi = _mpi()
    if mpi is None:
        return {"library": "none", "version": "", "thread_level": "none", "problem": _problem or ""}
    vendor, version = mpi.get_vendor()
    return {
        "library": vendor,
        "version": ".".join(map(str, version)),
        "thread_level": thread_level(),
        "standard": ".".join(map(str, mpi.Get_version())),
    }


def world() -> Transport:
    """A duplicate of MPI_COMM_WORLD, or one rank alone where there is no MPI library. Collective."""
    mpi = _mpi()
    return LocalTransport() if mpi is None else MpiTransport(mpi, mpi.COMM_WORLD.Dup())


def some_ranks(choose: Callable[[int, int], Sequence[int]]) -> Transport:
    """Those ranks of MPI_COMM_WORLD that `choose(rank, size)` gives. Collective over them only."""
    mpi = _mpi()
    if mpi is None:
        choose(0, 1)
        return LocalTransport()
    everyone = mpi.COMM_WORLD
    group = everyone.Get_group().Incl(choose(everyone.Get_rank(), everyone.Get_size()))
    return MpiTransport(mpi, everyone.Create_group(group))


def from_communicator(comm: Any) -> Transport:
    """A duplicate of a user's mpi4py communicator. Collective over it."""
    return MpiTransport(_mpi(), comm.Dup())


def plain(ranks: Sequence[int]) -> Any:
    """mpi4py's own communicator of these ranks, for comparisons with it. Collective over them only."""
    everyone = _mpi().COMM_WORLD
    return everyone.Create_group(everyone.Get_group().Incl(list(ranks)))


Guard = contextlib.AbstractContextManager[Any]


def _guard(mpi: Any) -> Guard:
    """Keeps MPI calls apart below MPI_THREAD_MULTIPLE; does nothing otherwise."""
    return _lock if mpi.Query_thread() < mpi.THREAD_MULTIPLE else contextlib.nullcontext()


class _Pending:
    """MPI requests that complete together; keeps their buffers alive until then."""

    __slots__ = ("_buffers", "_guard", "_mpi", "_requests")

    def __init__(self, mpi: Any, guard: Guard, requests: list[Any], buffers: tuple[Any, ...]) -> None:
        self._mpi = mpi
        self._guard = guard
        self._requests = requests
        self._buffers = buffers

    def test(self) -> bool:
        with self._guard:
            done: bool = self._mpi.Request.Testall(self._requests)
        return done


class _Sequence:
    """Steps that must follow one another, started as the one before completes."""

    __slots__ = ("_current", "_rest")

    def __init__(self, steps: list[Any]) -> None:
        self._rest = steps[::-1]
        self._current: Request | None = None

    def test(self) -> bool:
        while self._current is None or self._current.test():
            if not self._rest:
                return True
            self._current = self._rest.pop()()
        return False


def _as_bytes(data: AnyArray) -> AnyArray:
    return data.reshape(-1).view(np.uint8)


def _offsets(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts, dtype=np.int64).tolist()][:-1]


class MpiTransport:
    """A communicator of our own."""

    def __init__(self, mpi: Any, comm: Any, members: Sequence[int] | None = None) -> None:
        """`members` are the ranks' numbers in the world, where they are not the same."""
        self._mpi = mpi
        self._comm = comm
        self._guard = _guard(mpi)
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.any_thread: bool = mpi.Query_thread() >= mpi.THREAD_SERIALIZED
        self.at_once: bool = mpi.Query_thread() >= mpi.THREAD_MULTIPLE
        self._members = tuple(range(self.size) if members is None else members)
        self._kept = False
        self._operations = {"sum": mpi.SUM, "min": mpi.MIN, "max": mpi.MAX, "product": mpi.PROD}

    # Groups

    @contextlib.contextmanager
    def _inside(self, what: str) -> Iterator[None]:
        """A call that blocks in the library: the watchdog sees it, and can only end the job."""
        subject = Subject(f"setting up ({what})", self._members)
        entry = slow_waits.enter(subject, time.monotonic(), threading.get_ident())
        try:
            with self._guard:
                yield
        finally:
            slow_waits.leave(entry)

    def duplicate(self) -> Transport:
        with self._inside("a communicator"):
            return MpiTransport(self._mpi, self._comm.Dup(), self._members)

    def subset(self, ranks: Sequence[int]) -> Transport:
        members = [self._members[rank] for rank in ranks]
        with self._inside("a process set"):
            group = self._comm.Get_group().Incl(list(ranks))
            return MpiTransport(self._mpi, self._comm.Create_group(group), members)

    def same_node(self) -> Transport:
        """Ranks that MPI says share memory and that call themselves the same host.

        FARANDOLE_NODE, set differently for some ranks, divides a host further.
        """
        name = os.environ.get("FARANDOLE_NODE", socket.gethostname())
        with self._inside("nodes"):
            node = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED, key=self.rank)
            hosts = node.allgather(name)
            comm = node.Split(hosts.index(name), key=node.Get_rank())
            node.Free()
            return MpiTransport(self._mpi, comm, comm.allgather(self._members[self.rank]))

    def keep(self) -> None:
        self._kept = True

    def free(self) -> None:
        with self._guard:
            if not self._kept and self._comm != self._mpi.COMM_NULL and not self._mpi.Is_finalized():
                self._comm.Free()

    # Point to point

    def _pieces(self, data: AnyArray) -> list[AnyArray]:
        flat = _as_bytes(data)
        return [flat[at : at + MESSAGE_BYTES] for at in range(0, max(flat.size, 1), MESSAGE_BYTES)]

    def send(self, data: AnyArray, dest: int, tag: int) -> Request:
        with self._guard:
            requests = [self._comm.Isend([p, self._mpi.BYTE], dest, tag) for p in self._pieces(data)]
        return _Pending(self._mpi, self._guard, requests, (data,))

    def receive(self, data: AnyArray, source: int, tag: int) -> Request:
        with self._guard:
            requests = [self._comm.Irecv([p, self._mpi.BYTE], source, tag) for p in self._pieces(data)]
        return _Pending(self._mpi, self._guard, requests, (data,))

    def send_message(self, data: bytes, dest: int, tag: int) -> Request:
        with self._guard:
            request = self._comm.Isend([data, self._mpi.BYTE], dest, tag)
        return _Pending(self._mpi, self._guard, [request], (data,))

    def poll_message(self, tag: int) -> tuple[int, bytes] | None:
        with self._guard:
            status = self._mpi.Status()
            message = self._comm.Improbe(self._mpi.ANY_SOURCE, tag, status)
            if message is None:
                return None
            data = bytearray(status.Get_count(self._mpi.BYTE))
            message.Recv([data, self._mpi.BYTE])
            return status.Get_source(), bytes(data)

    # Collectives

    def _wait(self, request: Request, what: str) -> None:
        try:
            wait_until(request.test, Subject(what, self._members))
        except BaseException:
            self.keep()
            raise

    def allgather_object(self, value: Any) -> list[Any]:
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        counts = np.zeros(self.size, np.int64)
        mine = np.array([data.size], np.int64)
        self._wait(self.allgather(mine, counts, [8] * self.size), "setting up (allgather of sizes)")
        out = np.empty(int(counts.sum()), np.uint8)
        self._wait(self.allgather(data, out, counts.tolist()), "setting up (allgather)")
        starts = _offsets(counts.tolist())
        return [pickle.loads(out[a : a + n].tobytes()) for a, n in zip(starts, counts.tolist())]

    def broadcast_object(self, value: Any, root: int) -> Any:
        size = np.zeros(1, np.int64)
        data = np.zeros(0, np.uint8)
        if self.rank == root:
            data = np.frombuffer(pickle.dumps(value), np.uint8).copy()
            size[0] = data.size
        self._wait(self.broadcast(size, root), "setting up (broadcast of a size)")
        if self.rank != root:
            data = np.empty(int(size[0]), np.uint8)
        self._wait(self.broadcast(data, root), "setting up (broadcast)")
        return value if self.rank == root else pickle.loads(data.tobytes())

    def broadcast(self, data: AnyArray, root: int) -> Request:
        def step(piece: AnyArray) -> Any:
            return lambda: self._start("Ibcast", [piece, self._mpi.BYTE], root)

        return _Sequence([step(piece) for piece in self._pieces(data)])

    def _start(self, call: str, *arguments: Any) -> Request:
        with self._guard:
            request = getattr(self._comm, call)(*arguments)
        return _Pending(self._mpi, self._guard, [request], arguments)

    def allgather(self, data: AnyArray, out: AnyArray, counts: Sequence[int]) -> Request:
        if sum(counts) > MESSAGE_BYTES:
            return self._pairwise(data, out, [counts[self.rank]] * self.size, counts, same=True)
        received = [_as_bytes(out), (list(counts), _offsets(counts)), self._mpi.BYTE]
        return self._start("Iallgatherv", [_as_bytes(data), self._mpi.BYTE], received)

    def gather(self, data: AnyArray, out: AnyArray | None, counts: Sequence[int], root: int) -> Request:
        if sum(counts) > MESSAGE_BYTES:
            sent = [counts[self.rank] if rank == root else 0 for rank in range(self.size)]
            received = list(counts) if self.rank == root else [0] * self.size
            target = np.empty(0, np.uint8) if out is None else out
            return self._pairwise(data, target, sent, received, same=True)
        into = None if out is None else [_as_bytes(out), (list(counts), _offsets(counts)), self._mpi.BYTE]
        return self._start("Igatherv", [_as_bytes(data), self._mpi.BYTE], into, root)

    def alltoall(
        self, data: AnyArray, out: AnyArray, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Request:
        # The library counts in 32 bits, and every rank must take the same way: pairwise is always right.
        return self._pairwise(data, out, send_counts, receive_counts, same=False)

    def _pairwise(
        self,
        data: AnyArray,
        out: AnyArray,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        *,
        same: bool,
    ) -> Request:
        """Each pair of ranks by messages; `same` sends the same bytes to everyone."""
        source, target = _as_bytes(data), _as_bytes(out)
        froms = [0] * self.size if same else _offsets(send_counts)
        intos = _offsets(receive_counts)
        me = self.rank
        requests: list[Any] = []
        with self._guard:
            for peer in range(self.size):
                if peer != me and receive_counts[peer]:
                    piece = target[intos[peer] : intos[peer] + receive_counts[peer]]
                    requests += [self._comm.Irecv([p, self._mpi.BYTE], peer, 0) for p in self._pieces(piece)]
            for peer in range(self.size):
                if peer != me and send_counts[peer]:
                    piece = source[froms[peer] : froms[peer] + send_counts[peer]]
                    requests += [self._comm.Isend([p, self._mpi.BYTE], peer, 0) for p in self._pieces(piece)]
        mine = receive_counts[me]
        if mine:
            target[intos[me] : intos[me] + mine] = source[froms[me] : froms[me] + mine]
        return _Pending(self._mpi, self._guard, requests, (data, out))

    def allreduce_native(self, data: AnyArray, out: AnyArray, op: str) -> Request | None:
        # An array that was unpickled has a dtype equal to NumPy's own but not the same: ranks must not differ by that.
        native = data.dtype.kind in "iuf" and data.dtype.isbuiltin != 2 and data.dtype != np.float16
        if not native or not data.dtype.isnative or data.size >= 1 << 31:
            return None
        return self._start("Iallreduce", data, out, self._operations[op])

    def abort(self, code: int) -> None:
        # A library may wait here for a launcher that does not answer, and hold Python's lock: the system ends it then.
        ctypes.CDLL(None).signal(signal.SIGALRM, None)
        signal.alarm(ABORT_S)
        self._comm.Abort(code)
