"""The hosts themselves: apart from each other and from this machine, and gone when they are no longer needed."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hosts
from hosts import Network
from ranktest.processes import wait_until

# Makes a network, starts something on one of its hosts that heeds no end, and waits to be killed.
OWNER = """
import os, subprocess, time
from hosts import Network
with Network(["alpha"]) as network:
    started = subprocess.Popen(network.on("alpha", ["sleep", "300"]), env=os.environ | network.variables)
    print(started.pid, flush=True)
    time.sleep(300)
"""


def said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


def exists(pid: int) -> bool:
    """True for a process that runs, and is no zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_hosts_have_names_addresses_and_clocks_of_their_own(make_hosts: Callable[..., Network]) -> None:
    network = make_hosts(clocks={"beta": 1000})
    asked = "import socket, time; print(socket.gethostname(), socket.gethostbyname('beta'), int(time.monotonic()))"
    told = [said(network.on(host, [sys.executable, "-c", asked])).split() for host in ("alpha", "beta")]
    assert [words[:2] for words in told] == [["alpha", "10.77.0.2"], ["beta", "10.77.0.2"]]
    assert 995 < int(told[1][2]) - int(told[0][2]) < 1010


def test_two_networks_do_not_meet(make_hosts: Callable[..., Network]) -> None:
    first, second = make_hosts(), make_hosts()
    before = second.traffic("alpha")
    script = "import socket; socket.create_connection(('beta', 9), 2)"
    refused = subprocess.run(first.on("alpha", [sys.executable, "-c", script]), capture_output=True, timeout=20, check=False)
    assert b"ConnectionRefusedError" in refused.stderr, "beta was not reached"
    assert first.traffic("alpha").sent > before.sent
    assert not second.shared_memory("alpha")


def test_a_network_leaves_nothing_behind(make_hosts: Callable[..., Network]) -> None:
    devices = said(["ip", "-brief", "link"])
    with Network(["alpha"], rate="2gbit") as network:
        command = network.on("alpha", ["true"])
        said(command)
        folder = Path(network.variables["HYDRA_LAUNCHER_EXEC"]).parent
    assert subprocess.run(command, capture_output=True, timeout=20, check=False).returncode != 0
    assert not folder.exists()
    assert said(["ip", "-brief", "link"]) == devices


def test_what_a_killed_owner_left_is_swept_and_nothing_else(make_hosts: Callable[..., Network]) -> None:
    make_hosts()
    support = str(Path(hosts.__file__).resolve().parents[1])
    owner, other = (
        subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": support})
        for _ in range(2)
    )
    with owner, other:
        left, kept = (int(process.stdout.readline()) for process in (owner, other))
        owner.kill()
        owner.wait()
        make_hosts()
        assert wait_until(lambda: not exists(left), 5)
        assert exists(kept)
        other.kill()
        other.wait()
        make_hosts()
        assert wait_until(lambda: not exists(kept), 5)
