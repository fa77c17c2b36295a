"""Trainings with fit() go on bit for bit, from the end of an epoch or the middle of one, on each of Keras' backends."""


import numpy as np
import pytest

from kerasmodels import on_two
from ranktest import shared_folder

EPOCHS = 4
AT_ENDS = [({"epochs": 1}, True, (2, 0)), ({"steps": 4}, False, (1, 4))]
"""The second is saved after the last step of an epoch and before its end."""


def made(hvd, patience=50, passes=1):
    """A model that draws random numbers and keeps running means, and callbacks that remember."""
    import keras

    keras.utils.set_random_seed(7 + hvd.rank())
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), backward_passes_per_step=passes)
    model.compile(optimizer, "mse", metrics=["mae"])
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.5, min_delta=0.5)
    stopping = keras.callbacks.EarlyStopping("loss", patience=patience, min_delta=4.0, restore_best_weights=True)
    return model, [plateau, stopping]


def batches_at_hand(x, y):
    import keras

    class Batches(keras.utils.PyDataset):
        at_hand = True

        def __len__(self):
            return len(x) // 8

        def __getitem__(self, index):
            return x[8 * index : 8 * index + 8], y[8 * index : 8 * index + 8]

    return Batches()


def fit(hvd, model, callbacks, first=0, at_hand=False):
    rng = np.random.default_rng(hvd.rank())
    x = rng.normal(size=(32, 8)).astype("float32")
    y = x.sum(1, keepdims=True)
    given = {"x": batches_at_hand(x, y)} if at_hand else {"x": x, "y": y, "batch_size": 8}
    together = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    model.fit(**given, verbose=0, initial_epoch=first, epochs=EPOCHS, callbacks=[*together, *callbacks])
    history = model.history.history
    return list(zip(history.get("loss", []), history.get("mae", [])))


class Interrupted(Exception):
    pass


def interruption(at):
    import keras

    class Interruption(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if self.batches == at:
                raise Interrupted

    return Interruption()


def quiet(hvd):
    """The harness asks ranks by signals where they are."""
    return hvd.checkpoint.When(epochs=1, signals=False)


def bits(model, callbacks):
    import keras

    variables = [keras.ops.convert_to_numpy(v).tobytes() for v in [*model.variables, *model.optimizer.variables]]
    return variables, [(c.wait, c.best) for c in callbacks]


@on_two()
def test_training_goes_on_in_the_middle_of_an_epoch(hvd):
    goes_on_bit_for_bit(hvd, {"steps": 3}, False, (2, 1))


@on_two(["tensorflow"])
def test_training_goes_on_among_batches_at_hand(hvd):
    goes_on_bit_for_bit(hvd, {"steps": 3}, False, (2, 1), at_hand=True)


@on_two(["torch"])
@pytest.mark.parametrize(("when", "background", "at"), AT_ENDS)
def test_training_goes_on_between_epochs(hvd, when, background, at):
    goes_on_bit_for_bit(hvd, when, background, at)


@pytest.mark.soak
@on_two(["tensorflow", "jax"])
@pytest.mark.parametrize(("when", "background", "at"), AT_ENDS)
def test_training_goes_on_between_epochs_on_the_others(hvd, when, background, at):
    goes_on_bit_for_bit(hvd, when, background, at)


@on_two(["torch"])
def test_gradients_that_are_being_added_up_are_each_rank_s_own(hvd):
    goes_on_bit_for_bit(hvd, {"steps": 3}, False, (2, 1), passes=2)


@on_two(["torch"])
def test_a_training_goes_on_that_steps_after_more_batches(hvd):
    folder = shared_folder(hvd)
    for passes, counted in ((1, 16), (2, 32), (4, 64), (1, 16)):
        model, _ = made(hvd, passes=passes)
        checkpointer = hvd.checkpoint.Checkpointer(folder, model, when=quiet(hvd))
        first = checkpointer.restore()
        if first == 0:
            fit(hvd, model, [checkpointer])
        else:
            checkpointer.save()
            checkpointer.close()
        assert int(model.optimizer._iterations) == counted


@on_two(["torch"])
def test_the_best_by_validation_is_kept_whenever_else_saves_are_made(hvd):
    from farandole.checkpoint.folder import entries, load_manifest
    from farandole.errors import SettingsError

    def saved(folder, metric):
        model, _ = made(hvd)
        x = np.ones((16, 8), "float32")
        when, keep = hvd.checkpoint.When(steps=3, signals=False), hvd.checkpoint.Keep(last=1, best=1, metric=metric)
        checkpointer = hvd.checkpoint.Checkpointer(folder, model, when=when, keep=keep)
        checkpointer.restore()
        # The longer it trains on these, the worse it is at the others.
        model.fit(
            x, x[:, :1], batch_size=8, verbose=0, epochs=5, validation_freq=2, validation_data=(x, x[:, :1] + 1e3 * np.arange(16)[:, None]),
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), checkpointer],
        )  # fmt: skip
        hvd.barrier()
        return [(e.step, metric in load_manifest(e).metrics) for e in entries(checkpointer._checkpointer.folder)]

    folder = shared_folder(hvd)
    found = saved(folder, "val_loss")
    assert found[-1] == (9, False) and found[0][0] in (4, 8) and found[0][1] and len(found) == 2
    with pytest.raises(SettingsError, match="val_nothing"):
        saved(shared_folder(hvd), "val_nothing")


