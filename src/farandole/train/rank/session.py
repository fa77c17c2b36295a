"""A run on one rank: load, preprocess, build, broadcast, train, evaluate, save. All ranks go through it together."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import socket
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from farandole.data.table_reader import reading_with
from farandole.errors import FarandoleError, SettingsError, TrainingError
from farandole.observe.phases import PhaseTimes, phase, recorded
from farandole.train.importing import keras_backend
from farandole.train.plan import Plan, advice, make_plan
from farandole.train.preparing import MODEL_FILES, make_missing_data
from farandole.train.rank.checkpointing import RunCheckpoints, Spent
from farandole.train.rank.machines import Machines, find_machines
from farandole.train.rank.progress import RunLog
from farandole.train.rank.together import check_alike, loaded_by_user
from farandole.train.rank.trainer import Trainer, make_trainer
from farandole.train.settings import RunSettings
from farandole.workloads.samples import Stream, TrainingData

if TYPE_CHECKING:
    from farandole.train.rank.hooks import EpochRecord, Epochs, Hook
    from farandole.train.rank.memory_estimate import MemoryEstimate

__all__ = ["RankRecord", "Trained", "on_rank_0", "run_on_rank", "same_weights", "start", "steered_by_validation"]

Known = TypeVar("Known")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """What one rank has measured of itself."""

    host: str
    phases_s: dict[str, float]
    total_s: float
    epoch_s: list[float]
    steady_s: list[float]
    """Of steps by which the speed of training is judged: see `Epochs.steady_s`."""
    communication: dict[str, float]
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a run has come to; the same on every rank."""

    plan: Plan
    epochs: list[EpochRecord]
    test: dict[str, float]
    parameters: int
    memory: MemoryEstimate
    weights_sha256: str
    ranks: list[RankRecord]
    notes: list[str]
    begun_with: list[int]
    """The epochs that parts of the run began with."""
    machines: Machines
    collective: dict[str, Any]
    """What a step sends on this rank, and how: see `_step_communication`."""
    tests_early: bool
    """Whether validation was on the test data."""
    checkpoints: dict[str, Any] | None
    """Where they are and which one it has gone on from; None where none were made."""


def run_on_rank(
    settings: RunSettings, log: RunLog, *, began: float, data: TrainingData | None = None, prepared: bool = False
) -> Trained:
    """After `start`. Collective: every rank calls it. `began` is when this rank did, by `time.perf_counter()`.

    `data`, the same on every rank, replaces what the workload loads. `prepared`: missing files have been made.
    """
    with recorded() as times:
        times.add("start", time.perf_counter() - began)
        if data is None and not prepared:
            on_rank_0(lambda: make_missing_data(settings))
        return _Session(settings, log, times, began).run(data)


def start(api: str, framework: str, comm: Any = None) -> None:
    """The framework, Keras with its backend where it trains, and the world of ranks."""
    if api == "keras":
        _check_backend(framework)
        keras_backend(framework)
    try:
        hvd: Any = importlib.import_module(f"farandole.{api}")
        from farandole.comm import world
    except ImportError as error:
        raise SettingsError(
            f"{'framework=' + framework if api == 'keras' else 'torch'} cannot be loaded: {error}. Type: pip install "
            f"'farandole[{'keras,' if api == 'keras' else ''}{framework}]'"
        ) from error
    if hvd.is_initialized():
        _check_communicator(comm)
        return
    hvd.init(comm)
    _communicators[world.current()] = comm


def _check_backend(framework: str) -> None:
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() != framework:
        raise SettingsError(
            f"framework={framework}: this process has loaded Keras with {keras.backend.backend()} already. Set "
            f"KERAS_BACKEND={framework} before Python starts, or use framework={keras.backend.backend()}."
        )


