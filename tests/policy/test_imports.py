"""Imports point one way, and importing the package costs next to nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repository import Module, modules

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
DOORS = ("farandole.torch", "farandole.tensorflow", "farandole.keras", "farandole.jax")

# A part of the package and what none of its modules may import.
FORBIDDEN = {
    "farandole.comm": (*FRAMEWORKS, *DOORS, "farandole.cli"),
    "farandole.elastic": (*FRAMEWORKS, *DOORS, "farandole.cli"),
    "farandole.data": (*FRAMEWORKS, *DOORS, "farandole.cli"),
    "farandole.benchmarks": ("farandole.comm", "farandole.train", "farandole.cli"),
    "farandole.checkpoint": (*FRAMEWORKS, *DOORS, "farandole.cli"),
    "farandole.observe": (*FRAMEWORKS, *DOORS, "farandole.comm", "mpi4py"),
    "farandole.report": (*FRAMEWORKS, *DOORS, "farandole.comm", "farandole.train", "farandole.data", "farandole.cli", "mpi4py"),
    "farandole": ("farandole.cli", "mpi4py"),
}
ALLOWED = {("farandole.__main__", "farandole.cli"), ("farandole.comm.mpi", "mpi4py")}

IMPORT_LIMIT_S = 0.2
IMPORT_AND_TELL = """
import json, sys, time
start = time.perf_counter()
import {name}
print(json.dumps({{"seconds": time.perf_counter() - start, "modules": list(sys.modules)}}))
"""


def violations(module: Module) -> list[str]:
    rules = [
        (part, target) for part, targets in FORBIDDEN.items() for target in targets if is_in(module, part)
    ]
    return [
        f"{module.path}:{found.line}: {module.name} imports {found.name}; {part} may not import {target}"
        for found in module.imports()
        for part, target in rules
        if found.is_within(target) and (module.name, target) not in ALLOWED
    ]


def is_in(module: Module, part: str) -> bool:
    return module.name == part or module.name.startswith(f"{part}.")


def test_imports_point_one_way() -> None:
    found = [violation for module in modules() for violation in violations(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("farandole.comm.engine", "def f():\n    import torch"),
        ("farandole.comm.engine", "from ..torch import optimizer"),
        ("farandole.comm.engine", "import importlib\nimportlib.import_module('jax')"),
        ("farandole.observe.timeline", "from farandole.comm import world"),
        ("farandole.report.page", "from .. import comm"),
        ("farandole.launch.run", "from mpi4py import MPI"),
        ("farandole.train.loop", "from farandole import cli"),
    ],
)
def test_a_wrong_import_is_seen(tmp_path: Path, name: str, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert violations(Module(name=name, path=path))


def imported_by(name: str) -> tuple[float, set[str]]:
    code = IMPORT_AND_TELL.format(name=name)
    told = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout
    )
    return told["seconds"], set(told["modules"])


def test_import_is_light() -> None:
    runs = [imported_by("farandole") for _ in range(5)]
    assert not {*FRAMEWORKS, "mpi4py.MPI"} & runs[0][1]
    assert min(seconds for seconds, _ in runs) < IMPORT_LIMIT_S


def test_the_torch_door_waits_for_init_before_it_loads_mpi() -> None:
    assert "mpi4py.MPI" not in imported_by("farandole.torch")[1]
