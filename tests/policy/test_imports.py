"""Imports point one way, and importing the package costs next to nothing."""

import json
import subprocess
import sys
from graphlib import TopologicalSorter
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
    "farandole.workloads": ("farandole.comm", "farandole.train", "farandole.cli"),
    "farandole.checkpoint": (*FRAMEWORKS, *DOORS, "farandole.cli"),
    "farandole.observe": (*FRAMEWORKS, *DOORS, "farandole.comm", "mpi4py"),
    "farandole.results": (*FRAMEWORKS, *DOORS, "farandole.cli", "farandole.report", "farandole.study", "mpi4py"),
    "farandole.study": ("farandole.report", "farandole.cli"),
    "farandole.predict": (*FRAMEWORKS, *DOORS, "farandole.comm", "farandole.study", "farandole.report", "farandole.cli", "mpi4py"),
    "farandole.report": (*FRAMEWORKS, *DOORS, "farandole.comm", "farandole.train", "farandole.data", "farandole.study", "farandole.cli", "mpi4py"),
    "farandole": ("farandole.cli", "mpi4py"),
}
ALLOWED = {("farandole.__main__", "farandole.cli"), ("farandole.comm.bytes.mpi", "mpi4py")}

# Each room, and the rooms it may import. Read downwards it is the order in which they are built; there is no way back.
ROOMS = {
    "optim": (),
    "processes": (),
    "observe": ("processes",),
    "launch": ("observe", "processes"),
    "results": ("observe",),
    "predict": ("observe", "results"),
    "comm": ("launch", "observe"),
    "data": ("comm", "observe"),
    "checkpoint": ("comm", "data", "observe"),
    "elastic": ("checkpoint", "comm", "launch"),
    "torch": ("checkpoint", "comm", "elastic", "launch", "optim"),
    "tensorflow": ("comm", "launch"),
    "keras": ("checkpoint", "comm", "launch", "tensorflow", "torch"),
    "workloads": ("data", "optim"),
    "train": ("checkpoint", "comm", "data", "keras", "launch", "observe", "optim", "results", "torch", "workloads"),
    "candle": ("train",),
    "study": ("comm", "data", "launch", "observe", "optim", "processes", "results", "train", "workloads"),
    "report": ("observe", "results"),
}
# The sub-rooms of comm, read in the same way. `current` and `public` are one module each, below and above them.
COMM_ROOMS = {
    "bytes": (),
    "node": ("bytes",),
    "named": ("bytes", "node"),
    "gradients": ("bytes", "node", "named"),
    "channels": ("bytes", "node", "named"),
    "world": ("bytes", "node", "named", "gradients", "channels"),
    "streams": ("bytes", "node", "named", "channels", "world"),
}
AGAINST = {
    ("farandole.tensorflow", "keras"),  # Horovod's names for the other door
    ("farandole.tensorflow.keras", "keras"),
}
"""Modules that import against the order, and what; the list may only become shorter."""
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


def room_of(name: str) -> str:
    """Of a module; nothing for those that are in no room."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "farandole" and parts[1] in ROOMS else ""


def between_rooms() -> set[tuple[str, str]]:
    """Modules, and rooms that they import."""
    found = {(module.name, room_of(one.name)) for module in modules() for one in module.imports() if room_of(module.name)}
    return {(name, room) for name, room in found if room not in ("", room_of(name))}


def test_every_room_is_in_the_order() -> None:
    assert {module.name.split(".")[1] for module in modules() if module.name.count(".") > 1} <= {*ROOMS}


def test_rooms_import_in_one_direction() -> None:
    wrong = {(name, room) for name, room in between_rooms() if room not in ROOMS[room_of(name)]}
    assert wrong - AGAINST == set()
    assert wrong == AGAINST, "an exception that nothing needs any more"


def test_private_modules_of_keras_are_imported_in_one_room() -> None:
    found = {module.name for module in modules() for one in module.imports() if one.is_within("keras.src")}
    assert {name for name in found if not name.startswith("farandole.keras.private.")} == set()
    assert found


def test_no_cycle_among_rooms() -> None:
    assert [*TopologicalSorter(ROOMS).static_order()]


def comm_room_of(name: str) -> str:
    parts = name.split(".")
    return parts[2] if parts[:2] == ["farandole", "comm"] and len(parts) > 2 and parts[2] in COMM_ROOMS else ""


def test_rooms_of_comm_import_in_one_direction() -> None:
    mine = [(module.name, comm_room_of(module.name), module) for module in modules() if comm_room_of(module.name)]
    found = {(name, room, comm_room_of(one.name)) for name, room, module in mine for one in module.imports()}
    assert {(name, other) for name, room, other in found if other not in ("", room, *COMM_ROOMS[room])} == set()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("farandole.comm.named.engine", "def f():\n    import torch"),
        ("farandole.comm.named.engine", "from ...torch import optimizer"),
        ("farandole.comm.named.engine", "import importlib\nimportlib.import_module('jax')"),
        ("farandole.observe.timeline", "from farandole.comm import world"),
        ("farandole.report.page", "from .. import comm"),
        ("farandole.study.running", "from farandole.report import write_report"),
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
