"""What an elastic run goes back to after a failure: kept in memory by `save()`, on disk by `commit()`."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from farandole.comm.named.collectives import broadcast_object
from farandole.comm.world import rank, size
from farandole.elastic.commits import Commit, Commits
from farandole.elastic.hosts import change_of_hosts
from farandole.errors import CommitError, HostsChangedError

__all__ = ["ObjectState", "State"]


class State(ABC):
    """The contract with `elastic.run`: how a state is saved, put back, and made the same on all ranks.

    `bcast_object` and `get_rank` default to those of farandole.
    """

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        self._bcast_object = bcast_object or broadcast_object
        self._get_rank = get_rank or rank
        self._reset_callbacks: list[Callable[[], object]] = []
        self.commits_made = 0
        """By this process."""

    @abstractmethod
    def save(self) -> None:
        """Keep the present values in memory."""

    @abstractmethod
    def restore(self) -> None:
        """Go back to the values that were saved last."""

    @abstractmethod
    def sync(self) -> None:
        """Give every rank the values of rank 0. Collective."""

    def reset(self) -> None:  # noqa: B027 - most states have nothing to do
        """Called when training goes on in the same processes after a failure."""

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Functions to call when training goes on after a failure, e.g. to adapt the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save, and look whether hosts have changed. Collective: every rank calls it."""
        self.save()
        self.commits_made += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsChangedError on every rank once the job's --hostfile names other hosts. Collective."""
        if "FARANDOLE_HOSTFILE" not in os.environ:
            return
        here = change_of_hosts(os.environ) if self._get_rank() == 0 else None
        change = self._bcast_object(here, 0, "elastic.hosts")
        if change:
            raise HostsChangedError(change)


class ObjectState(State):
    """Values of any kind, as attributes: `ObjectState(epoch=0, losses=[])`.

    Its commits go to disk where `elastic.run` has a folder for them.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **values: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._commits: Commits | None = None
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        self.save()

    def save(self) -> None:
        self._saved = {name: self.take(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        for name, saved in self._saved.items():
            self.put(name, saved)

    def sync(self) -> None:
        plain = {name: getattr(self, name) for name in self._names if self.is_plain(getattr(self, name))}
        for name, value in self._bcast_object(plain, 0, "elastic.values").items():
            setattr(self, name, value)
        self.save()

    def commit(self) -> None:
        """Save, in memory and (under `farandole launch --restarts`) on disk. Collective: every rank calls it."""
        self.save()
        self.commits_made += 1
        if self._commits is not None and self._get_rank() == 0:
            self._commits.write({name: self.pack(name, saved) for name, saved in self._saved.items()}, size())
        self.check_host_updates()

    def resume(self, commits: Commits) -> Commit | None:
        """From now on commit to disk, and on rank 0 go back to the newest commit there; None without any."""
        if self._commits is not None:
            self._commits.close()
        self._commits = commits
        found = commits.newest() if self._get_rank() == 0 else None
        if found is not None:
            self._check(found, commits.folder)
            self._saved = {name: self.unpack(name, value) for name, value in found.values.items()}
            self.restore()
        return found

    def _check(self, found: Commit, folder: Path) -> None:
        if set(found.values) != set(self._names):
            raise CommitError(
                f"commit {found.number} in {folder} holds {_listed(found.values)}, the state has "
                f"{_listed(self._names)}: another version of the script has made it. "
                "Remove the folder to start from the beginning"
            )

    # How values are kept, for states of things that are more than values

    def is_plain(self, value: Any) -> bool:
        """Whether a value travels and is kept as it is, rather than as its state."""
        return True

    def take(self, value: Any) -> Any:
        """What to keep of a value: later changes to it must not reach the copy."""
        return copy.deepcopy(value)

    def put(self, name: str, saved: Any) -> None:
        """Make an attribute what was kept of it."""
        setattr(self, name, copy.deepcopy(saved))

    def pack(self, name: str, saved: Any) -> Any:
        """What of `take()` goes to disk: NumPy arrays in place of a framework's own."""
        return saved

    def unpack(self, name: str, packed: Any) -> Any:
        """What `pack()` was given."""
        return packed


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
