"""`elastic.run`: a training function that goes on after a failure.

    a rank died         the job ends, `farandole launch --restarts` starts it again, and the function begins
                        with the last commit on disk
    ranks disagreed     every rank has raised and the engine still works: back to the last commit in memory,
                        and on, in the same processes
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from farandole.comm.world import rank, size
from farandole.elastic.commits import FOLDER_VARIABLE, Commits
from farandole.elastic.state import ObjectState, State
from farandole.errors import (
    EngineStopped,
    HorovodInternalError,
    MismatchError,
    RankFailedError,
    StalledError,
)

__all__ = ["run"]

_MOST_TRIES = 3
"""How often the same commit is gone back to in the same processes."""
_ENDING = (RankFailedError, StalledError, EngineStopped)
"""Errors after which a rank is missing: only a new start helps."""

_runs = itertools.count()

Function = TypeVar("Function", bound=Callable[..., Any])


def run(function: Function) -> Function:
    """Decorate `train(state, ...)`: it begins with the last commit, and again after a failure it can outlive."""

    @functools.wraps(function)
    def recovering(state: State, *args: Any, **kwargs: Any) -> Any:
        _begin(state, next(_runs))
        tries, commits = 0, state.commits_made
        while True:
            try:
                state.sync()
                return function(state, *args, **kwargs)
            except (HorovodInternalError, MismatchError) as error:
                tries = 1 if state.commits_made > commits else tries + 1
                commits = state.commits_made
                if isinstance(error, _ENDING) or tries > _MOST_TRIES:
                    raise
                _say(f"{error}\n  back to the last commit ({tries} of {_MOST_TRIES} times)")
                state.restore()
                state.on_reset()

    return cast(Function, recovering)


def _begin(state: State, number: int) -> None:
    """Find the last commit, and say what there is to say about it. Collective."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        _say_once("Start it with farandole launch --restarts 3 to have it go on from its last commit.")
    elif not isinstance(state, ObjectState):
        _say_once(f"{type(state).__name__} is no ObjectState, whose commits are written to disk.")
    else:
        _resume(state, Commits(Path(folder), number, _say))


def _resume(state: ObjectState, commits: Commits) -> None:
    found = state.resume(commits)
    if found is not None:
        others = f", made by {found.ranks} ranks" if found.ranks != size() else ""
        _say(f"going on from commit {found.number}{others}")
    elif os.environ.get("FARANDOLE_RESTART", "0") != "0":
        _say(f"there is no commit in {commits.folder}: starting from the beginning")


@functools.cache
def _say_once(why: str) -> None:
    _say(f"commits stay in memory: a job that loses a rank ends, and the next starts from the beginning. {why}")


def _say(text: str) -> None:
    if rank() == 0:
        print(f"farandole: elastic: {text}", file=sys.stderr, flush=True)
