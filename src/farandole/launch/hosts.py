"""Which hosts take how many ranks: `a:2,b:2`, or a file in MPICH's, Open MPI's or Horovod's style."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import SettingsError

__all__ = ["Host", "all_local", "as_option", "machinefile", "parse_hosts", "read_hostfile", "total_slots"]

_HOST = re.compile(r"(?P<name>[^\s:,=]+)(?::(?P<colon>\S+)|(?P<words>(?:\s+\w+=\S+)+))?")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1"})


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """Hosts of an option such as `--hosts a:2,b:2`."""
    return _merged(_parse(part.strip(), f"--hosts {text}") for part in text.split(","))


def read_hostfile(path: Path) -> list[Host]:
    """Hosts of a file with one a line: `a:2`, `a slots=2` or `a`; `#` starts a comment."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--hostfile {path}: cannot be read: {error}") from error
    stripped = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    hosts = _merged(_parse(line, f"--hostfile {path}, line {number}") for number, line in stripped if line)
    if not hosts:
        raise SettingsError(f"--hostfile {path}: names no host. Write one a line, e.g. `node1 slots=2`.")
    return hosts


def as_option(hosts: Iterable[Host]) -> str:
    """The hosts as `--hosts` takes them."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def total_slots(hosts: Iterable[Host]) -> int:
    return sum(host.slots for host in hosts)


def all_local(hosts: Iterable[Host]) -> bool:
    """True where every rank starts on this machine, whose name may be written with its domain or without; so is an empty list."""
    own = socket.gethostname()
    here = _LOCAL_NAMES | {own, own.partition(".")[0]}
    return all(host.name in here or host.name.partition(".")[0] == own for host in hosts)


def machinefile(hosts: Iterable[Host], slots_word: str) -> str:
    """The hosts as mpiexec reads them, with `:` or ` slots=` before the number."""
    return "".join(f"{host.name}{slots_word}{host.slots}\n" for host in hosts)


def _parse(text: str, where: str) -> Host:
    found = _HOST.fullmatch(text)
    if found is None:
        raise SettingsError(f"{where}: {text!r} is not a host. Write `node1:2` or `node1 slots=2`.")
    words = dict(word.split("=", 1) for word in (found["words"] or "").split())
    return Host(found["name"], _slots(found["colon"] or words.get("slots", "1"), text, where))


def _slots(number: str, text: str, where: str) -> int:
    if not number.isdecimal() or int(number) == 0:
        raise SettingsError(f"{where}: {text!r} has {number!r} slots; expected a whole number from 1 on.")
    return int(number)


def _merged(hosts: Iterable[Host]) -> list[Host]:
    """One entry a host, in the order of first appearance: a repeated line adds its slots."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]
