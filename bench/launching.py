"""Starting ranks and taking home what they measured."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cases import Measured

if TYPE_CHECKING:
    from tests.support.hosts import Network

__all__ = [
    "BenchmarkFailed",
    "launch_words",
    "measure_keras",
    "measure_on_hosts",
    "measure_on_ranks",
    "run",
    "steps_as_shipped",
]

ROOT = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 600.0
_ENDING_S = 20.0
_TUNING = ("MALLOC_", "FARANDOLE_", "HOROVOD_", "OMP_", "MKL_", "GLIBC_TUNABLES")


class BenchmarkFailed(Exception):
    """Ranks did not end well; the message says how to repeat it."""


def measure_on_ranks(
    ranks: int, what: str, settings: dict[str, Any], *, hosts: str = "", network: Network | None = None
) -> Measured:
    """Run one of on_ranks.MEASURES: one thread a rank, the allocator tuned for all contestants alike."""
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        out = Path(folder) / "measured.json"
        script = [sys.executable, "-m", "bench.on_ranks", what, json.dumps(settings), str(out)]
        where = ["--hosts", hosts] if hosts else []
        command = [*launch_words(ranks), *where, "--threads", "1", "--", *script]
        if network is None:
            run(command)
        else:
            run(network.on_head(command), network.variables)
        return Measured.from_json(json.loads(out.read_text()))


def measure_keras(
    ranks: int, backend: str, settings: dict[str, Any], *, module: str = "keras_steps", threads: int = 1
) -> Measured:
    """Run keras_steps, or another module, on one backend, in the same way."""
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        out = Path(folder) / "measured.json"
        script = [sys.executable, "-m", f"bench.{module}", json.dumps(settings), str(out)]
        run([*launch_words(ranks), "--threads", str(threads), "--", *script], {"KERAS_BACKEND": backend})
        return Measured.from_json(json.loads(out.read_text()))


def measure_on_hosts(per_host: int, what: str, settings: dict[str, Any], *, rate: str) -> Measured:
    """The same on two hosts that are namespaces of this machine, with links of `rate` each way."""
    from tests.support.hosts import Network, lacking

    reason = lacking()
    if reason:
        raise BenchmarkFailed(reason)
    with Network(["alpha", "beta"], rate=rate) as network:
        hosts = f"alpha:{per_host},beta:{per_host}"
        return measure_on_ranks(2 * per_host, what, settings, hosts=hosts, network=network)


def steps_as_shipped(kind: str, ranks: int, steps: int) -> list[float]:
    """Seconds of the steps of a whole run, started as users start it: with `farandole launch` or torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    starters = {
        "farandole": [*launch_words(ranks), "--", sys.executable, "-m"],
        "ddp": [*torchrun, "-m"],
    }
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        out = Path(folder) / "steps.json"
        run([*starters[kind], "bench.shipped", kind, str(steps), str(out)])
        seconds: list[float] = json.loads(out.read_text())
        return seconds


def launch_words(ranks: int) -> list[str]:
    return [sys.executable, "-m", "farandole", "launch", "-n", str(ranks)]


def run(command: list[str], variables: Mapping[str, str] | None = None) -> None:
    """Standard output is the table's: whatever ranks say goes to standard error."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment() | dict(variables or {}), stdin=subprocess.DEVNULL, stdout=sys.stderr
    )
    try:
        code = process.wait(_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BenchmarkFailed(f"not done after {_TIMEOUT_S:g} s: {shlex.join(command)}") from None
    finally:
        _end(process)
    if code != 0:
        raise BenchmarkFailed(f"exit code {code} of {shlex.join(command)}")


def _environment() -> dict[str, str]:
    """The user's, without settings that would tune one side or both."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_TUNING)}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Both launchers end their ranks when they are told to end."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
