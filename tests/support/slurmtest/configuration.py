"""The files a cluster of two nodes on one machine needs."""

import os
import pwd
import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

__all__ = ["NODES", "write_configuration"]

NODES = ("n1", "n2")
CORES = 2
"""What each node claims to have, whatever the machine has."""
KEY_BYTES = 128


def write_configuration(folder: Path) -> Path:
    """Make the folder ready for the daemons; the path of slurm.conf."""
    folder.chmod(0o711)  # munged refuses a socket that other users could not reach
    for name in ("state", *(f"spool.{node}" for node in NODES)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(KEY_BYTES))
    configuration = folder / "slurm.conf"
    configuration.write_text(_slurm_conf(folder, _free_ports(1 + len(NODES))))
    return configuration


def _slurm_conf(folder: Path, ports: Sequence[int]) -> str:
    user, host = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES}"
        for node, port in zip(NODES, ports[1:])
    )
    # Without control groups, accounting and binding: they need root, systemd or a database.
    return f"""\
ClusterName=farandole
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
KillWait=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=5 State=UP
"""


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all are held until the last is known, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
