"""What sampling power ten times a second takes of a core: of this machine's sensors, and of files like RAPL's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.cases import Case
from farandole.observe.power import Sampler, find_sensors

__all__ = ["measure"]

_INTERVAL_S = 0.1
_ZONES = {"0": "package-0", "0:0": "dram", "1": "package-1", "1:0": "dram", "2": "psys"}
_SPIN = "while True:\n    sum(range(1000000))"


def measure(*, seconds: float) -> list[Case]:
    """The share of a core that a process takes which only samples; beside idle cores and beside busy ones."""
    cases = []
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        machines = {"this machine's sensors": Path("/"), "RAPL, 2 packages": _like_rapl(Path(folder))}
        for name, root in machines.items():
            for beside, cores in (("idle", 0), ("busy", os.cpu_count() or 1)):
                with _busy(cores):
                    taken, notes = _share_of_a_core(root, seconds)
                cases.append(Case(what=f"power at 10 Hz, {name}, {beside} cores", samples={"sampler": [taken]}, notes=notes))
    return cases


def _share_of_a_core(root: Path, seconds: float) -> tuple[float, dict[str, object]]:
    found = find_sensors(root)
    sampler = Sampler(found, interval_s=_INTERVAL_S)
    with sampler:
        began_cpu_s, began_s = time.process_time(), time.perf_counter()
        time.sleep(seconds)
        taken = (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)
    sampler.close()
    recording = sampler.recording()
    return taken, {
        "sensors": sorted({meter.sensor for meter in recording.meters}),
        "samples": recording.cost.samples,
        "missed": recording.cost.missed,
        "said_by_itself": recording.cost.share_of_a_core,
    }


@contextlib.contextmanager
def _busy(cores: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _like_rapl(root: Path) -> Path:
    for zone, name in _ZONES.items():
        folder = root / f"sys/class/powercap/intel-rapl:{zone}"
        folder.mkdir(parents=True)
        for file, text in (("name", name), ("max_energy_range_uj", "65532610987"), ("energy_uj", "10360237493")):
            (folder / file).write_text(text + "\n")
    return root
