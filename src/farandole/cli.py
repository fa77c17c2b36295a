"""The `farandole` command: one verb, one function, no logic of its own.

To add a verb, write `add_<verb>(verbs)` that declares its options and names the function to call with
`set_defaults(run=...)`, and put it into `_VERBS`. Only the verb that was typed is imported: `farandole launch` starts
in no time, and where NumPy is missing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole import __version__
from farandole.errors import FarandoleError, SettingsError

if TYPE_CHECKING:
    from farandole.results.reading import Study

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_doctor", "add_launch", "main"]

_EXAMPLES = """\
examples:
  farandole doctor                                  is everything here that ranks need?
  farandole launch -n 4 -- python train.py          four ranks on this machine
  farandole launch -H a:2,b:2 -- python train.py    two on each of two hosts
  farandole launch -n 2 --timeline trace.json -- python train.py
  farandole run nt3 -n 2                            train a CANDLE benchmark, from files to accuracy
  farandole predict out/nt3-weak --ranks 512        what more ranks would do, and how sure that is
  farandole power -- python train.py                joules, and how they are known
  farandole observe -- python train.py              where a PyTorch or Keras script spends its time
  farandole data make nt3 --out data                files to train on
"""

_LAUNCH_EXAMPLES = """\
examples:
  farandole launch -n 4 -- python train.py --epochs 3
  farandole launch -np 4 python train.py            as with horovodrun: the -- may be left out
  farandole launch --hostfile hosts -- python train.py
      a file with one host a line: `node1 slots=2` or `node1:2`
  farandole launch -n 2 --output-dir run1 -- python train.py
      run1/rank.0.out, run1/rank.0.err, ... and run1/run.json instead of the terminal
  farandole launch -n 4 --restarts 3 -- python train.py
      a script with hvd.elastic.run goes on from its last commit when a rank has died

When a rank fails, all are ended, the first to fail is named, and its exit code is passed on.
"""


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(words[:1])
    try:
        options, unknown = parser.parse_known_args(words)  # which may import a user's file, to learn its parameters
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _discard_unread():
            raise
        return 128 + signal.SIGPIPE
    except FarandoleError as error:
        print(f"farandole: {error}\n", end="", file=sys.stderr)  # in one write: other ranks may say the same
        return 2 if isinstance(error, SettingsError) else 1


def _discard_unread() -> bool:
    """Whether nobody reads what we print any more, as after `| head -1`; what is left of it then goes nowhere."""
    poll = select.poll()
    for stream in (1, 2):
        poll.register(stream, 0)
    unread = [stream for stream, event in poll.poll(0) if event & select.POLLERR]
    for stream in unread:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream)
        os.close(nowhere)
    return bool(unread)


def _parser(first: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Of the verb that was typed; of all, where none was."""
    parser = argparse.ArgumentParser(
        prog="farandole",
        description="Train neural networks on MPI machines, and know where every second and every joule goes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"farandole {__version__}")
    parser.set_defaults(pages=_write_page, papers=_papers)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in first if first and first[0] in _VERBS else _VERBS:
        importlib.import_module(_VERBS[verb]).__dict__[f"add_{verb}"](verbs)
    return parser


def _write_page(folder: Path) -> Path | None:
    """For verbs that leave results, which know nothing of pages; None where it cannot be made."""
    from farandole.report import write_page_if_possible

    return write_page_if_possible(folder)


def _papers() -> dict[str, Study]:
    """Others' tables by name, for what predicts them, which knows nothing of who keeps them."""
    from farandole.study.importing import paper_study, papers_tables

    return {name: paper_study(table) for name, table in papers_tables().items()}


def _verb(verbs: Verbs, name: str, help_line: str, **details: Any) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name,
        help=help_line,
        description=details.pop("description", help_line[0].upper() + help_line[1:] + "."),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **details,
    )


_OF_ANOTHER_SIZE = ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script")


