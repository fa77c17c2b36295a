"""Checkpoints of a run: when, which ones stay, and what they hold of the run besides model and optimizer."""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.timing import When
from farandole.errors import SettingsError

if TYPE_CHECKING:
    from farandole.observe.phases import PhaseTimes
    from farandole.train.hooks import Epochs
    from farandole.train.plan import Plan
    from farandole.train.settings import RunSettings
    from farandole.train.trainer import Trainer

__all__ = ["FOLDER", "RESUME", "RunCheckpoints", "Spent", "kept", "parsed_when", "refuse_checkpoints"]

FOLDER = "checkpoints"
"""In the run directory."""
RESUME = ("auto", "required", "off")

_EVERY = re.compile(r"(?P<count>\d+) ?(?P<unit>|epochs?|steps?|s|m|h)|auto(:(?P<failures>\d+)(?P<failures_unit>s|m|h))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_FAILURES_S = 24 * 3600.0
"""How far failures are apart where nobody says so."""
_LARGER_IS_BETTER = ("acc", "auc", "corr", "r2")


def parsed_when(text: str, passes: int = 1) -> When:
    """`5` or `5epochs`, `100steps`, `600s`, `10m`, `1h`, `auto`, `auto:6h`; a step is `passes` batches."""
    found = _EVERY.fullmatch(text.strip())
    if found is None:
        raise SettingsError(
            f"checkpoint_every={text!r}: expected e.g. 5 (epochs), 100steps, 600s, 10m, 1h, auto (as often as loses least with "
            "a failure a day) or auto:6h"
        )
    if text.startswith("auto"):
        given = found["failures"]
        return When(failures_s=int(given) * _SECONDS[found["failures_unit"]] if given else _FAILURES_S)
    count, unit = int(found["count"]), found["unit"]
    if unit in _SECONDS:
        return When(seconds=count * _SECONDS[unit])
    return When(steps=count * passes) if unit.startswith("step") else When(epochs=count)


def kept(last: int, best: str) -> Keep:
    """The last ones, and the best by a metric."""
    mode = "max" if any(word in best for word in _LARGER_IS_BETTER) else "min"
    return Keep(last=last, best=1 if best else 0, metric=best, mode=mode)


def refuse_checkpoints(folder: Path) -> None:
    """Of another run, in the folder of one that is not to go on from them."""
    from farandole.checkpoint.folder import entries

    there = [entry for entry in entries(folder) if not entry.kind]
    if there:
        raise SettingsError(
            f"--resume off: {folder} has checkpoints, the newest is {there[-1].path.name}. Give another --checkpoint-dir or "
            "--output-dir, or remove them."
        )


class RunCheckpoints:
    """A run's checkpoints, on one rank. Collective to make and to use."""

    def __init__(
        self, settings: RunSettings, trainer: Trainer, plan: Plan, *, epochs: Epochs, knowing: Mapping[str, Any], spent: Spent,
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        assert settings.checkpoint_folder is not None
        self._settings, self._trainer, self._plan, self._note = settings, trainer, plan, note
        self.folder = settings.checkpoint_folder
        self._made_by: dict[str, Any] = {"starts": 0}
        # Keras counts batches, our own loop steps.
        self._counted = plan.passes if settings.api == "keras" else 1
        self.checkpointer = trainer.checkpointer(
            self.folder,
            when=parsed_when(settings.checkpoint_every, self._counted),
            keep=kept(settings.checkpoint_keep, settings.checkpoint_best),
            own={"seconds": spent},
            epochs=epochs,
            run=self._made_by,
            **knowing,
        )
        epochs.passing = lambda: bool(self.checkpointer.passing)

    def restore(self) -> int:
        """The epoch to begin with. Collective."""
        first: int = self.checkpointer.restore()
        if self.checkpointer.came_from is None and self._settings.resume == "required":
            raise SettingsError(f"--resume required: {self.folder} has no checkpoint. Leave it out to begin with the first epoch.")
        before, self._made_by["starts"] = dict(self._made_by), self._made_by["starts"] + 1
        self._made_by |= {"ranks": self._plan.ranks, "rate": self._plan.rate, "passes": self._counted}
        if self.checkpointer.came_from is not None:
            self._follow_rate(before["rate"])
            self._follow_passes(before.get("passes", self._counted))
            first = self._follow_ranks(first, before["ranks"])
        return first

    def _follow_rate(self, before: float) -> None:
        if before != self._plan.rate:
            self._trainer.rate = self._trainer.rate * self._plan.rate / before
            self._note(f"the rate was {before:g} for the part before the checkpoint and is {self._plan.rate:g} for the rest")

    def _follow_passes(self, before: int) -> None:
        """Batches are counted, of which other ranks do more or fewer for the same steps."""
        progress = self.checkpointer.progress
        progress.step = progress.step * self._counted // before

    def _follow_ranks(self, first: int, before: int) -> int:
        """Where epochs are divided, those done by other ranks count for what they are in all."""
        divided = self._plan.parallel == "epochs" and self._settings.work == "strong"
        if before == self._plan.ranks or not divided:
            return first
        progress = self.checkpointer.progress
        epoch: int = progress.epoch * before // self._plan.ranks
        progress.epoch = epoch
        self._note(f"each of {before} ranks had done {first} of its epochs, which count as {epoch} of {self._plan.ranks}'s")
        return epoch

    def last_good(self) -> str:
        """Where to go on from when training has failed."""
        step = self.checkpointer.saved_at
        if step is None:
            return f"There is no checkpoint of it in {self.folder} yet."
        return f"The last good checkpoint, of step {step}, is in {self.folder}."

    def as_record(self) -> dict[str, Any]:
        """For run.json."""
        came_from = self.checkpointer.came_from
        return {
            "directory": str(self.folder),
            "every": self._settings.checkpoint_every,
            "resumed_from": None if came_from is None else str(came_from),
            "starts": self._made_by["starts"],
            **self._spent_at_last(),
        }

    def _spent_at_last(self) -> dict[str, Any]:
        """Of training over all starts, at the last checkpoint."""
        names = ("energy_j", "energy_provenance", "energy_reason")
        return {name: getattr(self.checkpointer.progress, name) for name in names}


class Spent:
    """What a rank has taken over all starts, as far as checkpoints know of them: seconds, gradients it has sent, memory."""

    def __init__(self, times: PhaseTimes, began: float, sent: Callable[[], Mapping[str, float]]) -> None:
        """`sent`: of gradients, since this start."""
        self._times, self._began, self._sent = times, began, sent
        self._before_s, self._sent_before, self._peak_before = 0.0, Counter[str](), 0

    def total_s(self) -> float:
        return self._before_s + time.perf_counter() - self._began

    def communication(self) -> dict[str, float]:
        sent = self._sent()
        return {name: self._sent_before[name] + sent.get(name, 0) for name in {*self._sent_before, *sent}}

    def peak_memory_bytes(self) -> int:
        return max(self._peak_before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)

    def state_dict(self) -> Any:
        return {
            "phases": self._times.so_far(),
            "total": self.total_s(),
            "communication": self.communication(),
            "peak_memory_bytes": self.peak_memory_bytes(),
        }

    def load_state_dict(self, state: Any) -> None:
        for name, seconds in state["phases"].items():
            self._times.add(name, seconds)
        self._before_s += state["total"]
        # Checkpoints of an older version have neither.
        self._sent_before.update(state.get("communication", {}))
        self._peak_before = max(self._peak_before, state.get("peak_memory_bytes", 0))
