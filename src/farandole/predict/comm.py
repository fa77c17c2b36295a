"""What `farandole bench comm --json` has found of the network, for ranks that a study has not reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farandole.errors import DataError
from farandole.predict.curves import LATENCY, Curve
from farandole.predict.posterior import Change
from farandole.results.runs import read_json

__all__ = ["Network", "read_network"]

_KIND = "farandole bench comm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Of one step's gradients, between as many nodes as were measured."""

    nodes: float
    latency_s: float
    """Of all messages of a step."""
    bandwidth_s: float
    """Of all bytes of a step."""
    error: float
    """Relative, of what was fitted."""

    def seconds(self, nodes: float, collective: str, change: Change | None) -> float:
        """Of a step's allreduce between `nodes`."""
        x, at = np.array([nodes]), np.array([self.nodes])
        found = 0.0
        for name, seconds in ((LATENCY.get(collective, "linear"), self.latency_s), ("bandwidth", self.bandwidth_s)):
            curve = Curve(terms=((name, 1.0),))
            there = curve.at(x, change.factors if change else None, change.swaps if change else None)
            found += seconds * float(there[0] / curve.at(at)[0])
        return found

    def latency_share(self, nodes: float, collective: str) -> tuple[float, float]:
        """Of what allreduce takes between `nodes`, with how far it may be from that."""
        latency = self.seconds(nodes, collective, Change(factors={"bandwidth": 0.0}))
        return latency / self.seconds(nodes, collective, None), 0.15


def read_network(path: Path, bytes_per_step: float | None, messages: float | None) -> Network:
    """From the figures between nodes; DataError where the file has none."""
    found = read_json(path)
    if found is None or found.get("kind") != _KIND or not isinstance(found.get("scopes"), list):
        raise DataError(f"{path} is not what farandole bench comm --json writes. Make it: farandole bench comm -H a:1,b:1 --json {path}")
    scopes = [scope for scope in found["scopes"] if int(scope.get("nodes") or 1) > 1]
    scope = min(scopes, key=lambda one: one.get("scope") != "across", default=None)
    if scope is None:
        raise DataError(f"{path} was measured on one node. Measure between nodes: farandole bench comm -H a:1,b:1 --json {path}")
    if not bytes_per_step:
        raise DataError("--comm needs the bytes that a step sends, which this study has not recorded. Run it again with this version.")
    pieces = _pieces(path, scope)
    messages = max(1.0, messages or 1.0)
    piece = next((one for one in pieces if one["up_to_bytes"] is None or bytes_per_step / messages <= one["up_to_bytes"]), pieces[-1])
    return Network(
        nodes=float(scope["nodes"]), latency_s=max(messages * piece["alpha_s"], 1e-9),
        bandwidth_s=max(bytes_per_step * piece["beta_s_per_byte"], 1e-9), error=max(0.1, float(piece["rms_error"])),
    )  # fmt: skip


def _pieces(path: Path, scope: Mapping[str, Any]) -> list[dict[str, Any]]:
    fits = {(one["collective"], one["way"]): one["pieces"] for one in scope.get("fits") or ()}
    found = next((fits[key] for key in (("allreduce", "gradient"), ("allreduce", "by name"), ("allreduce", "MPI")) if fits.get(key)), None)
    if not found:
        raise DataError(f"{path} has no allreduce between nodes. Measure it: farandole bench comm -H a:1,b:1 --json {path}")
    return list(found)
