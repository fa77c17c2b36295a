"""Trainings with fit() go on bit for bit from the end of an epoch, on each of Keras' backends."""

import shutil
import tempfile

import numpy as np
import pytest

from ranktest import rank_test

BACKENDS = ["tensorflow", "jax", "torch"]


def made(hvd, distributed):
    import keras

    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(hvd.DistributedOptimizer(optimizer) if distributed else optimizer, "mse")
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.5, min_delta=0.5)
    stopping = keras.callbacks.EarlyStopping("loss", patience=50, restore_best_weights=True)
    return model, [plateau, stopping]


def fit(hvd, model, first, last, callbacks):
    rng = np.random.default_rng(hvd.rank())
    x = rng.normal(size=(64, 8)).astype("float32")
    alike = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    run = model.fit(
        x, x.sum(1, keepdims=True), batch_size=16, shuffle=False, verbose=0, initial_epoch=first, epochs=last,
        callbacks=[*alike, *callbacks],
    )  # fmt: skip
    return run.history["loss"]


def bits(model):
    import keras

    return [keras.ops.convert_to_numpy(v).tobytes() for v in [*model.variables, *model.optimizer.variables]]


@rank_test(n=2, door="keras", backends=BACKENDS, timeout=120)
@pytest.mark.parametrize("distributed", [True, False])
def test_training_goes_on_bit_for_bit(hvd, distributed):
    from farandole.checkpoint.timing import When
    from farandole.keras.checkpoint import Checkpoint

    folder = hvd.broadcast_object(tempfile.mkdtemp(prefix="farandole-test-") if hvd.rank() == 0 else None)
    when = When(epochs=1, signals=False)
    unbroken, callbacks = made(hvd, distributed)
    losses = fit(hvd, unbroken, 0, 6, callbacks)
    broken, knowing = made(hvd, distributed)
    checkpoint = Checkpoint(folder, broken, callbacks=knowing, when=when)
    first = fit(hvd, broken, checkpoint.restore(), 3, [*knowing, checkpoint])
    resumed, knowing = made(hvd, distributed)
    checkpoint = Checkpoint(folder, resumed, callbacks=knowing, when=when, background=True)
    rest = fit(hvd, resumed, checkpoint.restore(), 6, [*knowing, checkpoint])
    assert first + rest == losses
    assert bits(resumed) == bits(unbroken)
    assert [(c.wait, c.best) for c in knowing] == [(c.wait, c.best) for c in callbacks]
    shutil.rmtree(folder, ignore_errors=True)
