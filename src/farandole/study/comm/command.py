"""`farandole bench comm`: on ranks it starts, or on those it was started on."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import FarandoleError, LaunchError, SettingsError
from farandole.study.comm.settings import COLLECTIVES, DEFAULT_SIZES, CommSettings, parse_sizes

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_comm"]

_EXAMPLES = """\
examples:
  farandole bench comm -n 2                                 two ranks on this machine; half a minute
  farandole bench comm -H a:2,b:2 --json comm.json          within a node and across nodes
  srun -n 8 farandole bench comm --json comm.json           on ranks that another launcher starts
  farandole bench comm -n 4 --sizes 4K,1M --seconds 5
  farandole bench comm -n 2 --collectives allreduce,broadcast,allgather,reducescatter
"""
_ALONE = (
    "one rank has nobody to communicate with. Type e.g. farandole bench comm -n 2, or start it on several ranks: "
    "srun -n 4 farandole bench comm"
)


def add_comm(actions: Verbs) -> None:
    action = actions.add_parser(
        "comm", help="latency and bandwidth of collectives, beside MPI's own", epilog=_EXAMPLES,
        description="Latency and bandwidth of collectives over sizes, beside MPI's own, with alpha and beta fitted.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = action.add_argument
    # fmt: off
    add("-n", "-np", "--ranks", type=int, metavar="N", help="start N ranks; default: those this was started on")
    where = action.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="a:2,b:2", help="start them on these hosts, so many on each")
    where.add_argument("--hostfile", type=Path, metavar="FILE", help="the same, one host a line")
    add("--sizes", default=DEFAULT_SIZES, metavar="8,4K,1M", help=f"bytes, or a range by powers of 4; default: {DEFAULT_SIZES}")
    add("--collectives", default="allreduce", metavar="a,b", help=f"some of {','.join(COLLECTIVES)}; default: allreduce")
    add("--seconds", type=float, default=2.0, metavar="S", help="how long to measure each size; default: 2")
    add("--json", type=Path, metavar="FILE", help="also write everything to FILE")
    # fmt: on
    action.set_defaults(run=_comm)


def _comm(options: argparse.Namespace) -> int:
    starts = options.ranks is not None or options.hosts is not None or options.hostfile is not None
    return _on_new_ranks(options) if starts else _on_these_ranks(options)


def _settings(options: argparse.Namespace) -> CommSettings:
    """Everything that can be wrong with what was typed is found here."""
    from farandole.study.comm.results import check_writable

    settings = CommSettings(
        sizes=parse_sizes(options.sizes),
        collectives=[word.strip() for word in options.collectives.split(",")],
        seconds=options.seconds,
    )
    if options.json is not None:
        check_writable(options.json, "--json")
    return settings


def _show(results: dict[str, Any], path: Path | None) -> None:
    from farandole.study.comm.results import write
    from farandole.study.comm.text import as_text

    print(as_text(results))
    if path is not None:
        write(results, path)


def _on_new_ranks(options: argparse.Namespace) -> int:
    from farandole.launch.allocation import choose_hosts
    from farandole.launch.hosts import all_local
    from farandole.launch.launcher import launch
    from farandole.launch.settings import LaunchSettings

    if options.ranks is not None and options.ranks < 2:
        raise SettingsError(f"-n {options.ranks}: {_ALONE}")
    settings = _settings(options)
    hosts = choose_hosts(options.hosts, options.hostfile, os.environ)
    # Rank 0 may be on another host, which then sees this folder as well: that is asked of all hosts.
    folder = None if all_local(hosts) else Path.cwd()
    with tempfile.TemporaryDirectory(prefix=".farandole-bench-", dir=folder) as made:
        out = Path(made, "results.json")
        program = [
            sys.executable,
            "-m",
            "farandole.study.comm.on_ranks",
            json.dumps(asdict(settings)),
            str(out),
        ]
        job = LaunchSettings(command=program, ranks=options.ranks or 0, hosts=hosts)
        if job.ranks < 2:
            raise SettingsError(_ALONE)
        code = launch(job)
        if code:
            again = shlex.join(["farandole", *sys.argv[1:]])
            print(f"farandole: not measured to the end. Type again: {again}", file=sys.stderr)
            return code
        if not out.exists():
            raise LaunchError(f"rank 0's results are not in {made}: all hosts must see this folder.")
        _show(json.loads(out.read_text()), options.json)
    return 0


def _on_these_ranks(options: argparse.Namespace) -> int:
    import farandole
    from farandole.study.comm.on_ranks import measure

    farandole.init()
    first = farandole.rank() == 0
    settings, problem = farandole.broadcast_object(_checked(options) if first else None)
    if problem is not None:
        if first:
            raise problem
        return 2
    results = measure(settings)
    if first:
        _show(results, options.json)
    farandole.shutdown()
    return 0


def _checked(options: argparse.Namespace) -> tuple[CommSettings | None, FarandoleError | None]:
    """On rank 0, for all: a mistake is told once."""
    import farandole

    try:
        if farandole.size() == 1:
            raise SettingsError(_ALONE)
        return _settings(options), None
    except SettingsError as error:
        return None, error
