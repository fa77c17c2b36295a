"""`farandole doctor`: what is here, and what to type for what is not."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import farandole
import farandole.doctor
from powertree import Machine, steady


def doctor(
    *words: str, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "farandole", "doctor", *words],
        capture_output=True, text=True, timeout=120, check=False, env=env, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_healthy_machine(tmp_path: Path) -> None:
    Machine(tmp_path).rapl("0", "package-0", steady(100.0))
    told = doctor("--json", env=os.environ | {"FARANDOLE_POWER_ROOT": str(tmp_path)})
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads(told.stdout)
    findings = report["findings"]
    assert report["ok"] is True
    assert findings["ring_test"]["ranks"] == 2
    assert findings["ring_test"]["allocator"] == "environment"
    assert findings["mpi"]["thread_level"] in ("multiple", "serialized", "funneled", "single")
    assert Path(findings["launcher"]["path"]).is_file()
    assert findings["cores"]["usable"] >= 1
    assert findings["memory"]["total_bytes"] > 0
    assert findings["power_sensors"]["found"] == "RAPL (package-0)"
    assert findings["power_sensors"]["meters"][0]["provenance"] == "measured-component"
    assert {
        "torch",
        "keras",
        "tensorflow",
        "jax",
        "gpus",
        "cross_memory_attach",
    } <= findings.keys()


def test_without_mpi_it_says_what_to_type_and_fails(tmp_path: Path) -> None:
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.symlink_to(Path(sys.executable).resolve())
    # The package, NumPy and mpi4py, but neither mpiexec nor a library for mpi4py to load.
    packages = [
        str(Path(farandole.__file__).parents[1]),
        *(p for p in sys.path if p.endswith("site-packages")),
    ]
    told = doctor(
        python=str(bare), env={"PYTHONPATH": ":".join(packages), "PATH": "", "MPI4PY_LIBMPI": "/no/libmpi.so"}
    )
    assert told.returncode == 1
    assert told.stdout.count("-> pip install 'farandole[mpi]'") == 2
    assert "! ring test" in told.stdout
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("tool", "prints"),
    [
        ("nvidia-smi", "GPU 0: NVIDIA A100 (UUID: GPU-1)\\nGPU 1: NVIDIA A100 (UUID: GPU-2)"),
        ("amd-smi", "GPU: 0\\n    BDF: 0000:c1:00.0\\n\\nGPU: 1\\n    BDF: 0000:c6:00.0"),
        ("rocm-smi", "==== Unique ID ====\\nGPU[0]\\t\\t: Unique ID: 0x1\\nGPU[1]\\t\\t: Unique ID: 0x2"),
    ],
)
def test_gpus_are_listed_by_the_tool_there_is(
    tool: str, prints: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / tool).write_text(f"#!/bin/sh\nprintf '{prints}\\n'\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = farandole.doctor._gpus()
    assert found.facts["count"] == 2 and found.ok, found


def test_the_probe_agrees_to_be_read_by_a_process_that_is_no_parent_as_ranks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed: list[tuple[int, int]] = []
    monkeypatch.setattr(farandole.doctor, "_prctl", lambda option, value: agreed.append((option, value.value)))
    farandole.doctor._cross_memory()
    assert agreed == [(0x59616D61, 2**64 - 1)]  # PR_SET_PTRACER, PR_SET_PTRACER_ANY
