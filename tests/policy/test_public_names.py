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
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        print(json.dumps([name, {"error": repr(error)}]))
        continue
    names = getattr(module, "__all__", None)
    missing = [name for name in names or [] if not hasattr(module, name)]
    print(json.dumps([name, {"names": names, "missing": missing}]))
"""
PACKAGES = [module for module in modules() if module.is_package]


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, Any]]:
    """Asked of another interpreter: this one imports no framework and no MPI."""
    command = [sys.executable, "-c", TELL_PUBLIC_NAMES, *(package.name for package in PACKAGES)]
    # The backend that is imported fastest.
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"KERAS_BACKEND": "jax"})
    assert run.returncode == 0, run.stderr
    return dict(json.loads(line) for line in run.stdout.splitlines())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_public_names_are_listed_once_and_can_be_imported(package: Module, told: dict[str, dict[str, Any]]) -> None:
    about = told[package.name]
    for framework in FRAMEWORKS_NOT_ALWAYS_INSTALLED:
        if f"No module named '{framework}" in about.get("error", ""):
            pytest.skip(f"{package.name} needs {framework}, which is not installed")
    assert "error" not in about, about
    assert about["names"] is not None, f"{package.path} has no __all__"
    assert len(about["names"]) == len(set(about["names"])), f"{package.path} lists a name twice"
    assert not [name for name in about["names"] if name.startswith("_") and name != "__version__"]
    assert about["missing"] == []


def test_the_package_is_marked_as_typed() -> None:
    assert (SOURCE / "farandole" / "py.typed").is_file()
