"""The Keras door with a release of Keras that nobody has tried it with: it says so once, and trains in Keras' own steps."""

import sys
import warnings

import numpy as np

from kerasmodels import compiled, data, model_of, weights
from ranktest import rank_test, shared_folder

ENV = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "JAX_ENABLE_X64": "0"}  # in processes of their own


def on_two(function):
    return rank_test(n=2, door="keras", env=ENV, backends=["torch", "tensorflow", "jax"], more=("torch", "tensorflow"), timeout=90)(function)


def assert_all_train(hvd, model, batch=8):
    """And make the steps of one process."""
    import keras

    whole = keras.models.clone_model(model)
    whole.set_weights(model.get_weights())
    steps = model.optimizer.gradient_accumulation_steps
    whole.compile(keras.optimizers.SGD(0.05, gradient_accumulation_steps=steps), "mse")
    x, y = data(4 * batch)
    whole.fit(x, y, batch_size=2 * batch, shuffle=False, verbose=0)
    halves = [half.reshape(2, 2, batch, -1)[:, hvd.rank()].reshape(2 * batch, -1) for half in (x, y)]
    model.fit(*halves, batch_size=batch, shuffle=False, verbose=0)
    for ours, theirs in zip(weights(model), weights(whole)):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)  # sums of float32 in another order
    assert hvd.check_buffers_match(weights(model)) == 0


@on_two
def test_it_says_so_once_and_trains(hvd):
    import keras

    keras.__version__ = "3.999.0"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_all_train(hvd, compiled(hvd, model_of()))
        assert_all_train(hvd, compiled(hvd, model_of(), backward_passes_per_step=2, average_aggregated_gradients=True))
        # A tried JAX takes steps with such gradients apart, a tried TensorFlow lets epochs of arrays end.
        assert_all_train(hvd, compiled(hvd, model_of([1_000_001, 1] if keras.backend.backend() == "jax" else [3])))
    told = [str(w.message) for w in caught if "farandole" in str(w.message)]
    assert len(told) == 1 and "not been tried with Keras 3.999.0" in told[0]
    changed = [name for name in sys.modules if name.startswith("farandole.keras.private.on_")]
    assert changed == ["farandole.keras.private.on_all"]


@on_two
def test_checkpoints_go_on(hvd):
    import keras

    keras.__version__ = "3.999.0"
    folder, runs = shared_folder(hvd), []
    for epochs in (2, 1, 2):
        model = compiled(hvd, model_of())
        saving = hvd.checkpoint.Checkpointer(folder, model, when=hvd.checkpoint.When(epochs=1)) if epochs == 1 or runs else None
        first = saving.restore() if len(runs) == 2 else 0
        model.fit(
            *data(16, hvd.rank()), batch_size=8, initial_epoch=first, epochs=epochs, shuffle=False, verbose=0,
            callbacks=[saving] if saving else [],
        )  # fmt: skip
        runs.append(weights(model))
    for whole, again in zip(runs[0], runs[2]):
        assert (whole == again).all()
