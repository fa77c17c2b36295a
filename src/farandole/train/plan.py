"""How N ranks share a training: epochs, steps, batches and rates of each.

`epochs`: every rank passes over all the data in an order of its own, and epochs are divided: the papers' method.
`steps`: every epoch's steps are divided, each rank takes a part of the data.
`strong`: together the ranks pass over the data as often as one rank alone. `weak`: each of them does.

A rank's batch stays as it is unless `batch_scaling` says otherwise. With `emulate_ranks` each rank does the batches of
several ranks one after the other and adds their gradients up before it steps, so that a step is that of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from farandole.errors import SettingsError
from farandole.optim.epochs import equal_epochs
from farandole.optim.scaling import scaled_batch, scaled_rate
from farandole.train.optimizers import DEFAULT_RATES
from farandole.train.settings import RunSettings

__all__ = ["Plan", "advice", "check_ranks", "local_batch", "make_plan", "passes_of_rank"]

@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What every rank does."""

    ranks: int
    """As how many it trains: those there are, or those emulated."""
    passes: int
    """Batches whose gradients a rank adds up before a step: the ranks it stands for."""
    parallel: str
    epochs: int
    """Of every rank; with `steps` an epoch is one pass of all ranks together."""
    steps: int
    """Of an epoch."""
    local_batch: int
    """Samples of one rank, of those it trains as, in a step."""
    rate: float
    """Scaled for `ranks`."""
    samples_per_epoch: int
    """Over all ranks it trains as."""

    @property
    def global_batch(self) -> int:
        return self.local_batch * self.ranks

    def is_short(self, number: int) -> bool:
        """Whether a step of an epoch, by its number from 0, has fewer samples than others: the last one may."""
        return number + 1 == self.steps > 1 and self.samples_per_epoch < self.steps * self.global_batch

    @property
    def samples_per_step(self) -> int:
        """Of those that are not short, over all ranks it trains as."""
        return min(self.global_batch, self.samples_per_epoch)


def check_ranks(settings: RunSettings, size: int) -> None:
    """Refuse what `size` ranks cannot share, whatever the data; errors name numbers that work."""
    ranks = _ranks(settings.emulate_ranks, size)
    _epochs(settings, ranks)
    if settings.parallel == "epochs" and ranks > 1 and not settings.parameters.shuffle:
        raise SettingsError(
            f"shuffle=False with parallel=epochs: all {ranks} ranks would do the same batches in the same order. "
            "Leave it out, or use parallel=steps."
        )


def make_plan(settings: RunSettings, rows: int, size: int) -> Plan:
    """For `size` ranks and `rows` samples to train on; errors name numbers that work."""
    check_ranks(settings, size)
    parameters, ranks = settings.parameters, _ranks(settings.emulate_ranks, size)
    batch = local_batch(settings, parameters.batch_size, size)
    mine = rows if settings.parallel == "epochs" else rows // ranks
    _check_batch(settings, batch, mine, rows, ranks)
    longest = rows if settings.parallel == "epochs" else -(-rows // ranks)
    steps = -(-longest // batch)
    if mine < steps:
        raise SettingsError(
            f"{rows} training samples do not give {ranks} ranks {steps} batches of {batch} each without an empty one. Use a "
            "batch_size of 2 or more."
        )
    if parameters.train_steps:
        steps = min(steps, parameters.train_steps)
    passed = min(steps * batch * (ranks if settings.parallel == "steps" else 1), rows)
    return Plan(
        ranks=ranks,
        passes=ranks // size,
        parallel=settings.parallel,
        epochs=_epochs(settings, ranks),
        steps=steps,
        local_batch=batch,
        rate=scaled_rate(_base_rate(settings), ranks, settings.lr_scaling),
        samples_per_epoch=passed * (ranks if settings.parallel == "epochs" else 1),
    )


def local_batch(settings: RunSettings, batch_size: int, size: int) -> int:
    """Samples of one rank in a step, of those that `size` ranks train as."""
    return scaled_batch(batch_size, _ranks(settings.emulate_ranks, size), settings.batch_scaling)


def passes_of_rank(settings: RunSettings, size: int) -> int:
    """Batches whose gradients each of `size` ranks adds up before a step."""
    return _ranks(settings.emulate_ranks, size) // size


def advice(settings: RunSettings, plan: Plan) -> list[str]:
    """Words of warning: where the papers' experience speaks against a plan, and where a part of it does nothing."""
    return [text for text in (_few_epochs(settings, plan), _idle_warmup(settings, plan)) if text]


def _few_epochs(settings: RunSettings, plan: Plan) -> str | None:
    known = settings.workload
    if plan.parallel == "epochs" and plan.ranks > 1 and plan.epochs < known.enough_epochs:
        epochs = settings.parameters.epochs
        most = max((n for n in range(1, epochs // known.enough_epochs + 1) if not epochs % n), default=1)
        fewer = f"Use at most {most} rank{'s' * (most > 1)}, more epochs, or --weak."
        return (
            f"{plan.epochs} epochs a rank: below {known.enough_epochs} {known.name} is known to lose "
            f"accuracy. {'Use more epochs.' if settings.work == 'weak' else fewer}"
        )
    return None


def _idle_warmup(settings: RunSettings, plan: Plan) -> str | None:
    if not settings.warmup_epochs:
        return None
    if plan.ranks == 1 or settings.lr_scaling == "none":
        return f"warmup_epochs={settings.warmup_epochs} has no effect: the rate is that of one rank from the beginning."
    if settings.warmup_epochs > plan.epochs:
        return (
            f"warmup_epochs={settings.warmup_epochs}: a rank has {plan.epochs} epochs, in which the rate does not reach "
            f"{plan.rate:g}."
        )
    return None


def _ranks(emulated: int, size: int) -> int:
    if not emulated:
        return size
    if emulated % size:
        choices = sorted({max(emulated // size, 1) * size, -(-emulated // size) * size})
        raise SettingsError(
            f"emulate_ranks={emulated} does not divide over {size} ranks ({emulated} % {size} = {emulated % size}). "
            f"Use {' or '.join(map(str, choices))}."
        )
    return emulated


def _epochs(settings: RunSettings, ranks: int) -> int:
    epochs = settings.parameters.epochs
    if settings.parallel == "epochs":
        return epochs if settings.work == "weak" else equal_epochs(epochs, ranks)
    return epochs * ranks if settings.work == "weak" else epochs


def _base_rate(settings: RunSettings) -> float:
    parameters = settings.parameters
    return (
        DEFAULT_RATES[parameters.optimizer] if parameters.learning_rate is None else parameters.learning_rate
    )


def _check_batch(settings: RunSettings, batch: int, mine: int, rows: int, ranks: int) -> None:
    if batch <= mine:
        return
    share = f" over {ranks} ranks is {mine} each" if settings.parallel == "steps" and ranks > 1 else ""
    scaled = f" (batch_size={settings.parameters.batch_size}, {settings.batch_scaling} for {ranks} ranks)"
    what = f"a batch of {batch}{scaled if batch != settings.parameters.batch_size else ''}"
    advice = f"The largest batch that works is {mine}." if mine else f"Use at most {rows} ranks."
    raise SettingsError(f"{what} does not fit: {rows} training samples{share}. {advice}")
