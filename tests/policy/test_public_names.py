"""Every package says what is public, and means it."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from repository import SOURCE, Module, modules

FRAMEWORKS_NOT_ALWAYS_INSTALLED = ("keras", "tensorflow", "jax")

TELL_PUBLIC_NAMES = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
names = getattr(module, "__all__", None)
print(json.dumps({"names": names, "missing": [name for name in names or [] if not hasattr(module, name)]}))
"""


def public_names(package: Module) -> dict[str, Any]:
    """Asked of a fresh interpreter: the parent imports no framework and no MPI."""
    command = [sys.executable, "-c", TELL_PUBLIC_NAMES, package.name]
    # The backend that is imported fastest.
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"KERAS_BACKEND": "jax"})
    for framework in FRAMEWORKS_NOT_ALWAYS_INSTALLED:
        if f"No module named '{framework}" in run.stderr:
            pytest.skip(f"{package.name} needs {framework}, which is not installed")
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


@pytest.mark.parametrize(
    "package", [module for module in modules() if module.is_package], ids=lambda package: package.name
)
def test_public_names_are_listed_once_and_can_be_imported(package: Module) -> None:
    told = public_names(package)
    assert told["names"] is not None, f"{package.path} has no __all__"
    assert len(told["names"]) == len(set(told["names"])), f"{package.path} lists a name twice"
    assert not [name for name in told["names"] if name.startswith("_") and name != "__version__"]
    assert told["missing"] == []


def test_the_package_is_marked_as_typed() -> None:
    assert (SOURCE / "farandole" / "py.typed").is_file()
