"""The world of ranks: starting, asking who and where, ending.

`init()` starts MPI, checks that the launcher and MPI agree on the number of ranks, and registers the
process sets. `shutdown()` ends our part and leaves MPI alone, so that `init()` works again. An exception
that nobody catches ends every rank: a rank that died must not leave the others waiting.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from farandole.comm import mpi, waiting
from farandole.comm.clocks import compare_clocks
from farandole.comm.engine import Engine
from farandole.comm.last_words import LastWords
from farandole.comm.lifelines import Lifelines, open_lifelines
from farandole.comm.plan import GradientPlan
from farandole.comm.process_sets import ProcessSet, Remains, SetRuntime, global_process_set
from farandole.comm.reduce import Layout, fallbacks, node_cores
from farandole.comm.transfers import open_transfers
from farandole.comm.transport import Transport
from farandole.comm.watchdog import StallSettings, Watchdog, alive
from farandole.errors import (
    EngineStopped,
    MismatchError,
    NotInitializedError,
    RankFailedError,
    SettingsError,
    WorldMismatchError,
)
from farandole.launch.allocator import tune_allocator
from farandole.launch.mpiexec import INSTALL_MPI
from farandole.observe import process, timeline
from farandole.observe.phases import tell_start

__all__ = [
    "World",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "current",
    "describe",
    "get_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

FAREWELL_S = 2.0
_DEFAULT_FUSION_BYTES = 64 << 20
_PMI_ADVICE = {
    "FARANDOLE_LAUNCH_SIZE": "The MPI library Python loads is not the one `farandole launch` starts ranks with; "
    "`farandole doctor` shows both",
    "OMPI_COMM_WORLD_SIZE": "Start the ranks with the mpiexec of the MPI library Python loads (`farandole doctor` "
    "shows which), or set MPI4PY_LIBMPI to Open MPI's libmpi.so",
    "PMI_SIZE": "Start the ranks with the mpiexec of the MPI library Python loads (`farandole doctor` shows which), "
    "or set MPI4PY_LIBMPI to the library that belongs to this mpiexec",
    "SLURM_STEP_NUM_TASKS": "Use `srun --mpi=pmi2` (MPICH, Intel MPI) or `srun --mpi=pmix` (Open MPI); "
    "`srun --mpi=list` shows what this Slurm has",
    "SLURM_NTASKS": "Start the ranks with `srun --mpi=pmi2` (MPICH, Intel MPI) or `srun --mpi=pmix` (Open MPI); "
    "for one rank inside this allocation use `srun -n 1`",
}


def check_world_size(size: int, environment: Mapping[str, str], problem: str = "") -> None:
    """N worlds of one rank each, instead of one of N, is the classic trap of a wrong PMI.

    `problem`: why no MPI library could be loaded.
    """
    for name, advice in _PMI_ADVICE.items():
        value = environment.get(name, "")
        if value.isdigit():
            if size == 1 and int(value) > 1:
                if name == "PMI_SIZE" and "SLURM_STEP_NUM_TASKS" in environment:
                    advice = _PMI_ADVICE["SLURM_STEP_NUM_TASKS"]
                if problem:
                    raise WorldMismatchError(
                        f"{name}={value} ranks were started, but no MPI library can be loaded ({problem}): each would "
                        f"train alone. Type: {INSTALL_MPI}"
                    )
                raise WorldMismatchError(
                    f"{name}={value} ranks were started, but MPI sees only 1: each would train alone. {advice}."
                )
            return


def _setting(name: str, default: int) -> int:
    text = os.environ.get(f"FARANDOLE_{name}", os.environ.get(f"HOROVOD_{name}"))
    try:
        return default if text is None else int(text)
    except ValueError:
        raise SettingsError(f"FARANDOLE_{name}={text!r}: give a whole number of bytes") from None


class World:
    """Everything that lives between init() and shutdown()."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.name: str = transport.broadcast_object(secrets.token_hex(8), 0)
        """Alike on all ranks, and another one for every world."""
        self.rank = transport.rank
        self.size = transport.size
        node = transport.same_node()
        self.layout = Layout.gather(transport, node)
        self.node, self.local_rank = self.layout.place(self.rank)
        self.local_size = len(self.layout.nodes[self.node])
        self.sets: dict[int, ProcessSet] = {}
        self.plans: weakref.WeakSet[GradientPlan] = weakref.WeakSet()
        self.next_set = 0
        self._remains: list[Remains] = []
        self.fusion_bytes = _setting("FUSION_THRESHOLD", _DEFAULT_FUSION_BYTES)
        self.record: dict[str, Any] = {"allocator": tune_allocator()}
        waiting.set_spinning(self.local_size <= node_cores(node))
        neighbours = self._neighbours(node)
        self.transfers = open_transfers(transport.duplicate(), node)
        node.free()
        self.lines = self._open_lines()
        self.watchdog = Watchdog(
            transport.duplicate(), neighbours, self.lines, self._pending_keys, self._done_keys, StallSettings.from_environment()
        )

    def _open_lines(self) -> Lifelines:
        """Lines to ranks of other nodes; the launcher of ours sees every rank's end by itself."""
        others = [] if "FARANDOLE_JOB_DIR" in os.environ else [ranks[0] for ranks in self.layout.nodes[1:]]
        lines, unwatched = open_lifelines(self.transport, others) if others else (Lifelines({}), [])
        self.record["unwatched"] = unwatched
        if unwatched and self.rank == 0:
            _say(
                f"rank {', '.join(map(str, unwatched))} cannot connect to rank 0's node: nobody sees it when the only rank "
                "of such a node is killed. Let the launcher end the job then, e.g. srun --kill-on-bad-exit=1"
            )
        return lines

    def _neighbours(self, node: Transport) -> dict[int, int]:
        """Process numbers of the node's other ranks, where they mean the same thing here."""
        place = str(Path("/proc/self/ns/pid").readlink()) if Path("/proc/self/ns/pid").exists() else ""
        found = node.allgather_object((self.rank, os.getpid(), place))
        return {r: pid for r, pid, where in found if r != self.rank and where == place and alive(pid)}

    def _pending_keys(self) -> list[str]:
        of_sets = [key for runtime in self._runtimes() for key in runtime.engine.pending_keys()]
        return [*of_sets, *self.transfers.pending_keys()]

    def _done_keys(self) -> list[str]:
        return [key for runtime in self._runtimes() for key in list(runtime.steps_done.values())]

    def _runtimes(self) -> Iterator[SetRuntime]:
        for process_set in list(self.sets.values()):
            # Not in it, or it is being removed at this moment.
            with contextlib.suppress(SettingsError, NotInitializedError):
                yield process_set.runtime()

    def register(self, process_set: ProcessSet) -> None:
        """Collective over the world."""
        ranks = self.ranks_of(process_set)
        for other in self.sets.values():
            if other.ranks == ranks:
                raise SettingsError(f"a process set of ranks {ranks} exists already: {other}")
        if ranks[-1] >= self.size:
            raise SettingsError(f"ProcessSet({ranks}): the world has ranks 0 to {self.size - 1}")
        set_id = self.next_set
        self.next_set += 1
        runtime = None
        if self.rank in ranks:
            transport = self.transport.subset(ranks)
            label = "" if set_id == 0 else f"set {set_id}: "
            nodes = sum(not set(ranks).isdisjoint(node) for node in self.layout.nodes)
            runtime = SetRuntime(transport, tuple(ranks), label, self.fusion_bytes, nodes, self.size)
            if set_id == 0:
                self._allow_joining(runtime.engine)
        process_set.attach(set_id, ranks, self.rank, runtime)
        self.sets[set_id] = process_set

    def _allow_joining(self, engine: Engine) -> None:
        """A rank in a step of gradients hears that another has joined, and says which step it is in."""
        def drive() -> None:
            if self.transport.any_thread:
                engine.advance()
                self.transfers.advance()  # its letters stand in the way of the others
            elif threading.current_thread() is threading.main_thread():
                self._drive_all()

        def tell() -> None:
            for plan in list(self.plans):
                if plan.engine is engine:
                    plan.tell_joined()

        engine.on_join = tell
        waiting.while_waiting(drive)

    def _drive_all(self) -> None:
        """No thread of ours may: whoever waits has to take part in what others wait for, in all sets.

        In the middle of a set's operation only in those of sets before it: two ranks must not be in the middle of two
        of them in opposite order.
        """
        for runtime in self._runtimes():
            if not runtime.engine.advance():
                return
        self.transfers.advance()

    def ranks_of(self, process_set: ProcessSet) -> list[int]:
        """The ranks all ranks agree the set has. Collective over the world."""
        asked = self.transport.allgather_object(process_set.ranks_of(self.rank))
        wanted = [ranks for ranks in asked if ranks is not None]
        if not wanted or any(ranks != wanted[0] for ranks in wanted):
            raise SettingsError(f"add_process_set: the ranks ask for different sets: {asked}")
        ranks: list[int] = wanted[0]
        return ranks

    def close(self, reason: str) -> None:
        self.transfers.finish()
        waiting.while_waiting(None)
        # Threads that outlive the interpreter can crash it.
        for plan in list(self.plans):
            plan.retire()
        self.watchdog.stop(reason)  # its farewell tells what was pending
        self.transfers.close(reason)
        for process_set in self.sets.values():
            if process_set.included():
                process_set.runtime().close(reason)
                self._remains.append(process_set.runtime().remains())
            process_set.detach()
        if len(self.layout.nodes) > 1:
            self._receive_farewells()  # UCX complains of every message that nobody has received
            self.transfers.drain()

    def _receive_farewells(self) -> bool:
        """Wait a little for the others' last messages; whether all have come."""
        left = [self.watchdog.everyone_left, *(remains.engine.everyone_left for remains in self._remains)]
        end = time.monotonic() + FAREWELL_S
        while (left := [heard for heard in left if not heard()]) and time.monotonic() < end:
            time.sleep(1e-3)
        return not left

    def free(self) -> None:
        """Give the communicators back, once every rank has closed this world: a library has some thousand. Collective."""
        # A message that nobody has received would come to the next communicator that gets the number of this one.
        if self._receive_farewells():
            for remains in self._remains:
                remains.free()
            self.watchdog.free()
            self.transfers.free()
            self.transport.free()


