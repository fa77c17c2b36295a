"""`farandole doctor`: what is here, a first dance of two ranks, and what to type for what is missing."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farandole import __version__
from farandole.errors import LaunchError
from farandole.launch.environment import allocator_set_by_user, usable_cores
from farandole.launch.mpiexec import INSTALL_MPI, find_mpiexec
from farandole.launch.place import without_mpi
from farandole.observe.power.discover import find_sensors, root_from_environment

__all__ = ["Examination", "Finding", "examine"]

_PR_SET_PTRACER = 0x59616D61
_PTRACER_ANY = ctypes.c_ulong(-1)
_PROBE_S = 60.0
_FRAMEWORKS = {
    "torch": ("torch",),
    "keras": ("keras",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow_cpu"),
    "jax": ("jax",),
}
_MARK = {True: "+", False: "!", None: " "}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for."""

    name: str
    found: str
    """What was found, in words."""
    ok: bool | None = True
    """False: ranks cannot do without it; None: they can."""
    advice: str = ""
    """What to type."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The same for programs."""


@dataclass(frozen=True, slots=True)
class Examination:
    findings: list[Finding]

    @property
    def exit_code(self) -> int:
        """1 when ranks cannot start."""
        return int(any(finding.ok is False for finding in self.findings))

    def as_text(self) -> str:
        head = f"farandole {__version__}, Python {platform.python_version()}, {platform.node()}"
        return "\n".join([head, *(line for finding in self.findings for line in _lines(finding))])

    def as_json(self) -> str:
        findings = {
            finding.name.lower().replace(" ", "_").replace("-", "_"): {
                "found": finding.found,
                "ok": finding.ok,
                "advice": finding.advice or None,
                **finding.facts,
            }
            for finding in self.findings
        }
        versions = {"farandole": __version__, "python": platform.python_version(), "host": platform.node()}
        return json.dumps({**versions, "ok": self.exit_code == 0, "findings": findings}, indent=2)


def examine() -> Examination:
    """Look at everything; nothing is changed, and MPI is started in child processes only."""
    looks: Iterable[Callable[[], list[Finding]]] = (
        _mpi, _launcher, _ring, _frameworks, _cores, _memory, _shared_memory, _cross_memory, _compiler,
        _allocator, _gpus, _power,
    )  # fmt: skip
    return Examination([finding for look in looks for finding in look()])


def _lines(finding: Finding) -> list[str]:
    lines = [f"{_MARK[finding.ok]} {finding.name:<20} {finding.found}"]
    return lines + [f"{'':<22} -> {finding.advice}"] * bool(finding.advice)


# What ranks need


def _mpi() -> list[Finding]:
    answer = _run([sys.executable, "-m", "farandole.comm.bytes.ask_mpi"])
    try:
        facts = json.loads(answer.stdout)
    except ValueError:
        facts = {"library": "none", "problem": _last_line(answer.stderr)}
    if facts["library"] == "none":
        problem = facts.get("problem") or "no library was found"
        return [Finding("MPI", f"none: {problem}", False, f"{INSTALL_MPI}, or module load mpich", facts)]
    words = f"{facts['library']} {facts['version']}, thread level {facts['thread_level']}"
    full = facts["thread_level"] == "multiple"
    return [
        Finding("MPI", words, True, "" if full else f"teams need thread level multiple: {INSTALL_MPI}", facts)
    ]


def _launcher() -> list[Finding]:
    try:
        mpiexec = find_mpiexec()
    except LaunchError as error:
        return [Finding("launcher", str(error), False, INSTALL_MPI)]
    if mpiexec is None:
        return [Finding("launcher", "no mpiexec", False, f"{INSTALL_MPI}, or module load mpich")]
    facts = {"path": str(mpiexec.path), "make": mpiexec.make, "version": mpiexec.version}
    return [Finding("launcher", f"{mpiexec.path} ({mpiexec.make} {mpiexec.version})", facts=facts)]


def _ring() -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="farandole-ring-") as folder:
        result = Path(folder) / "ring.json"
        ring = [sys.executable, "-m", "farandole.launch.ring", str(result)]
        began = time.monotonic()
        answer = _run([sys.executable, "-m", "farandole", "launch", "-n", "2", "--", *ring])
        seconds = round(time.monotonic() - began, 2)
        if answer.returncode or not result.exists():
            advice = "MPI and mpiexec must belong together; see above, and: farandole launch -n 2 -- hostname"
            return [Finding("ring test", f"failed: {_why(answer)}", False, advice)]
        facts = json.loads(result.read_text()) | {"seconds": seconds}
    words = (
        f"2 ranks, {seconds:.1f} s with their start; a small allreduce takes {facts['allreduce_us']:.0f} us"
    )
    return [Finding("ring test", words, facts=facts)]


# What they may use


def _frameworks() -> list[Finding]:
    return [_framework(name, distributions) for name, distributions in _FRAMEWORKS.items()]


def _framework(name: str, distributions: Iterable[str]) -> Finding:
    version = _version(distributions)
    advice = "" if version else f"pip install 'farandole[{name}]'"
    return Finding(name, version or "not installed", True if version else None, advice, {"version": version})


def _cores() -> list[Finding]:
    usable, present = usable_cores(), os.cpu_count() or 1
    return [Finding("cores", f"{usable} usable of {present}", facts={"usable": usable, "present": present})]


