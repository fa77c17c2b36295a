"""The seconds of a rank, or of one of its steps, told from spans.

    communication   any collective of this rank was under way, on whatever thread
    exposed         its training thread waited for one: what communication costs
    hidden          communication while training went on
    data            training waited for its next batch
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from farandole.observe.analysis.spans import Span, Stretches, length, overlap, union

__all__ = ["COLLECTIVES", "RankSeconds", "Kinds", "awaited", "is_beside", "is_of_gradients", "waits_of"]

COLLECTIVES = frozenset(
    ("ALLREDUCE", "BROADCAST", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "BARRIER", "SENDRECV", "SEND", "RECEIVE", "JOIN")
)
_WAITS = frozenset(("WAIT_FOR_GRADIENTS", "WAIT_FOR_COLLECTIVE"))
_NEGOTIATES = "NEGOTIATE_"
_GRADIENTS = "gradients "
_COMMUNICATION = "communication"
_TRAINING = "training"


@dataclass(slots=True)
class RankSeconds:
    """Seconds of one rank."""

    comm_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    wait_s: float = 0.0
    data_stall_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0

    def __iadd__(self, other: RankSeconds) -> RankSeconds:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    def as_list(self) -> list[float]:
        return [round(getattr(self, field.name), 6) for field in fields(self)]


@dataclass(slots=True)
class Kinds:
    """The stretches that figures are made of."""

    communication: Stretches
    exposed: Stretches
    data: Stretches
    forward: Stretches
    backward: Stretches
    optimizer: Stretches

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Kinds:
        lists: dict[str, list[tuple[float, float]]] = {name: [] for name in _KINDS}
        for span in spans:
            for kind in _kinds(span):
                lists[kind].append((span.start_s, span.end_s))
        return cls(**{name: union(found) for name, found in lists.items()})

    def whole(self) -> RankSeconds:
        """Without the wait for stragglers, which one rank alone does not know."""
        return RankSeconds(
            comm_s=length(self.communication), exposed_s=length(self.exposed),
            hidden_s=sum(end - start - overlap(self.exposed, start, end) for start, end in self.communication),
            data_stall_s=length(self.data), forward_s=length(self.forward), backward_s=length(self.backward),
            optimizer_s=length(self.optimizer),
        )  # fmt: skip


_KINDS = tuple(field.name for field in fields(Kinds))


_OF_TRAINING = {"DATA": "data", "FORWARD": "forward", "BACKWARD": "backward", "OPTIMIZER": "optimizer"}


def _kinds(span: Span) -> Sequence[str]:
    return _kinds_of(span.track, span.name, bool(span.args.get("async")))


@lru_cache(maxsize=4096)
def _kinds_of(track: str, name: str, asynchronous: bool) -> Sequence[str]:
    if name in _WAITS:
        return ("exposed",)
    if track == _TRAINING and name in _OF_TRAINING:
        return (_OF_TRAINING[name],)
    if name in COLLECTIVES:
        # Those of the gradients' threads are waited for with WAIT_FOR_GRADIENTS.
        return ("communication",) if asynchronous or track.startswith(_COMMUNICATION) else ("communication", "exposed")
    return ("exposed",) if name.startswith(_NEGOTIATES) and not asynchronous else ()


def is_beside(span: Span) -> bool:
    """Whether training goes on meanwhile."""
    return span.track.startswith(_COMMUNICATION) or bool(span.args.get("async"))


def awaited(span: Span) -> str | None:
    """The collective that training waited for in this span; what the others were late for is part of it."""
    if "exposed" not in _kinds(span):
        return None
    name = span.name.removeprefix(_NEGOTIATES)
    return {"WAIT_FOR_GRADIENTS": "ALLREDUCE", "WAIT_FOR_COLLECTIVE": "COLLECTIVE"}.get(name, name)


Wait = tuple[tuple[str, int], float, float]
"""Which of a collective's occurrences; when this rank was ready for it, and when it was done."""


def is_of_gradients(wait: Wait) -> bool:
    return wait[0][0].startswith(_GRADIENTS)


def waits_of(spans: Iterable[Span]) -> list[Wait]:
    """Every collective that training waited for: the same keys on all ranks that took part."""
    seen: dict[str, int] = {}
    ready: dict[str, float] = {}
    found: list[Wait] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.name == "WAIT_FOR_GRADIENTS":
            what = f"{_GRADIENTS}{span.args.get('step', -1)}"  # several optimizers count their steps alike
            seen[what] = seen.get(what, -1) + 1
            found.append(((what, seen[what]), span.start_s, span.end_s))
        elif span.name.startswith(_NEGOTIATES) and not span.args.get("async"):
            ready[span.track] = span.start_s
        elif span.name in COLLECTIVES and not is_beside(span):
            what = f"{span.track} {span.name}"
            seen[what] = seen.get(what, -1) + 1
            found.append(((what, seen[what]), ready.pop(span.track, span.start_s), span.end_s))
    return found
