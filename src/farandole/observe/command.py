"""`farandole observe`, `farandole timeline` and `farandole trace`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import FarandoleError, SettingsError

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_observe", "add_timeline", "add_trace", "check_writable"]

_OBSERVE_EXAMPLES = """\
examples:
  farandole observe -- python train.py
  farandole observe -- torchrun --nproc-per-node 2 train.py
  farandole observe --out run1 --power -- python train.py

For scripts of PyTorch (DDP too) and Keras 3, which need not be changed and need not know farandole: the seconds in data
loading, forward, backward, optimizer and collectives of every rank. DIR/timeline.json opens in Perfetto, and
`farandole trace show DIR/timeline.json` prints its figures again. The figures go to standard error, the exit code is the
command's. What is seen and what is not: docs/traces.md.
"""


def add_observe(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "observe", "see where a PyTorch or Keras script spends its time, from outside",
        usage="farandole observe [options] -- COMMAND ...", epilog=_OBSERVE_EXAMPLES,
    )  # fmt: skip
    verb.add_argument("--out", type=Path, metavar="DIR", help="where the timeline goes; default: out/observe-TIME")
    verb.add_argument("--power", action="store_true", help="sample the power of this node, too")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write the figures for programs as well")
    verb.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    verb.set_defaults(run=_observe)


def add_timeline(verbs: Verbs) -> None:
    from farandole.observe.merge import LIMIT_BYTES

    verb = _verb(verbs, "timeline", "work on recorded timelines")
    actions = verb.add_subparsers(title="actions", metavar="ACTION", required=True)
    merge = _verb(actions, "merge", "make one file of the parts that ranks have left")
    merge.add_argument("file", type=Path, metavar="FILE", help="as it was given to --timeline")
    merge.add_argument(
        "--limit-mb", type=float, default=LIMIT_BYTES / 1e6, metavar="MB",
        help="steps are summed up where the file would be larger; default: %(default)g",
    )  # fmt: skip
    merge.set_defaults(run=_merge)


def add_trace(verbs: Verbs) -> None:
    verb = _verb(verbs, "trace", "say what a timeline shows: communication, waits, data stalls, components")
    actions = verb.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = _verb(actions, "show", "print the figures of a timeline")
    show.add_argument("file", type=Path, metavar="FILE", help="a merged timeline")
    show.add_argument("--json", action="store_true", help="the same for programs")
    show.set_defaults(run=_show)


def _verb(verbs: Verbs, name: str, help_line: str, **details: Any) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name, help=help_line, description=help_line[0].upper() + help_line[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **details,
    )  # fmt: skip


def _merge(options: argparse.Namespace) -> int:
    from farandole.observe.merge import merge_parts

    if not options.limit_mb > 0:
        raise SettingsError(f"--limit-mb {options.limit_mb:g}: expected megabytes above 0, e.g. --limit-mb 48")
    merged = merge_parts(options.file.absolute(), int(options.limit_mb * 1e6))
    if merged is None:
        raise FarandoleError(f"{options.file} has no parts to merge: no rank has recorded into it.")
    print(merged)
    return 0


def _show(options: argparse.Namespace) -> int:
    from farandole.observe.analysis import analyse, as_text

    found = analyse(options.file)
    print(json.dumps(found) if options.json else as_text(found))
    return 0


def _observe(options: argparse.Namespace) -> int:
    from farandole.observe.observing import observe
    from farandole.processes.child import CannotStart

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise SettingsError("no command was given: type e.g. farandole observe -- python train.py")
    if options.json is not None:
        check_writable("--json", options.json)
    folder = options.out or Path("out", f"observe-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    try:
        observed = observe(command, folder, power=options.power)
    except CannotStart as error:
        print(f"farandole: {error}", file=sys.stderr)
        return error.exit_code
    _tell(observed.timeline, options.json)
    return observed.exit_code


def _tell(timeline: Path | None, json_file: Path | None) -> None:
    from farandole.observe.analysis import analyse, as_text

    if timeline is None:
        print(
            "farandole: nothing was seen: no process of the command trained with PyTorch or Keras, or ran Python at all",
            file=sys.stderr,
        )
        return
    found: Mapping[str, Any] = analyse(timeline)
    print(f"\n{as_text(found)}\n\ntimeline  {timeline}", file=sys.stderr)
    if json_file is not None:
        json_file.write_text(json.dumps(found) + "\n")


def check_writable(option: str, path: Path) -> None:
    """SettingsError where nothing could be written there."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SettingsError(f"{option} {path}: there is no folder {folder}")
    if path.is_dir():
        raise SettingsError(f"{option} {path} is a folder. Give the name of a file, e.g. {option} {path / 'figures.json'}")
    reason = _why_not(path)
    if reason:
        raise SettingsError(f"{option} {path}: cannot be written ({reason})")


def _why_not(path: Path) -> str:
    """What is there is not opened: it may be a pipe that somebody reads."""
    if path.exists():
        return "" if os.access(path, os.W_OK) else "Permission denied"
    try:
        path.touch()
        path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""