_world: World | None = None
_closed: list[World] = []
"""Worlds that have ended, whose communicators are still to be given back."""
_lock = threading.RLock()
_hooks_installed = False
_recorded: tuple[Path, LastWords] | None = None
"""The timeline that is being recorded."""
_start_told = False
"""Whether the start of this process has been told: it is no part of what a second init() begins."""


def current() -> World:
    """The world; an error that says to call init() before."""
    if _world is None:
        raise NotInitializedError("farandole is not initialised: call farandole.init() first")
    return _world


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start. Collective: every rank calls it; a second call does nothing.

    `comm`: None (all ranks), a list of ranks, or an mpi4py communicator. `process_sets`: a list of
    ProcessSet or lists of ranks to register, or "dynamic", which needs nothing here.
    """
    global _world
    with _lock:
        if _world is not None:
            return
        transport = _transport(comm)
        if comm is None:
            check_world_size(transport.size, os.environ, mpi.describe().get("problem", ""))
        world = World(transport)
        try:
            _free_closed(transport)
            _register_all(world, [] if process_sets in (None, "dynamic") else process_sets)
        except BaseException:
            world.close("could not start")
            _closed.append(world)
            raise
        _world = world
        process.set_local_rank(local_rank())
        world.watchdog.start()
        _install_hooks()
        _tell_launcher(world)
        _record_what_is_asked()


def _free_closed(transport: Transport) -> None:
    """Free the worlds of before, of which all ranks are here. Collective."""
    asked = [name for names in transport.allgather_object([world.name for world in _closed]) for name in names]
    for world in [world for world in _closed if asked.count(world.name) == world.size]:
        _closed.remove(world)
        world.free()


def _register_all(world: World, process_sets: Sequence[Any]) -> None:
    global_process_set.ranks = list(range(world.size))
    world.register(global_process_set)
    for item in process_sets:
        world.register(item if isinstance(item, ProcessSet) else ProcessSet(item))


def _transport(comm: Any) -> Transport:
    if comm is None:
        return mpi.world()
    if hasattr(comm, "Get_rank"):
        return mpi.from_communicator(comm)
    return mpi.some_ranks(lambda rank, size: _some_ranks(sorted(int(r) for r in comm), rank, size))


def _some_ranks(ranks: list[int], rank: int, size: int) -> list[int]:
    """The ranks given to init(), which this one must be among."""
    check_world_size(size, os.environ, mpi.describe().get("problem", ""))
    if not ranks or ranks[0] < 0 or ranks[-1] >= size or len(set(ranks)) < len(ranks):
        raise SettingsError(f"init(comm={ranks}): give different ranks; MPI has ranks 0 to {size - 1}")
    if rank not in ranks:
        raise SettingsError(f"init(comm={ranks}): rank {rank} is not in it and must not call init()")
    return ranks


def shutdown() -> None:
    """End farandole on this rank; MPI itself goes on, and init() may be called again."""
    _leave("has called shutdown()")


def _leave(reason: str, *, exits: bool = False) -> None:
    global _world
    with _lock:
        if _world is None:
            return
        world, _world = _world, None
        world.close(reason)  # first: others may wait for this rank
        _closed.append(world)
        _write_job_file(world, "down", "")
        try:
            _end_timeline(world, exits=exits)
        except Exception as error:  # the work itself has come to its end
            _say(str(error))


def is_initialized() -> bool:
    return _world is not None


def rank() -> int:
    """This process's number, from 0."""
    return current().rank