@on_two(["torch"])
def test_what_callbacks_know_by_number_comes_back(hvd):
    import keras

    class Knowing(keras.callbacks.Callback):
        def __init__(self, by_epoch):
            super().__init__()
            self.seen = by_epoch

    folder = shared_folder(hvd)
    for begin in ({1: 0.5, (2, 3): "x"}, {}):
        model, _ = made(hvd)
        knowing = Knowing(begin)
        checkpointer = hvd.checkpoint.Checkpointer(folder, model, callbacks=[knowing], when=quiet(hvd))
        checkpointer.restore()
        checkpointer.save()
        checkpointer.close()
    assert knowing.seen == {1: 0.5, (2, 3): "x"}


def goes_on_bit_for_bit(hvd, when, background, at, passes=1, at_hand=False):
    """Of 4 steps in an epoch; the 11th is the last before the end comes. `at`: the epoch and step to go on from."""
    when = hvd.checkpoint.When(**when, signals=False)
    unbroken, callbacks = made(hvd, passes=passes)
    losses = fit(hvd, unbroken, callbacks, at_hand=at_hand)
    folder = shared_folder(hvd)
    broken, knowing = made(hvd, passes=passes)
    checkpointer = hvd.checkpoint.Checkpointer(folder, broken, callbacks=knowing, when=when, background=background)
    assert checkpointer.restore() == 0
    with pytest.raises(Interrupted):
        fit(hvd, broken, [*knowing, checkpointer, interruption(11)], at_hand=at_hand)
    checkpointer.close()

    resumed, knowing = made(hvd, passes=passes)
    checkpointer = hvd.checkpoint.Checkpointer(folder, resumed, callbacks=knowing, when=when, background=background)
    first = checkpointer.restore()
    assert (first, checkpointer.progress.step_in_epoch) == at
    assert fit(hvd, resumed, [*knowing, checkpointer], first, at_hand) == losses[first:]
    assert bits(resumed, knowing) == bits(unbroken, callbacks)
    assert checkpointer.progress.step == 4 * EPOCHS


@on_two(["torch"])
def test_a_training_that_was_ended_by_a_callback_stays_ended(hvd):
    folder = shared_folder(hvd)
    for life in range(2):
        model, knowing = made(hvd, patience=1)
        checkpointer = hvd.checkpoint.Checkpointer(folder, model, callbacks=knowing, when=quiet(hvd))
        trained = fit(hvd, model, [*knowing, checkpointer], checkpointer.restore())
        if life == 0:
            assert 0 < len(trained) < EPOCHS
            before = bits(model, knowing)[0]
    assert trained == [] and bits(model, knowing)[0] == before


@on_two(["torch"])
def test_what_does_not_fit_is_said(hvd):
    import keras

    from farandole.errors import CheckpointError, SettingsError

    folder = shared_folder(hvd)
    model, knowing = made(hvd)
    with pytest.raises(SettingsError, match="call compile"):
        hvd.checkpoint.Checkpointer(folder, keras.Sequential([keras.Input((8,))]))
    checkpointer = hvd.checkpoint.Checkpointer(folder, model, when=quiet(hvd))
    fit(hvd, model, [checkpointer], checkpointer.restore())
    with pytest.raises(SettingsError, match="one fit"):
        fit(hvd, model, [checkpointer])

    checkpointer = hvd.checkpoint.Checkpointer(folder, model, when=quiet(hvd))
    checkpointer.restore()
    with pytest.raises(SettingsError, match=f"begins with epoch 0, the checkpoint with {EPOCHS}"):
        fit(hvd, model, [checkpointer])
    checkpointer.close()

    wider = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    wider.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    checkpointer = hvd.checkpoint.Checkpointer(folder, wider, callbacks=knowing)
    with pytest.raises(CheckpointError, match=r"float32 \[8, 16\] in the checkpoint"):
        checkpointer.restore()
    checkpointer.close()