def add_launch(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "launch", "start a command on N ranks",
        usage="farandole launch -n N [options] [--] COMMAND ...", epilog=_LAUNCH_EXAMPLES,
    )  # fmt: skip
    add = verb.add_argument
    # fmt: off
    add("-n", "-np", "--ranks", type=int, default=0, metavar="N", help="how many; default: all slots of the hosts")
    where = verb.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="a:2,b:2", help="hosts and how many ranks each takes")
    where.add_argument("--hostfile", "-hostfile", type=Path, metavar="FILE", help="the same, one host a line")
    add("--timeline", "--timeline-filename", type=Path, metavar="FILE", help="record all ranks in Chrome's format")
    add("--power", action="store_true", help="sample the power of every node into the timeline")
    add("--output-dir", "--output-filename", type=Path, metavar="DIR",
        help="one file a rank and a run record, not the terminal")
    add("--threads", type=int, metavar="T", help="threads a rank; default: the host's cores / its ranks")
    add("--bind", choices=("core", "node", "none"), default="none", help="each rank to its own cores or NUMA node")
    add("--no-tune", dest="tune", action="store_false", help="leave the C library's allocator as it is")
    add("--stall-warning", "--stall-check-warning-time-seconds", type=float, metavar="S",
        help="name the ranks and tensors a collective waits for after S seconds")
    add("--stall-abort", "--stall-check-shutdown-time-seconds", type=float, metavar="S",
        help="end the job when a collective waits S seconds")
    add("--no-stall-check", dest="stall_check", action="store_false", help="neither of these two")
    add("--fusion-threshold-mb", type=float, metavar="MB", help="how much is packed into one buffer")
    add("--start-timeout", type=float, default=120.0, metavar="S", help="how long ranks may take to start")
    add("--time-limit", type=float, metavar="S",
        help="scripts that keep checkpoints save one and end before S seconds are over")
    add("--grace", type=float, default=2.0, metavar="S",
        help="after SIGTERM or ctrl-c, how long ranks may take to save and end; default: 2")
    add("--restarts", "--reset-limit", type=int, default=0, metavar="K",
        help="start a job that has lost a rank again, K times at most; elastic runs go on from their last commit")
    add("--commit-dir", type=Path, metavar="DIR", default=os.environ.get("FARANDOLE_COMMIT_DIR"),
        help="where elastic runs keep commits, seen by all hosts; default: a folder here, removed in the end")
    add(*_OF_ANOTHER_SIZE, dest="another_size", metavar="", help=argparse.SUPPRESS)
    add("--check-build", action="store_true", help="what `farandole doctor` says, and nothing is launched")
    add("--verbose", action="store_true", help="say what is started and how it ended")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what every rank runs")
    # fmt: on
    verb.set_defaults(run=_launch)


def _launch(options: argparse.Namespace) -> int:
    from farandole.launch.allocation import choose_hosts
    from farandole.launch.launcher import launch
    from farandole.launch.settings import LaunchSettings

    if options.another_size is not None:
        raise SettingsError(
            f"{', '.join(_OF_ANOTHER_SIZE)}: a running job can neither grow nor shrink. With --restarts K one that "
            "has lost a rank is started again, and with its --commit-dir one can be started on other hosts."
        )
    if options.check_build:
        return _doctor(argparse.Namespace(json=False))
    return launch(
        LaunchSettings(
            command=options.command[1:] if options.command[:1] == ["--"] else options.command,
            ranks=options.ranks,
            hosts=choose_hosts(options.hosts, options.hostfile, os.environ),
            hostfile=options.hostfile,
            timeline=options.timeline,
            power=options.power,
            output_dir=options.output_dir,
            threads=options.threads,
            bind=options.bind,
            tune=options.tune,
            stall_warning_s=options.stall_warning,
            stall_abort_s=options.stall_abort,
            stall_check=options.stall_check,
            fusion_threshold_mb=options.fusion_threshold_mb,
            start_timeout_s=options.start_timeout,
            time_limit_s=options.time_limit,
            grace_s=options.grace,
            restarts=options.restarts,
            commit_dir=options.commit_dir,
            verbose=options.verbose,
        )
    )


def add_doctor(verbs: Verbs) -> None:
    verb = _verb(verbs, "doctor", "say what was found here, and what to type for what is missing")
    verb.add_argument("--json", action="store_true", help="the same for programs")
    verb.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from farandole.doctor import examine

    examination = examine()
    print(examination.as_json() if options.json else examination.as_text())
    return examination.exit_code


_VERBS = {
    "launch": "farandole.cli",
    "run": "farandole.train.command",
    "doctor": "farandole.cli",
    "timeline": "farandole.observe.command",
    "trace": "farandole.observe.command",
    "observe": "farandole.observe.command",
    "power": "farandole.observe.power.command",
    "data": "farandole.workloads.command",
    "study": "farandole.study.command",
    "report": "farandole.report.command",
    "predict": "farandole.predict.command",
    "bench": "farandole.study.comm.command",
    "checkpoint": "farandole.checkpoint.command",
}
"""And the module of each."""
