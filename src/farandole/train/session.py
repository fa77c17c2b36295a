"""A run on one rank: load, preprocess, build, broadcast, train, evaluate, save. All ranks go through it together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from farandole.benchmarks import benchmark
from farandole.benchmarks.samples import TrainingData
from farandole.data.candle.tables import reading_with
from farandole.errors import FarandoleError, MismatchError, SettingsError, TrainingError
from farandole.observe.phases import PhaseTimes, phase, recorded
from farandole.train.checkpointing import RunCheckpoints, Spent
from farandole.train.machines import Machines, find_machines
from farandole.train.plan import Plan, advice, make_plan
from farandole.train.progress import RunLog
from farandole.train.settings import RunSettings

if TYPE_CHECKING:
    from farandole.train.callbacks import EpochRecord
    from farandole.train.memory_estimate import MemoryEstimate

__all__ = ["MODEL", "RankRecord", "Trained", "make_missing_data", "on_rank_0", "run_on_rank", "same_weights", "start", "steered_by_validation"]

MODEL = "model.keras"
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
    settings: RunSettings, log: RunLog, *, began: float, data: TrainingData | None = None
) -> Trained:
    """After `start`. Collective: every rank calls it. `began` is when this rank did, by `time.perf_counter()`.

    `data`, the same on every rank, takes the place of the benchmark's files.
    """
    with recorded() as times:
        times.add("start", time.perf_counter() - began)
        return _Session(settings, log, times, began).run(data)


def start(framework: str, comm: Any = None) -> None:
    """Keras with its backend, and the world of ranks."""
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() != framework:
        raise SettingsError(
            f"framework={framework}: this process has loaded Keras with {keras.backend.backend()} already. Set "
            f"KERAS_BACKEND={framework} before Python starts, or use framework={keras.backend.backend()}."
        )
    os.environ["KERAS_BACKEND"] = framework
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import farandole.keras as hvd
        from farandole.comm import world
    except ImportError as error:
        raise SettingsError(
            f"framework={framework} cannot be loaded: {error}. Type: pip install 'farandole[keras,{framework}]'"
        ) from error
    if hvd.is_initialized():
        _check_communicator(comm)
        return
    hvd.init(comm)
    _communicators[world.current()] = comm


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
        self._known = benchmark(settings.benchmark)
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
        plan = make_plan(self._settings, len(data.train), self._size)
        with phase("build"):
            model = self._build(data, plan)
            self._compile_sums(model)
        self._log.plan(self._settings, plan, data, int(model.count_params()), self._memory.peak_bytes)
        for text in advice(self._settings, plan):
            self._note(text)
        self._note(_told_of_ignored(self._settings.ignored))
        self._note(self._machines.crowded)
        self._tests_early = data.validation is data.test
        self._note(_told_of_validation(self._settings) if self._tests_early else None)
        with phase("broadcast"):
            from farandole.keras import broadcast_global_variables

            broadcast_global_variables(0, model)
        with phase("train"):
            epochs = self._train(model, data, plan)
        with phase("evaluate"):
            test = self._evaluate(model, data, plan)
            epochs.add_evaluation(test)
        with phase("save"):
            digest = same_weights(model.get_weights())
            self._note(on_rank_0(lambda: self._save(model)))
        return self._result(model, plan, epochs, test, digest)

    def _loaded(self) -> TrainingData:
        on_rank_0(lambda: make_missing_data(self._settings))
        self._foresee()
        with phase("preprocess"), self._log.loading(), reading_with(self._settings.loader):
            return self._known.load(self._settings.data_folder, self._settings.parameters)

    def _foresee(self) -> None:
        """Say what the run will need before anything is loaded, and refuse what cannot fit. Collective."""
        from farandole.data.candle.shapes import table_shapes
        from farandole.train.memory_check import check_before_loading, text_bytes

        settings, share = self._settings, self._share()
        with phase("build"):
            roles = self._known.roles(settings.parameters)
            shapes, text = on_rank_0(
                lambda: (table_shapes(settings.benchmark, settings.data_folder, roles), text_bytes(settings, roles))
            )
            self._foreseen = check_before_loading(
                settings, shapes, text, size=self._size, local_size=self._local_size, share=share
            )
        self._log.needs(settings, self._foreseen, share)

    def _share(self) -> int:
        """Of the memory that is free, for each rank. Collective: all ranks must decide alike."""
        from farandole.comm.collectives import allgather_object
        from farandole.train.cgroup import available_bytes

        return int(min(allgather_object(available_bytes() // self._local_size)))

    def _build(self, data: TrainingData, plan: Plan) -> Any:
        import keras

        from farandole.train.memory_check import check_training
        from farandole.train.optimizer import compile_model
        from farandole.train.seeds import spread_seeds

        parameters = self._settings.parameters
        found = check_training(self._settings, data, size=self._size, share=self._share())
        self._memory = self._foreseen or found
        # Keras draws the seeds of layers from here. Its own set_random_seed loads every framework that is installed.
        random.seed(parameters.rng_seed)
        model = self._known.build(parameters, data)
        spread_seeds(model, self._rank, self._size)
        try:
            loss = keras.losses.get(self._known.loss(parameters))
        except ValueError:
            raise SettingsError(
                f"loss={parameters.loss!r} is unknown. Use a Keras loss by name, e.g. mse."
            ) from None
        compile_model(model, parameters.optimizer, plan, loss, self._known.metrics(parameters, data))
        return model

    def _compile_sums(self, model: Any) -> None:
        """The first training on a machine would wait for the compiler in its first step."""
        from farandole.comm.floats import LEAST_BYTES, prepare

        gradients = np.dtype(np.float32)
        if self._size > 1 and model.count_params() * gradients.itemsize >= LEAST_BYTES:
            with phase("compile"):
                prepare(gradients)

    def _train(self, model: Any, data: TrainingData, plan: Plan) -> Any:
        import keras

        from farandole.train.batches import TrainingBatches
        from farandole.train.callbacks import Epochs, StopWhenNotFinite, Timeout, WarmUp

        parameters = self._settings.parameters
        batches = TrainingBatches(
            data.train,
            plan,
            seed=parameters.rng_seed,
            shuffle=parameters.shuffle,
            rank=self._rank,
            size=self._size,
        )
        validation = self._shares(data.validation, plan, parameters.val_steps)
        epochs = Epochs(
            plan, batches, validation, self._test_shares(data, plan), lambda record: self._log.epoch(plan, record)
        )
        watch = self._watch = StopWhenNotFinite(plan)
        callbacks: list[Any] = [epochs, watch]
        if parameters.reduce_lr:
            callbacks.append(keras.callbacks.ReduceLROnPlateau("val_loss", 0.1, patience=10, min_delta=1e-4))
        knowing, first = callbacks[2:], 0
        self._spent = Spent(self._times, self._began, model.optimizer.communication_statistics)
        if self._settings.warmup_epochs:
            callbacks.append(WarmUp(plan, self._settings.warmup_epochs, self._settings.lr_scaling))
        if self._settings.checkpoint_folder is not None:
            checkpoints = self._checkpoints = RunCheckpoints(
                self._settings, model, plan, epochs=epochs, knowing=knowing, spent=self._spent, note=self._note
            )
            first, watch.last_good = checkpoints.restore(), checkpoints.last_good
            callbacks.append(checkpoints.callback)
        # After the checkpoints: for them, training has not ended.
        if parameters.timeout > 0:
            callbacks.append(Timeout(parameters.timeout, self._note))
        try:
            with self._log.training(plan, first):
                model.fit(batches, epochs=plan.epochs, initial_epoch=first, shuffle=False, verbose=0, callbacks=callbacks)
        except MismatchError as error:  # all ranks have the same steps: one has left them
            raise TrainingError(
                f"[rank {self._rank}/{self._size}] another rank has left the training, as it does when its loss is no number: "
                f"its own message says why. {error}"
            ) from error
        return epochs

    def _evaluate(self, model: Any, data: TrainingData, plan: Plan) -> dict[str, float]:
        from farandole.train.callbacks import evaluated

        found = evaluated(model, self._shares(data.test, plan, self._settings.parameters.test_steps))
        self._watch.check("test", found["loss"], "after training")
        return found

    def _test_shares(self, data: TrainingData, plan: Plan) -> Any:
        """None where validation is on the same data, and as much of it."""
        parameters = self._settings.parameters
        if data.test is data.validation and parameters.test_steps == parameters.val_steps:
            return None
        return self._shares(data.test, plan, parameters.test_steps)

    def _shares(self, samples: Any, plan: Plan, most: int) -> Any:
        from farandole.train.batches import EvaluationBatches

        return EvaluationBatches(samples, plan.local_batch, rank=self._rank, size=self._size, most=most * plan.passes)

    def _save(self, model: Any) -> str | None:
        """What to say where the model cannot be written: what is known of the training is worth keeping without it."""
        folder = self._settings.output_dir
        if folder is None:
            return None
        try:
            with _unused_tensorflow():
                model.save(folder / MODEL)
        except OSError as error:
            with contextlib.suppress(OSError):
                (folder / MODEL).unlink()  # a part of it
            return f"the model is not kept: {folder / MODEL} cannot be written ({error.strerror or error})"
        return None

    def _result(self, model: Any, plan: Plan, epochs: Any, test: dict[str, float], digest: str) -> Trained:
        from farandole.comm.collectives import allgather_object

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
            parameters=int(model.count_params()),
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
    from farandole.comm.collectives import allgather_object

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
    from farandole.comm.collectives import broadcast_object

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
    return f"validation is on the test set{steers}: test figures are no independent test (see --val_split)"


def _told_of_ignored(values: Mapping[str, Any]) -> str | None:
    told = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"ignored: {told}. It changes a training of CANDLE's, and none here." if told else None


@contextlib.contextmanager
def _unused_tensorflow() -> Iterator[None]:
    """Where TensorFlow is installed and not in use, Keras loads it to save a model: seconds, and half a gigabyte."""
    if "tensorflow" in sys.modules:
        yield
        return
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["tensorflow"]


def make_missing_data(settings: RunSettings) -> None:
    """Files of a preset that makes them, where they are not there."""
    from farandole.data.candle import find
    from farandole.data.make import make
    from farandole.errors import DataError

    folder = settings.data_folder
    try:
        find(settings.benchmark, folder, benchmark(settings.benchmark).roles(settings.parameters))
        return
    except DataError as error:
        if not settings.makes_data:
            raise
        missing = error
    try:
        make(settings.benchmark, folder, preset=settings.preset, progress=sys.stderr.isatty())
    except SettingsError:  # files are there that are not made like these: a run replaces none
        raise missing from None
    print(f"farandole: {folder} had no files of {settings.benchmark}: made synthetic ones", file=sys.stderr, flush=True)
