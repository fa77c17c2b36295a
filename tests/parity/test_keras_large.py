"""A model of 30 M parameters on ranks that share one core: callbacks that need a second thread would never return."""

import pytest

from ranktest import run_ranks

SCRIPT = """
    import os
    from concurrent.futures import ThreadPoolExecutor

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import keras
    import numpy as np

    import farandole.keras as hvd
    from onrank import result

    def values(model):
        return [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]

    def train(policy, steps):
        keras.utils.set_random_seed(hvd.rank())
        keras.mixed_precision.set_global_policy(policy)
        same = keras.initializers.Constant(1e-3 * (1 + hvd.rank()))  # random ones take long to make
        layers = [keras.layers.Dense(width, activation="tanh", kernel_initializer=same) for width in (7000, 600)]
        model = keras.Sequential([keras.Input((3600,)), *layers, keras.layers.Dense(1)])
        inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.001))
        model.compile(inner, "mse")
        rng = np.random.default_rng(hvd.rank())
        x, y = rng.normal(size=(2 * steps, 3600)).astype("float32"), np.ones((2 * steps, 1), "float32")
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        before = values(model)
        history = model.fit(x, y, batch_size=2, epochs=1, verbose=0, callbacks=callbacks).history
        after, found = values(model), inner.communication_statistics()
        return {
            "parameters": model.count_params(),
            "scaled": model.optimizer is not inner,
            "differ": hvd.check_buffers_match(after),
            "moved": all(not np.array_equal(a, b) for a, b in zip(before, after)),
            "loss": history["loss"][-1],
            "steps": found["steps"],
            "copied_per_step": found.get("copied_bytes", 0) / found["steps"],
        }

    def train_two_at_the_same_time():
        # Begun in another order on each rank: the one that waits must not keep the core from the other.
        keras.mixed_precision.set_global_policy("float32")
        models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]) for _ in range(2)]
        for model in models:
            hvd.broadcast_global_variables(0, model)
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        batch = np.full((2, 4), 1.0 + hvd.rank(), "float32"), np.zeros((2, 3), "float32")
        with ThreadPoolExecutor(2) as pool:
            steps = [pool.submit(lambda m: [m.train_on_batch(*batch) for _ in range(6)], m) for m in models[:: -1 if hvd.rank() else 1]]
            for done in steps:
                done.result()
        return hvd.check_buffers_match([v for model in models for v in values(model)])

    hvd.init()
    result([train("float32", 4), train("mixed_float16", 2), train_two_at_the_same_time()])
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_ranks_pinned_to_one_core_train_a_large_model(backend):
    env = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = run_ranks(2, SCRIPT, env=env, timeout=270)
    for wide, mixed, differ in run.results:
        assert differ == 0
        assert (wide["scaled"], mixed["scaled"]) == (False, True)
        assert (wide["steps"], mixed["steps"]) == (4 + 1, 2 + 1)  # and one that ends the training
        for found in (wide, mixed):
            assert found["parameters"] > 29e6
            assert found["differ"] == 0
            assert found["loss"] < 1e3
            assert found["copied_per_step"] < 1e6  # of 118 MB: the biases and the last layer, which are packed
        assert wide["moved"]
