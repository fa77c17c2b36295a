"""Everything that lives between init() and shutdown()."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farandole.comm.bytes import waiting
from farandole.comm.bytes.transport import Transport
from farandole.comm.channels.transfers import open_transfers
from farandole.comm.gradients.interface import GradientPlan
from farandole.comm.named.engine import Engine
from farandole.comm.named.process_sets import ProcessSet, Remains, SetRuntime
from farandole.comm.node.exchange import close_memory
from farandole.comm.node.layout import Layout, node_cores
from farandole.comm.node.neighbours import alive
from farandole.comm.world.launched import is_launched
from farandole.comm.world.lifelines import Lifelines, open_lifelines
from farandole.comm.world.stall_settings import StallSettings
from farandole.comm.world.watchdog import Watchdog
from farandole.errors import NotInitializedError, SettingsError
from farandole.launch.allocator import tune_allocator

__all__ = ["World", "say"]

FAREWELL_S = 2.0
_DEFAULT_FUSION_BYTES = 64 << 20


class World:
    """One set of ranks, from its start to its end. Collective to make."""

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
        self.plans: weakref.WeakKeyDictionary[GradientPlan, dict[str, Any]] = weakref.WeakKeyDictionary()
        """Of gradients, with what they are, in the order in which they were made."""
        self.alone: list[ProcessSet] = []  # of this rank, where it trains outside a set
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
            transport.duplicate(),
            neighbours,
            self.lines,
            self._pending_keys,
            self._done_keys,
            StallSettings.from_environment(),
        )

    def _open_lines(self) -> Lifelines:
        """Lines to ranks of other nodes; the launcher of ours sees every rank's end by itself."""
        others = [] if is_launched() else [ranks[0] for ranks in self.layout.nodes[1:]]
        lines, unwatched = open_lifelines(self.transport, others) if others else (Lifelines({}), [])
        self.record["unwatched"] = unwatched
        if unwatched and self.rank == 0:
            say(
                f"rank {', '.join(map(str, unwatched))} cannot connect to rank 0's node: nobody sees it when the only rank "
                "of such a node is killed. Let the launcher end the job then, e.g. srun --kill-on-bad-exit=1"
            )
        return lines

    def _neighbours(self, node: Transport) -> dict[int, int]:
        """Process numbers of the node's other ranks, where they mean the same thing here."""
        place = str(Path("/proc/self/ns/pid").readlink()) if Path("/proc/self/ns/pid").exists() else ""
        found = node.allgather_object((self.rank, os.getpid(), place))
        return {r: pid for r, pid, where in found if r != self.rank and where == place and alive(pid)}

    def add_plan(self, plan: GradientPlan, owner: object) -> None:
        """Know it while the owner has it."""
        plan.belong_to(owner)
        self.plans[plan] = plan.describe()
        self.record["plans"] = [told for one, told in list(self.plans.items()) if not one.retired]

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
        any_thread = self.transport.any_thread

        def drive() -> None:
            if any_thread:
                engine.advance()
                self.transfers.advance()  # its letters stand in the way of the others
            elif threading.current_thread() is threading.main_thread():
                self._drive_all()

        def tell() -> None:
            for plan in list(self.plans):
                if plan.engine is engine:
                    plan.tell_joined()

        engine.on_join = tell
        waiting.call_while_waiting(drive)

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
        waiting.call_while_waiting(None)
        # Threads that outlive the interpreter can crash it.
        for plan in list(self.plans):
            plan.retire()
        self.watchdog.stop(reason)  # its farewell tells what was pending
        self.transfers.close(reason)
        for process_set in [*self.sets.values(), *self.alone]:
            if process_set.included():
                process_set.runtime().close(reason)
                self._remains.append(process_set.runtime().remains())
            process_set.detach()
        close_memory()
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


def _setting(name: str, default: int) -> int:
    text = os.environ.get(f"FARANDOLE_{name}", os.environ.get(f"HOROVOD_{name}"))
    try:
        return default if text is None else int(text)
    except ValueError:
        raise SettingsError(f"FARANDOLE_{name}={text!r}: give a whole number of bytes") from None


def say(text: str) -> None:
    print(f"farandole: {text}", file=sys.stderr, flush=True)