def size() -> int:
    """Number of ranks."""
    return current().size


def local_rank() -> int:
    """This process's number on its node."""
    return current().local_rank


def local_size() -> int:
    """Number of ranks on this node."""
    return current().local_size


def cross_rank() -> int:
    """This node's number among the nodes that have a rank with this local rank."""
    world = current()
    return [n for n in world.layout.nodes if len(n) > world.local_rank].index(world.layout.nodes[world.node])


def cross_size() -> int:
    """Number of nodes that have a rank with this local rank."""
    world = current()
    return len([n for n in world.layout.nodes if len(n) > world.local_rank])


def is_homogeneous() -> bool:
    """Whether every node has the same number of ranks."""
    return len({len(ranks) for ranks in current().layout.nodes}) == 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set at any time. Collective over the world, in the same order on all ranks."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    current().register(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set; False where it cannot be. Collective over the world."""
    world = current()
    set_id = process_set.process_set_id
    registered = set_id and world.sets.get(set_id) is process_set
    asked = world.transport.allgather_object(set_id if registered else None)
    if any(theirs != asked[0] for theirs in asked):
        raise MismatchError(
            f"[rank {world.rank}/{world.size}] remove_process_set: the ranks give different sets, by rank: {asked}"
        )
    if not set_id or not registered:
        return False
    if process_set.included():
        process_set.runtime().close_together("has removed the process set")
    process_set.detach()
    del world.sets[set_id]
    return True


