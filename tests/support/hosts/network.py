"""A network of hosts that are namespaces of this machine's kernel.

    head    bridge, 10.77.0.254; an /etc/hosts with everybody's name, which the hosts have as well
    host K  eth0, 10.77.0.K; a hostname; with `clocks`, a monotonic clock that differs from the head's

Each has a /dev/shm of its own; all other files are shared, as on a cluster with a network file system.

A namespace lives as long as a process in it: here `cat`, which waits for the end of a pipe from us. When this
process ends, however it does, so do they, and with them bridge and links. Nothing has a name in the outer
network, so that several networks do not meet.
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from .ownership import OWNER, make_folder, owner, sweep

__all__ = ["Network", "Traffic", "lacking"]

HEAD = "head"
_PREFIX = "10.77.0"
_BRIDGE = "bridge"
_TOOLS = ("ip", "tc", "unshare", "nsenter", "setsid")
_ANSWER_S = 20.0
_END_S = 5.0

_OWN_MEMORY = "mount -t tmpfs shm /dev/shm"
_READY = "echo $$\nexec cat > /dev/null\n"
_HEAD_SCRIPT = f"""
mount --bind "$1" /etc/hosts
{_OWN_MEMORY}
hostname {HEAD}
ip link set lo up
ip link add {_BRIDGE} type bridge
ip addr add {_PREFIX}.254/24 dev {_BRIDGE}
ip link set {_BRIDGE} up
{_READY}"""
# $1 its name, $2 its address, $3 the head's process, $4 the rate of its link or nothing
_HOST_SCRIPT = f"""
{_OWN_MEMORY}
hostname "$1"
ip link set lo up
ip link add eth0 type veth peer name "$1" netns "$3"
ip addr add "$2/24" dev eth0
ip link set eth0 up
nsenter --target "$3" --net ip link set "$1" master {_BRIDGE} up
if [ -n "$4" ]; then
    tc qdisc add dev eth0 root tbf rate "$4" burst 256kb latency 50ms
    nsenter --target "$3" --net tc qdisc add dev "$1" root tbf rate "$4" burst 256kb latency 50ms
fi
{_READY}"""
# Called as ssh is: options, host, words of a command for a shell. As with ssh, the command is no descendant of
# the caller's, which cannot end it by a signal; the pipe tells when it has ended.
_SSH_SCRIPT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case "$1" in
%s
*) echo "no host $1" >&2; exit 255 ;;
esac
shift
{ setsid --fork nsenter $enter -- sh -c "$*" 9>&1 >&3 3>&- | cat; } 3>&1
"""


def lacking() -> str:
    """Why there can be no hosts on this machine; empty where there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts need {' and '.join(missing)}: apt install iproute2 util-linux"
    if os.geteuid() != 0:
        return "hosts are network namespaces, which only root can make"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes a host has sent to and received from all others."""

    sent: int
    received: int

    def __sub__(self, earlier: Self) -> "Traffic":
        return Traffic(self.sent - earlier.sent, self.received - earlier.received)


class Network:
    """A head and named hosts, from `__enter__` to `__exit__`."""

    def __init__(
        self, names: Sequence[str], *, rate: str = "", clocks: Mapping[str, int] | None = None
    ) -> None:
        """`rate` of each link, each way, as tc writes it (`2gbit`); `clocks`: seconds ahead of ours, by host."""
        self._names = list(names)
        self._rate = rate
        self._clocks = dict(clocks or {})
        self._holders: list[subprocess.Popen[str]] = []
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        sweep()
        self._folder = make_folder()
        try:
            self._make()
        except BaseException:
            self._unmake()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self._unmake()

    # Using it

    @property
    def variables(self) -> dict[str, str]:
        """What a job on these hosts needs in its environment."""
        return {
            OWNER: owner(),
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self._folder / "ssh"),
            # The hosts share a kernel, through which MPI libraries would otherwise go.
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": "eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def on_head(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` where jobs are started from, in the current directory."""
        enter = f'exec nsenter {" ".join(self._enter(HEAD))} --wdns="$PWD" -- "$@"'
        return ["sh", "-c", enter, "sh", *words]

    def on(self, host: str, words: Sequence[str]) -> list[str]:
        """The command that runs `words` on a host."""
        return ["nsenter", *self._enter(host), "--", *words]

    def cut(self, host: str) -> None:
        """Pull the cable: what is sent to and from the host is lost, and nobody is told."""
        _run(["nsenter", "--target", str(self._pids[HEAD]), "--net", "ip", "link", "set", host, "down"])

    def mend(self, host: str) -> None:
        _run(["nsenter", "--target", str(self._pids[HEAD]), "--net", "ip", "link", "set", host, "up"])

    def traffic(self, host: str) -> Traffic:
        """What has crossed the host's link so far."""
        told = json.loads(_run(self.on(host, ["ip", "-json", "-statistics", "link", "show", "eth0"])))
        counts = told[0]["stats64"]
        return Traffic(counts["tx"]["bytes"], counts["rx"]["bytes"])

    def shared_memory(self, host: str) -> list[str]:
        """The files in the host's /dev/shm."""
        return _run(self.on(host, ["ls", "/dev/shm"])).split()

    # Making it

    def _make(self) -> None:
        addresses = {name: f"{_PREFIX}.{number}" for number, name in enumerate(self._names, 1)}
        known = {"localhost": "127.0.0.1", HEAD: f"{_PREFIX}.254", **addresses}
        etc_hosts = self._folder / "hosts"
        etc_hosts.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
        unshare = ["unshare", "--mount", "--net", "--uts"]
        self._hold(HEAD, [*unshare, "sh", "-euc", _HEAD_SCRIPT, "sh", str(etc_hosts)])
        for name in self._names:
            self._hold(name, self._host_command(name, addresses[name]))
        self._write_ssh()

    def _host_command(self, name: str, address: str) -> list[str]:
        head = str(self._pids[HEAD])
        unshare = ["unshare", "--mount", "--net", "--uts"]
        if name in self._clocks:
            unshare += ["--time", f"--monotonic={self._clocks[name]}", "--fork", "--kill-child"]
        script = ["sh", "-euc", _HOST_SCRIPT, "sh", name, address, head, self._rate]
        return ["nsenter", "--target", head, "--mount", "--", *unshare, *script]

    def _hold(self, name: str, command: list[str]) -> None:
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {OWNER: owner()}, start_new_session=True,
        )  # fmt: skip
        self._holders.append(holder)
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        if not said.isdecimal():
            raise RuntimeError(f"host {name} cannot be made: {said or 'no answer'} {holder.stdout.read().strip()}")
        self._pids[name] = int(said)

    def _enter(self, name: str) -> list[str]:
        clock = ["--time"] if name in self._clocks else []
        return ["--target", str(self._pids[name]), "--mount", "--net", "--uts", *clock]

    def _write_ssh(self) -> None:
        cases = [f"{name}) enter='{' '.join(self._enter(name))}' ;;" for name in self._names]
        path = self._folder / "ssh"
        path.write_text(_SSH_SCRIPT % "\n".join(cases))
        path.chmod(0o755)

    def _unmake(self) -> None:
        for holder in reversed(self._holders):
            assert holder.stdin is not None and holder.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                holder.stdin.close()
            try:
                holder.wait(_END_S)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()
            holder.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