def _memory() -> list[Finding]:
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    total, free = (kilobytes.get(name, 0) * 1024 for name in ("MemTotal", "MemAvailable"))
    words = f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB free" if total else "unknown"
    return [
        Finding(
            "memory", words, None if not total else True, facts={"total_bytes": total, "free_bytes": free}
        )
    ]


def _shared_memory() -> list[Finding]:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return [
            Finding("shared memory", f"/dev/shm: {error.strerror}", None, "mount -t tmpfs tmpfs /dev/shm")
        ]
    small = usage.total < 1 << 30
    advice = "in a container: docker run --shm-size=8g (gradients travel through it)" if small else ""
    words = f"/dev/shm {usage.total / 1e9:.1f} GB, {usage.free / 1e9:.1f} GB free"
    facts = {"total_bytes": usage.total, "free_bytes": usage.free}
    return [Finding("shared memory", words, None if small else True, advice, facts)]


def _cross_memory() -> list[Finding]:
    """Whether one rank may read another's memory: as a child, which is nobody's ancestor, reads its parent's."""
    error = _read_parent_from_child()
    if error == 0:
        return [Finding("cross-memory attach", "available (process_vm_readv)", facts={"available": True})]
    advice = "sudo sysctl kernel.yama.ptrace_scope=0; in a container add --cap-add=SYS_PTRACE (not required)"
    words = f"not available ({os.strerror(error)}): ranks copy through shared memory"
    return [Finding("cross-memory attach", words, None, advice, {"available": False})]


def _compiler() -> list[Finding]:
    version = _version(["numba"])
    words = f"numba {version}" if version else "none: large gradients are summed more slowly, and no files are parsed"
    advice = "" if version else "pip install 'farandole[data]'"
    return [Finding("compiler", words, True if version else None, advice, {"numba": version})]


def _allocator() -> list[Finding]:
    libc, version = platform.libc_ver()
    facts = {"libc": libc, "version": version, "set_by_user": allocator_set_by_user(os.environ)}
    if libc != "glibc":
        return [Finding("allocator", f"{libc or 'not glibc'}: left as it is", None, facts=facts)]
    if facts["set_by_user"]:
        return [Finding("allocator", f"glibc {version}, as MALLOC_* or GLIBC_TUNABLES say", facts=facts)]
    words = f"glibc {version}: `farandole launch` keeps large buffers (off: --no-tune)"
    return [Finding("allocator", words, facts=facts)]


_GPU_LISTS = (["nvidia-smi", "-L"], ["amd-smi", "list"], ["rocm-smi", "--showuniqueid"])
"""Each prints one line a GPU that begins with GPU."""


def _gpus() -> list[Finding]:
    command = next((command for command in _GPU_LISTS if shutil.which(command[0])), None)
    if command is None:
        return [Finding("GPUs", "none found (no nvidia-smi, amd-smi or rocm-smi)", None, facts={"count": 0})]
    listed = _run(command)
    names = [line for line in listed.stdout.splitlines() if line.startswith("GPU")]
    words = "; ".join(names) if names else f"none usable: {_last_line(listed.stdout + listed.stderr)}"
    lacks = command[0] == "nvidia-smi" and names and not _version(["nvidia-ml-py"])
    advice = "pip install 'farandole[gpu]'" if lacks else ""
    return [Finding("GPUs", words, True if names else None, advice, {"count": len(names)})]


def _power() -> list[Finding]:
    found = find_sensors(root_from_environment())
    meters, modelled = found.meters, found.modelled
    found.close()
    measured = {meter.sensor: [m.name for m in meters if m.sensor == meter.sensor] for meter in meters if meter.measured}
    words = [f"{sensor} ({', '.join(names)})" for sensor, names in measured.items()] or ["none"]
    words += [f"{refusal.sensor}: {refusal.reason}" for refusal in found.refusals]
    words += ["power is modelled, not measured"] * modelled
    facts = {
        "readable": list(measured),
        "locked": [refusal.sensor for refusal in found.refusals],
        "meters": [asdict(meter) for meter in meters],
    }
    advice = "; ".join(refusal.advice for refusal in found.refusals)
    return [Finding("power sensors", "; ".join(words), True if measured else None, advice, facts)]


# How it is found out


def _version(distributions: Iterable[str]) -> str | None:
    """Of the first that is installed; none is imported."""
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return None


def _read_parent_from_child() -> int:
    """The error number of the attempt; 0 if it worked."""
    buffer = ctypes.create_string_buffer(b"farandole")
    parent = os.getpid()
    # As ranks do: Yama lets only parents read unless the process agrees.
    _prctl(_PR_SET_PTRACER, _PTRACER_ANY)
    child = os.fork()
    if child == 0:
        os._exit(_read_memory(parent, ctypes.addressof(buffer), len(buffer)) & 0xFF)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _prctl(option: int, value: ctypes.c_ulong) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _read_memory(pid: int, address: int, size: int) -> int:
    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    here = ctypes.create_string_buffer(size)
    local, remote = Piece(ctypes.addressof(here), size), Piece(address, size)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        copied = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    except AttributeError:
        return errno.ENOSYS
    return 0 if copied == size else ctypes.get_errno() or 1


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """A command's answer; one that is too slow, or cannot be started, has failed."""
    environment = without_mpi(os.environ)
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
            timeout=_PROBE_S, check=False, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"no answer within {_PROBE_S:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", str(error))


def _why(answer: subprocess.CompletedProcess[str]) -> str:
    """The launcher's own words where there are any."""
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("farandole:", "error "))]
    return " ".join(told) or _last_line(answer.stderr) or f"exit code {answer.returncode}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
