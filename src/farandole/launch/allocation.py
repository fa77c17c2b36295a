"""The hosts a batch system has given to this job, where the user names none: Slurm, PBS, LSF."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from farandole.errors import LaunchError
from farandole.launch.hosts import Host, parse_hosts, read_hostfile

__all__ = ["allocated_hosts", "choose_hosts"]

_ANSWER_S = 30.0
_HOSTFILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")


def choose_hosts(hosts: str | None, hostfile: Path | None, environment: Mapping[str, str]) -> list[Host]:
    """The hosts the user names, otherwise those of the allocation we run in; empty means this machine."""
    if hosts is not None:
        return parse_hosts(hosts)
    if hostfile is not None:
        return read_hostfile(hostfile)
    return allocated_hosts(environment)


def allocated_hosts(environment: Mapping[str, str]) -> list[Host]:
    """An allocation's hosts and slots; empty where there is none."""
    return _slurm(environment) or next((read_hostfile(Path(f)) for f in _files(environment)), [])


def _files(environment: Mapping[str, str]) -> list[str]:
    """Files with one line a slot."""
    named = [environment[name] for name in _HOSTFILES if environment.get(name)]
    return [name for name in named if Path(name).is_file()]


def _slurm(environment: Mapping[str, str]) -> list[Host]:
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    tasks = _per_node(environment.get("SLURM_TASKS_PER_NODE", ""))
    if not nodes or not tasks:
        return []
    names = _node_names(nodes)
    if len(names) != len(tasks):
        raise LaunchError(
            f"SLURM_JOB_NODELIST={nodes} has {len(names)} nodes, SLURM_TASKS_PER_NODE has {len(tasks)}. "
            "Name the hosts: farandole launch --hosts a:2,b:2"
        )
    return [Host(name, count) for name, count in zip(names, tasks)]


def _per_node(text: str) -> list[int]:
    """Slurm's notation: `2(x3),1` is 2, 2, 2, 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


def _node_names(nodes: str) -> list[str]:
    if not set("[,") & set(nodes):
        return [nodes]
    words = ["scontrol", "show", "hostnames", nodes]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(
            f"SLURM_JOB_NODELIST={nodes} cannot be expanded ({error}). "
            "Name the hosts: farandole launch --hosts a:2,b:2"
        ) from error
    return answer.stdout.split()
