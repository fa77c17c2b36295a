"""`farandole checkpoint ls`, `verify` and `show`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.checkpoint.folder import Entry

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_checkpoint"]

_EXAMPLES = """\
examples:
  farandole checkpoint ls run1                            what there is
  farandole checkpoint verify run1                        read every byte and compare it with its checksum
  farandole checkpoint show run1                          what the newest holds
  farandole checkpoint show run1/00000007-step-1200       what that one holds
"""
_WIDEST = 60


def add_checkpoint(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "checkpoint", help="list checkpoints, check them, and see what they hold", description="Look at checkpoints.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    actions = verb.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add(actions, "ls", "list the checkpoints of a folder", _list)
    _add(actions, "verify", "read every byte of them and compare it with its checksum", _verify)
    _add(actions, "show", "say what a checkpoint, or the newest of a folder, holds", _show)


def _add(actions: Verbs, name: str, help_line: str, run: Callable[[argparse.Namespace], int]) -> None:
    description = f"{help_line[0].upper()}{help_line[1:]}."
    action = actions.add_parser(name, help=help_line, description=description, allow_abbrev=False)
    action.add_argument("folder", type=Path, metavar="DIR", help="of checkpoints, or of one")
    action.add_argument("--json", action="store_true", help="the same for programs")
    action.set_defaults(run=run)


def _list(options: argparse.Namespace) -> int:
    rows = [_summary(entry) for entry in _found(options.folder)]
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        print(_line(row))
    return 0


def _verify(options: argparse.Namespace) -> int:
    rows = [_verdict(entry) for entry in _found(options.folder) if entry.kind != _unfinished()]
    if options.json:
        print(json.dumps(rows, indent=1))
    for row in rows if not options.json else []:
        print(f"{row['name']}: {row['state']}")
    return int(any(row["state"] != "whole" for row in rows))


def _show(options: argparse.Namespace) -> int:
    from farandole.checkpoint.blocks import Damaged
    from farandole.checkpoint.folder import look_into
    from farandole.checkpoint.reading import entry_at
    from farandole.errors import CheckpointError

    entry = entry_at(options.folder)
    try:
        state, arrays = look_into(entry)
    except Damaged as why:
        raise CheckpointError(f"{entry.path} is damaged: {why}") from why
    summary = _summary(entry)
    if options.json:
        told = {name: {"dtype": info.dtype, "shape": info.shape} for name, info in arrays.items()}
        print(json.dumps({**summary, "arrays": told, "state": state}, indent=1))
        return 0
    print(_line(summary))
    if summary.get("energy_reason"):
        print(f"  joules: unknown ({summary['energy_reason']})")
    for name, info in sorted(arrays.items()):
        print(f"  {name:{min(_WIDEST, max(map(len, arrays)))}}  {info}")
    for name, value in state["parts"].items():
        rest = _without_arrays(value)
        if rest is not None:
            print(f"  {name}: {_shortened(rest)}")
    return 0


def _found(folder: Path) -> list[Entry]:
    """Those of a folder, or the one it is."""
    from farandole.checkpoint.folder import entries
    from farandole.errors import CheckpointError

    inside = entries(folder.absolute())
    itself = [entry for entry in entries(folder.absolute().parent) if entry.path == folder.absolute()]
    if not inside and not itself:
        raise CheckpointError(f"{folder} is no checkpoint, and has none")
    return itself or inside


def _unfinished() -> str:
    from farandole.checkpoint.folder import UNFINISHED

    return UNFINISHED


def _summary(entry: Entry) -> dict[str, Any]:
    from farandole.checkpoint.blocks import Damaged
    from farandole.checkpoint.folder import load_manifest

    row: dict[str, Any] = {"name": entry.path.name, "step": entry.step}
    if entry.kind == _unfinished():
        return row | {"state": "unfinished"}
    try:
        manifest = load_manifest(entry)
    except Damaged as why:
        return row | {"state": f"damaged: {why}"}
    return row | {
        "state": "damaged" if entry.kind else "",
        "epoch": manifest.epoch,
        "ranks": manifest.ranks,
        "bytes": manifest.nbytes,
        "saved_at": manifest.saved_at,
        "train_s": manifest.train_s,
        "energy_j": manifest.energy_j,
        "energy_provenance": manifest.energy_provenance,
        "energy_reason": manifest.energy_reason,
        "metrics": manifest.metrics,
    }


def _line(row: dict[str, Any]) -> str:
    if "bytes" not in row:
        return f"{row['name']}  {row['state']}"
    saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["saved_at"]))
    metrics = "".join(f"  {name} {'none' if value is None else f'{value:.6g}'}" for name, value in row["metrics"].items())
    mark = "~" if row["energy_provenance"] == "modelled" else ""
    energy = "" if row["energy_j"] is None else f"  {mark}{row['energy_j']:,.0f} J{' modelled' if mark else ''}"
    size = f"{row['bytes']:>13,} bytes  {row['ranks']} ranks  epoch {row['epoch']}  {row['train_s']:,.0f} s"
    return f"{saved}  {size}{energy}  {row['name']}{metrics}" + f"  {row['state']}" * bool(row["state"])


def _verdict(entry: Entry) -> dict[str, Any]:
    from farandole.checkpoint.blocks import Damaged
    from farandole.checkpoint.folder import check

    try:
        check(entry)
    except (Damaged, OSError) as why:
        return {"name": entry.path.name, "state": f"damaged: {why}"}
    return {"name": entry.path.name, "state": "whole"}


def _without_arrays(value: Any) -> Any:
    """What is left of a state; None for nothing."""
    if isinstance(value, dict):
        if set(value) & {"$array", "$tensor"}:
            return None
        found = {key: _without_arrays(item) for key, item in value.items()}
        return {key: item for key, item in found.items() if item is not None} or None
    if isinstance(value, list):
        items = [_without_arrays(item) for item in value]
        return [item for item in items if item is not None] or None
    return value


def _shortened(part: Any) -> str:
    text = json.dumps(part)
    return text if len(text) <= 2 * _WIDEST else f"{text[: 2 * _WIDEST]} ..."
