"""Whether the hosts of a running job are still those it was started on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farandole.errors import SettingsError
from farandole.launch.hosts import as_option, parse_hosts, read_hostfile

__all__ = ["change_of_hosts"]


def change_of_hosts(environment: Mapping[str, str]) -> str:
    """What to say once the file a job was given with --hostfile names other hosts; empty until then."""
    try:
        now = read_hostfile(Path(environment["FARANDOLE_HOSTFILE"]))
    except SettingsError:
        return ""  # being edited at this moment
    before = environment["FARANDOLE_HOSTS"]
    if now == parse_hosts(before):
        return ""
    return (
        f"{environment['FARANDOLE_HOSTFILE']} has changed from {before} to {as_option(now)}. A running job can "
        "neither grow nor shrink: this one ends with its last commit made. Start it again, on the new hosts, "
        "with its --commit-dir, and it goes on from there"
    )
