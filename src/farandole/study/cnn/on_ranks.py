"""Ranks that measure training steps, those of `farandole run`: `farandole launch -n 2 -- python -m farandole.study.cnn.on_ranks SETTINGS`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from farandole.errors import FarandoleError, RankFailedError
from farandole.study.cnn.settings import FRAMEWORKS, CnnSettings
from farandole.study.cnn.text import Lines, Rate, lines_of
from farandole.train.importing import frameworks_alone
from farandole.train.rank.hooks import Hook, StopWhenNotFinite
from farandole.train.rank.machines import threads_set
from farandole.train.rank.running import is_first, tell_error
from farandole.train.rank.session import on_rank_0, start

__all__ = ["KIND", "SCHEMA", "run"]

KIND, SCHEMA = "farandole bench cnn", 1


def run(settings: CnnSettings) -> int:
    """An exit code. Collective: every rank calls it, initialised or not."""
    try:
        with threads_set(settings.num_intra_threads):
            api, framework = FRAMEWORKS[settings.framework]
            _set_inter_threads(settings, framework)
            with frameworks_alone(framework):
                start(api, framework)
            results = _measured(settings)
        if settings.json:
            on_rank_0(lambda: Path(settings.json).write_text(json.dumps(results, indent=1) + "\n"))
    except RankFailedError:
        raise
    except FarandoleError as error:
        return tell_error(error)
    return 0


def _set_inter_threads(settings: CnnSettings, framework: str) -> None:
    """Before anything is computed. JAX has no such threads."""
    if not settings.num_inter_threads:
        return
    os.environ["TF_NUM_INTEROP_THREADS"] = str(settings.num_inter_threads)
    if framework == "torch":
        import torch

        torch.set_num_interop_threads(settings.num_inter_threads)


def _measured(settings: CnnSettings) -> dict[str, Any]:
    import farandole
    from farandole.observe.environment import environment
    from farandole.train.plan import make_plan
    from farandole.train.rank.batches import TrainingBatches
    from farandole.train.rank.machines import find_machines
    from farandole.train.rank.memory_check import check_training
    from farandole.train.rank.session import share_of_memory
    from farandole.train.rank.together import check_alike, loaded_by_user
    from farandole.train.rank.trainer import make_trainer

    began, rank, size = time.perf_counter(), farandole.rank(), farandole.size()
    whole = settings.run(size)
    data = loaded_by_user(whole)
    check_alike(data)
    in_epoch = min(settings.steps, max(1, len(data.train) // (settings.batch_size * size)))
    chosen = settings.run(size, steps=in_epoch, epochs=-(-settings.steps // in_epoch))
    plan = make_plan(chosen, len(data.train), size)
    check_training(chosen, data, size=size, share=share_of_memory())
    trainer = make_trainer(chosen, plan, data, rank=rank, size=size)
    trainer.broadcast()
    batches = TrainingBatches(data.train, plan, seed=chosen.parameters.rng_seed, shuffle=True, rank=rank, size=size)
    measuring = _Measuring(settings, lines_of(settings, size, chosen.trained_by), batches, means=chosen.api == "keras")
    hooks: list[Hook] = [measuring, StopWhenNotFinite(plan, trainer)]
    trainer.fit(batches, hooks, None, [], 0)
    machines, steps_s = find_machines(chosen.framework), measuring.steps_s
    measuring.say(measuring.lines.end(steps_s))
    return {
        "kind": KIND, "schema": SCHEMA, "settings": settings.as_dict(), "ranks": size, "nodes": machines.nodes, "cores": machines.cores,
        "threads": list(machines.threads), "parameters": trainer.parameters, "samples": settings.samples,
        "global_batch": plan.global_batch, "samples_per_s": plan.global_batch * len(steps_s) / sum(steps_s),
        "rate": dataclasses.asdict(Rate.of(steps_s, plan.global_batch)), "steps_s": steps_s, "losses": measuring.losses,
        "to_first_step_s": measuring.first_s - began, "communication": dict(trainer.communication()),
        "data_stall_s": batches.stall_s, "environment": environment("keras", "torch", "tensorflow-cpu", "jax"),
    }  # fmt: skip


class _Measuring(Hook):
    """Times every step from the end of the one before, on this rank; rank 0 tells."""

    def __init__(self, settings: CnnSettings, lines: Lines, batches: Any, *, means: bool) -> None:
        """`means`: losses come as means of the epoch so far, as Keras has them."""
        self.lines = lines
        self.steps_s: list[float] = []
        self.losses: list[float] = []
        self.first_s = 0.0
        """When the first step had ended."""
        self._settings, self._batches, self._first = settings, batches, is_first()
        self._done, self._ended = 0, 0.0
        self._means, self._mean = means, 0.0
        self.say(lines.begin())

    def say(self, lines: list[str]) -> None:
        if self._first and lines:
            print("\n".join(lines), flush=True)

    def begin_epoch(self, epoch: int) -> None:
        self._batches.epoch = epoch

    def begin_batch(self, batch: int) -> None:
        if self._done == self._settings.num_warmup_batches and not self.steps_s:
            self.say(self.lines.measure())
        if not self._ended:
            self._ended = time.perf_counter()

    def end_batch(self, batch: int, loss: float) -> None:
        now = time.perf_counter()  # what is between two epochs is the next step's: batches are made anew
        self.first_s = self.first_s or now
        self._done += 1
        if self._settings.num_warmup_batches < self._done <= self._settings.steps:
            self.steps_s.append(now - self._ended)
            self.losses.append(loss * (batch + 1) - self._mean * batch if self._means else loss)
            self.say(self.lines.step(self.steps_s, self.losses[-1]))
        self._mean = loss
        self._ended = time.perf_counter()


if __name__ == "__main__":
    sys.exit(run(CnnSettings(**json.loads(sys.argv[1]))))
