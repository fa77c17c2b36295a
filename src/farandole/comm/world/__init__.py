"""The world of ranks: starting, asking who and where, ending; the watchdog, and what tells it of ranks that are gone."""

from farandole.comm.current import current
from farandole.comm.world.asking import (
    add_process_set,
    cross_rank,
    cross_size,
    describe,
    get_process_set,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    size,
)
from farandole.comm.world.lifecycle import init, shutdown
from farandole.comm.world.recording import start_timeline, stop_timeline
from farandole.comm.world.state import World

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
