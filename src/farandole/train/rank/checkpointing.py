"""What a run's checkpoints hold besides model and optimizer, and how a run goes on from one."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from farandole.errors import SettingsError
from farandole.train.checkpoints import kept, parsed_when

if TYPE_CHECKING:
    from farandole.observe.phases import PhaseTimes
    from farandole.train.plan import Plan
    from farandole.train.rank.hooks import Epochs
    from farandole.train.rank.trainer import Trainer
    from farandole.train.settings import RunSettings

__all__ = ["RunCheckpoints", "Spent"]


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
