"""The manifest of a checkpoint: what it is of, and the checksums of its files and of the manifest itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from farandole.checkpoint.blocks import Damaged, FileSums

__all__ = ["FORMAT", "Manifest", "OfAnotherVersion"]

FORMAT = "farandole checkpoint 1"


class OfAnotherVersion(Damaged):
    """As it was written, but by a program that knows more than this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    step: int
    epoch: int
    ranks: int
    """How many trained when it was saved."""
    saved_at: float
    """Seconds since 1970."""
    train_s: float
    """Seconds of training so far, over all starts."""
    energy_j: float | None
    """Joules of training so far; None where they are not known."""
    version: str
    """Of farandole."""
    energy_provenance: str = ""
    """How the joules are known, in the words of the power figures: `modelled` ones are no measurement."""
    energy_reason: str = ""
    """Why there are none."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """None for what is no number."""
    files: dict[str, FileSums] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(sums.nbytes for sums in self.files.values())

    def as_bytes(self) -> bytes:
        """JSON; its last entry is the checksum of all before."""
        return _signed({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """`Damaged` where a single bit is not as it was written."""
        try:
            found = json.loads(data)
            del found["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged("cannot be read") from error
        if _signed(found) != data:
            raise Damaged("does not fit its checksum")
        if found.pop("format", None) != FORMAT or not set(found) <= {known.name for known in fields(cls)}:
            raise OfAnotherVersion(f"is not of the format {FORMAT!r}: another version of farandole has made it")
        found["files"] = {name: FileSums(**sums) for name, sums in found["files"].items()}
        return cls(**found)


def _signed(content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    return json.dumps({**content, "sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