_communicators: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""What each world was started with here."""


def _check_communicator(comm: Any) -> None:
    """Refuse another one than this process trains on already."""
    from farandole.comm import world

    if comm is None:
        return
    here = world.current()
    known = _communicators.get(here)
    size = comm.Get_size() if hasattr(comm, "Get_size") else len(comm)
    if size != here.size if known is None else comm != known:
        raise SettingsError(
            f"comm={comm}: this process trains on other ranks already, {here.size} in all. Give the same communicator, "
            "none, or call farandole.shutdown() before."
        )


class _Session:
    def __init__(self, settings: RunSettings, log: RunLog, times: PhaseTimes, began: float) -> None:
        from farandole.comm import world

        self._settings, self._log, self._times, self._began = settings, log, times, began
        self._rank, self._size, self._local_size = world.rank(), world.size(), world.local_size()
        self._notes: list[str] = []
        self._checkpoints: RunCheckpoints | None = None
        self._watch: Any = None
        self._tests_early = False
        self._foreseen: MemoryEstimate | None = None
        self._memory: MemoryEstimate

    def run(self, given: TrainingData | None) -> Trained:
        self._machines = find_machines(self._settings.framework)
        data = self._loaded() if given is None else given
        check_alike(data)
        plan = self._planned(data)
        with phase("build"):
            trainer = self._build(data, plan)
            self._compile_sums(trainer)
        self._log.plan(self._settings, plan, data, trainer.parameters, self._memory.peak_bytes)
        self._tests_early = data.validation is data.test
        for text in (
            *advice(self._settings, plan), _told_of_ignored(self._settings.ignored), self._machines.crowded,
            _told_of_validation(self._settings) if self._tests_early else None,
        ):  # fmt: skip
            self._note(text)
        with phase("broadcast"):
            trainer.broadcast()
        with phase("train"):
            epochs = self._train(trainer, data, plan)
        with phase("evaluate"):
            test = trainer.evaluate(self._shares(data.test, plan, self._settings.parameters.test_steps))
            self._watch.check("test", test["loss"], "after training")
            epochs.add_evaluation(test)
        with phase("save"):
            digest = same_weights(trainer.weights())
            self._note(on_rank_0(lambda: self._save(trainer)))
        return self._result(trainer, plan, epochs, test, digest)

    def _planned(self, data: TrainingData) -> Plan:
        if isinstance(data.train, Stream) and self._settings.parallel == "epochs":
            raise SettingsError("parallel=epochs: ranks share the batches of a stream, and none has an order of its own. Use parallel=steps.")
        return make_plan(self._settings, len(data.train), self._size)

    def _loaded(self) -> TrainingData:
        settings = self._settings
        if settings.workload.files is not None:
            self._foresee()
        with phase("preprocess"), self._log.loading(), reading_with(settings.loader):
            return loaded_by_user(settings)

    def _foresee(self) -> None:
        """Say what the run will need before anything is loaded, and refuse what cannot fit. Collective."""
        from farandole.train.rank.memory_check import check_before_loading, text_bytes

        settings, share = self._settings, self._share()
        with phase("build"):
            roles = settings.workload.roles(settings.parameters)
            shapes, text = on_rank_0(lambda: (settings.tables.shapes(settings.data_folder, roles), text_bytes(settings, roles)))
            self._foreseen = check_before_loading(
                settings, shapes, text, size=self._size, local_size=self._local_size, share=share
            )
        self._log.needs(settings, self._foreseen, share)

    def _share(self) -> int:
        """Of the memory that is free, for each rank. Collective: all ranks must decide alike."""
        from farandole.comm.named.collectives import allgather_object
        from farandole.train.rank.cgroup import available_bytes

        return int(min(allgather_object(available_bytes() // self._local_size)))

    def _build(self, data: TrainingData, plan: Plan) -> Trainer:
        from farandole.train.rank.memory_check import check_training

        settings, share = self._settings, self._share()
        self._memory = self._foreseen or check_training(settings, data, size=self._size, share=share)
        trainer = make_trainer(settings, plan, data, rank=self._rank, size=self._size)
        if (layers := trainer.layers(data)) is not None:
            self._memory = check_training(settings, data, size=self._size, share=share, layers=layers)
        return trainer

    def _compile_sums(self, trainer: Trainer) -> None:
        """The first training on a machine would wait for the compiler in its first step."""
        from farandole.comm.node.arithmetic import LEAST_BYTES, prepare

        gradients = np.dtype(np.float32)
        if self._size > 1 and trainer.parameters * gradients.itemsize >= LEAST_BYTES:
            with phase("compile"):
                prepare(gradients)

    def _train(self, trainer: Trainer, data: TrainingData, plan: Plan) -> Epochs:
        from farandole.train.rank.batches import TrainingBatches
        from farandole.train.rank.hooks import Epochs, ReduceRate, StopWhenNotFinite, Timeout, WarmUp

        settings, parameters = self._settings, self._settings.parameters
        batches = TrainingBatches(
            data.train, plan, seed=parameters.rng_seed, shuffle=parameters.shuffle, rank=self._rank, size=self._size
        )
        validation = self._shares(data.validation, plan, parameters.val_steps)
        epochs = Epochs(
            plan, trainer, batches, validation, self._test_shares(data, plan), lambda record: self._log.epoch(plan, record)
        )
        self._watch = StopWhenNotFinite(plan, trainer)
        knowing = {"reduce rate": ReduceRate(trainer)} if parameters.reduce_lr else {}
        hooks: list[Hook] = [epochs, self._watch, *knowing.values()]
        if settings.warmup_epochs:
            hooks.append(WarmUp(plan, trainer, settings.warmup_epochs, settings.lr_scaling))
        # After the checkpoints: for them, training has not ended.
        after = [Timeout(plan, trainer, parameters.timeout, self._note)] if parameters.timeout > 0 else []
        self._spent = Spent(self._times, self._began, trainer.communication)
        first = self._restored(trainer, plan, epochs, knowing) if settings.checkpoint_folder is not None else 0
        with self._log.training(plan, first):
            trainer.fit(batches, hooks, self._checkpoints, after, first)
        return epochs

    def _restored(self, trainer: Trainer, plan: Plan, epochs: Epochs, knowing: Mapping[str, Any]) -> int:
        """The epoch to begin with."""
        self._checkpoints = RunCheckpoints(
            self._settings, trainer, plan, epochs=epochs, knowing=knowing, spent=self._spent, note=self._note
        )
        self._watch.last_good = self._checkpoints.last_good
        return self._checkpoints.restore()

    def _test_shares(self, data: TrainingData, plan: Plan) -> Any:
        """None where validation is on the same data, and as much of it."""
        parameters = self._settings.parameters
        if data.test is data.validation and parameters.test_steps == parameters.val_steps:
            return None
        return self._shares(data.test, plan, parameters.test_steps)

    def _shares(self, samples: Any, plan: Plan, most: int) -> Any:
        from farandole.train.rank.batches import EvaluationBatches

        return EvaluationBatches(samples, plan.local_batch, rank=self._rank, size=self._size, most=most * plan.passes)

    def _save(self, trainer: Trainer) -> str | None:
        """What to say where the model cannot be written: what is known of the training is worth keeping without it."""
        if self._settings.output_dir is None:
            return None
        path = self._settings.output_dir / MODEL_FILES[self._settings.api]
        try:
            trainer.save(path)
        except (OSError, RuntimeError) as error:  # torch's writer of files raises RuntimeError
            with contextlib.suppress(OSError):
                path.unlink()  # a part of it
            return f"the model is not kept: {path} cannot be written ({getattr(error, 'strerror', None) or error})"
        return None

    def _result(self, trainer: Trainer, plan: Plan, epochs: Epochs, test: dict[str, float], digest: str) -> Trained:
        from farandole.comm.named.collectives import allgather_object

        checkpoints, spent = self._checkpoints, self._spent
        mine = RankRecord(
            host=socket.gethostname(),
            phases_s=dict(self._times.seconds),
            total_s=spent.total_s(),
            epoch_s=[record.seconds for record in epochs.records],
            steady_s=epochs.steady_s(),
            communication=spent.communication(),
            peak_memory_bytes=spent.peak_memory_bytes(),
        )
        return Trained(
            plan=plan,
            epochs=epochs.records,
            test=test,
            parameters=trainer.parameters,
            memory=self._memory,
            weights_sha256=digest,
            ranks=allgather_object(mine),
            notes=self._notes,
            begun_with=epochs.begun_with,
            checkpoints=None if checkpoints is None else checkpoints.as_record(),
            collective=_step_communication(),
            machines=self._machines,
            tests_early=self._tests_early,
        )

    def _note(self, text: str | None) -> None:
        if text:
            self._notes.append(text)
            self._log.say(f"note: {text}")


def same_weights(weights: Sequence[Any]) -> str:
    """A digest of them; an error where ranks have ended with others. Collective."""
    from farandole.comm.named.collectives import allgather_object

    digest = hashlib.sha256()
    for array in weights:
        digest.update(np.ascontiguousarray(array).data)
    found = allgather_object(digest.hexdigest())
    odd = [rank for rank, theirs in enumerate(found) if theirs != found[0]]
    if odd:
        raise TrainingError(f"ranks {odd} end with other weights than rank 0: this is a defect, please report it")
    return str(found[0])


def on_rank_0(action: Callable[[], Known]) -> Known:
    """Done by rank 0 while the others wait; what it returns, or its error, is that of all. Collective."""
    from farandole.comm import world
    from farandole.comm.named.collectives import broadcast_object

    found: Any = None
    error: FarandoleError | None = None
    if world.rank() == 0:
        try:
            found = action()
        except FarandoleError as raised:
            error = raised
        except OSError as raised:
            error = TrainingError(f"rank 0 cannot read or write a file: {raised}")
    found, error = broadcast_object((found, error), 0)
    if error is not None:
        raise error
    return cast(Known, found)


def steered_by_validation(settings: RunSettings) -> str | None:
    """What the validation loss decides in a run."""
    steers_checkpoint = settings.checkpoint_best.startswith("val_")
    decided = {"learning rate": settings.parameters.reduce_lr, "choice of the best checkpoint": steers_checkpoint}
    return " and the ".join(name for name, is_so in decided.items() if is_so) or None


def _step_communication() -> dict[str, Any]:
    """Bytes and messages of a step on this rank, and the algorithm, as the newest plan of gradients has them."""
    from farandole.comm import world

    names = ("bytes_per_step", "messages_per_step", "collective")
    plans = world.current().record.get("plans", [])
    if world.size() == 1:
        return dict.fromkeys(names[:2], 0) | {"collective": None}
    return {name: plans[-1][name] if plans else None for name in names}


def _told_of_validation(settings: RunSettings) -> str:
    """Where it is on the data that the model is judged by at the end."""
    steered = steered_by_validation(settings)
    steers = f" and steers the {steered}" if steered else ""
    remedy = " (see --val_split)" if hasattr(settings.parameters, "val_split") else ""
    return f"validation is on the test set{steers}: test figures are no independent test{remedy}"


def _told_of_ignored(values: Mapping[str, Any]) -> str | None:
    told = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"ignored: {told}. It changes a training of CANDLE's, and none here." if told else None