def get_process_set(set_id: int) -> ProcessSet:
    sets = current().sets
    if set_id not in sets:
        raise SettingsError(f"no process set {set_id}; registered: {sorted(sets)}")
    return sets[set_id]


def describe() -> dict[str, Any]:
    """What this run stands on: MPI, layout, allocator, how arrays travel, every fallback taken."""
    world = current()
    return {
        "mpi": mpi.describe(),
        "rank": world.rank,
        "size": world.size,
        "nodes": [len(ranks) for ranks in world.layout.nodes],
        "fallbacks": fallbacks(),
        **world.record,
    }


# Timeline


def start_timeline(file_path: str | Path, mark_cycles: bool = False) -> None:
    """Record every rank's communication into `file_path`, in Chrome's trace format. Collective."""
    _record(file_path, mark_cycles=mark_cycles)


def _record_what_is_asked() -> None:
    """The timeline that the environment asks for has this process' start, too. Collective."""
    global _start_told
    began_ns, _start_told = None if _start_told else process.began_ns(), True
    path = timeline.path_from_environment()
    if path is not None:
        _record(path, origin_ns=began_ns)
    if began_ns is not None:
        tell_start(began_ns)


def _record(file_path: str | Path, *, mark_cycles: bool = False, origin_ns: int | None = None) -> None:
    global _recorded
    world = current()
    if timeline.taken():
        other = f", to {_recorded[0]}" if _recorded else ""
        raise SettingsError(f"a timeline is being written already{other}; stop_timeline() first")
    if world.rank == 0:
        timeline.discard_parts(Path(file_path))
    words = LastWords(world.transport)
    timeline.start(
        file_path, rank=world.rank, size=world.size, host=socket.gethostname(),
        clock=compare_clocks(world.transport, world.layout), mark_cycles=mark_cycles, origin_ns=origin_ns,
    )  # fmt: skip
    _recorded = Path(file_path), words


