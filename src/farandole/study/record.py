"""The results of a study on disk: whole or not at all, whenever it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farandole.errors import DataError

__all__ = ["SCHEMA", "Record"]

SCHEMA = 1


class Record:
    """A JSON file: `environment`, and `rows`, each a key, a state and its figures.

    A figure that could not be measured is null, and `reason` says why.
    """

    def __init__(self, path: Path, *, environment: dict[str, Any]) -> None:
        self.path = path
        self._content = self._found() or {"schema": SCHEMA, "rows": []}
        self._content["environment"] = environment

    def get(self, name: str) -> Any:
        return self._content.get(name)

    def set(self, **values: Any) -> None:
        self._content |= values
        self._write()

    def has(self, key: dict[str, Any], states: Sequence[str]) -> bool:
        """Whether there are figures of every state; those that could not be measured are worth another try."""
        return all((row := self._row(key, state)) is not None and row["seconds"] is not None for state in states)

    def add(self, key: dict[str, Any], state: str, figures: dict[str, Any]) -> None:
        old = self._row(key, state)
        if old is not None:
            self._content["rows"].remove(old)
        self._content["rows"].append({**key, "state": state, **figures})
        self._write()

    def of(self, keys: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The content with the rows of these keys only, in their order."""
        rows = [row for key in keys for row in self._content["rows"] if _fits(row, key)]
        return {**self._content, "rows": rows}

    def _row(self, key: dict[str, Any], state: str) -> dict[str, Any] | None:
        return next((row for row in self._content["rows"] if row["state"] == state and _fits(row, key)), None)

    def _found(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path} is not a study's results ({error}). Remove it, or choose another --out.") from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise DataError(f"{self.path} is not a study's results of this version. Remove it, or choose another --out.")
        return content

    def _write(self) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._content, indent=1) + "\n")
            temporary.replace(self.path)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror}. Choose another --out.") from error
        finally:
            temporary.unlink(missing_ok=True)


def _fits(row: dict[str, Any], key: dict[str, Any]) -> bool:
    return all(row[name] == value for name, value in key.items())
