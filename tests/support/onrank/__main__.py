"""One rank of a batch of test functions: run each, write down how it went, meet at a barrier, go on.

Started by `ranktest.batch` as `python -m onrank BATCH`. The journal `rank.<R>.jsonl` has one line an event:
`ready`, then for each call `start`, `done` (with its value) or `failed` (with its traceback), and `passed`
once every rank has left it. A rank whose call failed waits to be ended, so that the others can say where they are.
"""

import ast
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from _pytest.assertion.rewrite import rewrite_asserts

from onrank import AS_SHIPPED, RESULTS_DIR, rank_number, to_json

WAIT_TO_BE_ENDED_S = 60.0


def main() -> None:
    batch = pickle.loads(Path(sys.argv[1]).read_bytes())
    directory, rank = Path(os.environ[RESULTS_DIR]), rank_number()
    with (
        (directory / f"rank.{rank}.jsonl").open("w", buffering=1) as journal,
        (directory / f"rank.{rank}.stack").open("w") as stack,
    ):
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        run(batch, journal)
        faulthandler.unregister(signal.SIGUSR1)


class OneFramework(PathFinder):
    """Finds no other framework than Keras' backend, and nothing that Keras loads only because it is there."""

    HIDDEN = {"jax", "tensorflow", "torch", "pandas", "pyarrow", "sklearn"} - {os.environ.get("KERAS_BACKEND")}

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname in cls.HIDDEN else super().find_spec(fullname, path, target)


def run(batch: dict[str, Any], journal: TextIO) -> None:
    fast = AS_SHIPPED not in os.environ
    if fast and "KERAS_BACKEND" in os.environ:
        sys.meta_path[sys.meta_path.index(PathFinder)] = OneFramework
    door = importlib.import_module(batch["door"])
    if fast:
        compare_plain_tensors()
    door.init()
    note(journal, "ready", pid=os.getpid())
    for index, (module, path, function, arguments) in enumerate(batch["calls"]):
        note(journal, "start", call=index)
        if module not in sys.modules:
            load_with_readable_asserts(module, Path(path))
        body = getattr(sys.modules[module], function)
        if not attempt(getattr(body, "rank_body", body), door, pickle.loads(arguments), journal, index):
            time.sleep(WAIT_TO_BE_ENDED_S)
            sys.exit(1)
        note(journal, "passed", call=index)


def compare_plain_tensors() -> None:
    """torch.testing asks of all tensors whether they are distributed ones, whose import takes nearly as long as torch's."""
    if "torch" in sys.modules:
        from torch.testing import _comparison

        _comparison._HAS_DTENSOR = False


def attempt(
    body: Callable[..., Any], door: Any, arguments: dict[str, Any], journal: TextIO, index: int
) -> bool:
    try:
        note(journal, "done", call=index, value=body(door, *arguments["args"], **arguments["kwargs"]))
        door.barrier()
    except Exception as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(error.with_traceback(trace)))
        note(journal, "failed", call=index, error=text)
        return False
    return True


def note(journal: TextIO, event: str, **details: Any) -> None:
    journal.write(to_json({"event": event, **details}) + "\n")


def load_with_readable_asserts(name: str, path: Path) -> ModuleType:
    """Import the test file under the name pytest gave it, its asserts rewritten so that they show values."""
    source = path.read_bytes()
    tree = ast.parse(source, filename=str(path))
    rewrite_asserts(tree, source, str(path))
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


if __name__ == "__main__":
    main()