def stop_timeline() -> None:
    """Stop recording; rank 0 merges all ranks' parts into one file. Collective."""
    if _recorded is not None:
        _end_timeline(current())


def _end_timeline(world: World, *, exits: bool = False) -> None:
    """A launcher merges what ranks that exit have left: neither their time nor their energy is spent on it."""
    global _recorded
    if _recorded is None:
        return
    (path, words), _recorded = _recorded, None
    timeline.stop(words.ask_time() if world.node > 0 else None)
    if world.rank > 0:
        words.say_complete()
        return
    together = words.all_complete()
    launched = "FARANDOLE_JOB_DIR" in os.environ
    if launched and exits and path == timeline.path_from_environment():
        return
    # After a crash the launcher merges what there is, once every rank has ended.
    if together or not launched:
        timeline.merge_parts(path, keep_parts=not together)
        if not together:
            _say(
                f"timeline {path}: other ranks still record, and what they do from now on is not in it. "
                f"When all have ended: farandole timeline merge {path}"
            )


# When ranks end


def _install_hooks() -> None:
    global _hooks_installed
    if _hooks_installed:
        return
    _hooks_installed = True
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_forget)
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:  # pragma: no cover - the process ends here
        previous(kind, error, trace)
        _end_everyone(kind, error)

    sys.excepthook = hook


def _forget() -> None:
    """A forked child (a DataLoader worker) is no rank."""
    global _world
    world, _world = _world, None
    if world is not None:
        world.lines.drop()
        for process_set in world.sets.values():
            process_set.detach()


def _end_everyone(kind: type[BaseException], error: BaseException) -> None:
    world = _world
    if world is None or world.size == 1:
        return
    report = {
        "rank": world.rank,
        "type": kind.__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "consequence": isinstance(error, RankFailedError | EngineStopped),
    }
    _write_job_file(world, "exception.json", json.dumps(report))
    timeline.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    if "FARANDOLE_JOB_DIR" in os.environ:
        # The launcher ends the others, and says why; MPI's abort would take its voice away.
        os._exit(1)
    world.transport.abort(1)


def _at_exit() -> None:
    _leave("has exited", exits=True)


def _tell_launcher(world: World) -> None:
    _write_job_file(world, "up", str(os.getpid()))
    _write_job_file(world, "segments", "\n".join(_shared_segments()))


def _say(text: str) -> None:
    print(f"farandole: {text}", file=sys.stderr, flush=True)


def _shared_segments() -> list[str]:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    return sorted({line.split()[5] for line in maps.read_text().splitlines() if " /dev/shm/" in line})


def _write_job_file(world: World, what: str, text: str) -> None:
    folder = os.environ.get("FARANDOLE_JOB_DIR")
    # The launcher counts all ranks, init(comm=...) those it was given.
    rank = os.environ.get("FARANDOLE_LAUNCH_RANK", world.rank)
    if folder and Path(folder).is_dir():
        (Path(folder) / f"rank.{rank}.{what}").write_text(text)
