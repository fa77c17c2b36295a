"""fit() on N ranks with a batch of B = fit() on one process with a batch of N * B, on every backend.

Models are float64: all ranks have the same bits, and N ranks come within `TOLERANCE` of plain Keras, because the mean
of the shards' means adds the same numbers in another order, which a few steps of a smooth model hardly amplify. Off
TensorFlow Keras would compute part of a float64 model in float32, also on one process: see `in_float64`.
"""

import pytest

from ranktest import rank_test

BACKENDS = ("torch", "tensorflow", "jax")
ENV = {"JAX_ENABLE_X64": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
TOLERANCE = 1e-9
ROWS, BATCH = 96, 24  # over 1, 2 or 3 ranks without a remainder


FEW_KINDS = ["adam", "accumulated"]
KINDS = ["sgd", "momentum", "adam", "rmsprop", "lars", "clipped", "accumulated"]


def on_ranks(n, backends=BACKENDS):
    return rank_test(n=n, door="keras", env=ENV, backends=backends, more=("tensorflow", "jax"), timeout=90)


def data(rank=0, size=1):
    import numpy as np

    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 6))
    return x[rank::size], (x[:, :1] * x[:, 1:2] - x[:, 2:3])[rank::size]


def in_float64():
    """Keras' rule for the type of a result makes float32 of float64 on torch and JAX, in losses and in kernels."""
    import keras
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def build(seed=0, width=1024):
    """A matrix that is reduced where it lies (1.2 MB) and packed ones."""
    import keras

    in_float64()
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(width, "tanh"), layers.Dense(150, "tanh"), layers.Dense(1)]
    )


def make(kind):
    import keras

    from farandole.optim.lars_keras import LARS

    return {
        "sgd": lambda: keras.optimizers.SGD(0.05),
        "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
        "lars": lambda: LARS(0.5, lars_weight_decay=0.01, trust_coefficient=0.05),
        "clipped": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.05, use_ema=True),
        "accumulated": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
    }[kind]()


def weights(model):
    import keras

    return [keras.ops.convert_to_numpy(v) for v in model.variables]


def assert_same(hvd, model, expected):
    assert hvd.check_buffers_match(weights(model)) == 0
    assert_close(model, expected)


def assert_close(model, expected):
    import numpy as np

    found = weights(model)
    assert any(not np.array_equal(a, b) for a, b in zip(found, weights(build()))), "nothing trained"
    for variable, value, wanted in zip(model.variables, found, expected):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=TOLERANCE, err_msg=variable.path)


def fit(model, x, y, size=1, **options):
    return model.fit(x, y, batch_size=BATCH // size, shuffle=False, epochs=2, verbose=0, **options).history


def on_root(hvd, function):
    """What plain Keras has trained, computed once for all ranks."""
    in_float64()
    return hvd.broadcast_object(function() if hvd.rank() == 0 else None)


def plain(hvd, kind):
    """(weights, history) of one process."""

    def train():
        model = build()
        model.compile(make(kind), "mse", metrics=["mae"])
        history = fit(model, *data())
        return weights(model), history

    return on_root(hvd, train)


def check_ranks_train_what_one_process_trains(hvd, kind):
    import numpy as np

    expected, history = plain(hvd, kind)
    model = build(seed=hvd.rank())
    model.compile(hvd.DistributedOptimizer(make(kind)), "mse", metrics=["mae"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    found = fit(model, *data(hvd.rank(), hvd.size()), hvd.size(), callbacks=callbacks)
    assert_same(hvd, model, expected)
    for name, values in history.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


@on_ranks(2)
@pytest.mark.parametrize("kind", FEW_KINDS)
def test_ranks_train_what_one_process_trains(hvd, kind):
    check_ranks_train_what_one_process_trains(hvd, kind)


@pytest.mark.soak
@on_ranks(2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FEW_KINDS])
def test_ranks_train_with_other_optimizers_too(hvd, kind):
    check_ranks_train_what_one_process_trains(hvd, kind)


@pytest.mark.more
@on_ranks(3, ["torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_three_ranks_train_what_one_process_trains(hvd, kind):
    check_ranks_train_what_one_process_trains(hvd, kind)


@pytest.mark.soak
@on_ranks(3, ["tensorflow", "jax"])
@pytest.mark.parametrize("kind", KINDS)
def test_three_ranks_train_what_one_process_trains_elsewhere(hvd, kind):
    check_ranks_train_what_one_process_trains(hvd, kind)


@on_ranks(1, ["torch"])
@pytest.mark.parametrize("kind", ["adam", "accumulated"])
def test_one_rank_trains_what_one_process_trains(hvd, kind):
    check_ranks_train_what_one_process_trains(hvd, kind)


@pytest.mark.soak
@on_ranks(1, ["tensorflow", "jax"])
@pytest.mark.parametrize("kind", ["adam", "accumulated"])
def test_one_rank_trains_what_one_process_trains_elsewhere(hvd, kind):
    check_ranks_train_what_one_process_trains(hvd, kind)


@on_ranks(2)
def test_several_steps_in_one_call(hvd):
    import keras

    expected, _ = plain(hvd, "momentum")
    model = build(seed=hvd.rank())
    steps = 1 if keras.backend.backend() == "torch" else 2  # Keras' own limit
    model.compile(hvd.DistributedOptimizer(make("momentum")), "mse", steps_per_execution=steps)
    fit(
        model, *data(hvd.rank(), hvd.size()), hvd.size(),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )  # fmt: skip
    assert_same(hvd, model, expected)


@on_ranks(2, ["jax"])
def test_a_step_in_two_parts_trains_the_same(hvd):
    """A gradient of 16 MiB, whose result the ranks share, is reduced between the two."""

    def train(optimizer, rank, size, **options):
        model = build(seed=rank, width=14_000)
        model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=2)
        history = fit(model, *data(rank, size), size, **options)
        return weights(model), history

    expected, history = on_root(hvd, lambda: train(make("clipped"), 0, 1))
    optimizer = hvd.DistributedOptimizer(make("clipped"))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    found, averaged = train(optimizer, hvd.rank(), hvd.size(), callbacks=callbacks)
    assert hvd.check_buffers_match(found) == 0
    for value, wanted in zip(found, expected):
        assert abs(value - wanted).max() < TOLERANCE
    for name, values in history.items():
        assert max(abs(a - b) for a, b in zip(averaged[name], values)) < 1e-5
    moved = optimizer.communication_statistics()
    assert moved["copied_bytes"] < 0.1 * moved["bytes"]  # the small ones


@on_ranks(2, ["jax"])
@pytest.mark.parametrize(("policy", "width"), [("float64", 14_000), pytest.param("bfloat16", 60_000, marks=pytest.mark.soak)])
def test_a_step_in_two_parts_trains_what_a_whole_one_does(hvd, policy, width):
    """With a layer that is each rank's own; and where XLA may round at other places, to the type's precision."""
    import keras
    import numpy as np

    class Whole(keras.Sequential):
        """A step of the user's own is not taken apart."""

        def train_step(self, *args, **options):
            return super().train_step(*args, **options)

    def train(kind):
        in_float64()
        keras.config.set_dtype_policy(policy)
        keras.utils.set_random_seed(0)
        widths = [keras.layers.Dense(n, "tanh") for n in (width, 150)]
        model = kind([keras.Input((6,)), *widths, keras.layers.Dense(1)])
        optimizer = hvd.PartialDistributedOptimizer(make("momentum"), local_layers=[model.layers[-1]])
        model.compile(optimizer, "mse")
        fit(model, *data(hvd.rank(), hvd.size()), hvd.size())
        return [value.astype("float64") for value in weights(model)]

    found, expected = train(keras.Sequential), train(Whole)
    keras.config.set_dtype_policy("float64")
    tolerance = TOLERANCE if policy == "float64" else 2**-6
    for value, wanted in zip(found, expected):
        np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance)
    ours, shared = found[4:6], found[:4]
    assert hvd.check_buffers_match(shared) == 0
    assert hvd.check_buffers_match(ours) == len(ours)


@on_ranks(2)
def test_passes_that_add_up_are_reduced_once(hvd):
    def train():
        held = build()
        held.compile(make("sgd"), "mse")
        held.optimizer.learning_rate = 0.1  # two passes added, of half the batch each
        held.fit(*data(), batch_size=2 * BATCH, shuffle=False, epochs=2, verbose=0)
        return weights(held)

    expected = on_root(hvd, train)
    model = build()
    model.compile(hvd.DistributedOptimizer(make("sgd"), backward_passes_per_step=2), "mse")
    fit(model, *data(hvd.rank(), hvd.size()), hvd.size())
    assert_same(hvd, model, expected)
    assert model.optimizer.communication_statistics()["steps"] == 4 + 1  # and one that ends the training


@on_ranks(2)
def test_a_model_built_by_its_first_batch_starts_alike(hvd):
    import keras

    def train():
        held = build()
        held.compile(make("sgd"), "mse")
        x, y = data()
        for start in 2 * list(range(0, ROWS, BATCH)):
            # TensorFlow builds with the first batch, in which the root steps alone.
            alone = keras.backend.backend() == "tensorflow" and held.optimizer.iterations == 0
            part = slice(start, start + BATCH, hvd.size() if alone else 1)
            held.train_on_batch(x[part], y[part])
        return weights(held)

    expected = on_root(hvd, train)
    keras.utils.set_random_seed(hvd.rank())
    layers = keras.layers
    model = keras.Sequential([layers.Dense(1024, "tanh"), layers.Dense(150, "tanh"), layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(make("sgd")), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    fit(model, *data(hvd.rank(), hvd.size()), hvd.size(), callbacks=callbacks)
    assert_same(hvd, model, expected)


@on_ranks(2)
def test_a_step_of_one_s_own(hvd):
    """GradientTape, torch's backward or jax.grad in a loop of one's own, with apply()."""
    import keras

    def train(optimizer, x, y):
        model = build()
        model.optimizer = optimizer
        optimizer.build(model.trainable_variables)
        for start in range(0, len(x), len(x) // 4):
            part = slice(start, start + len(x) // 4)
            STEPS[keras.backend.backend()](model, x[part], y[part])
        return model

    expected = on_root(hvd, lambda: weights(train(make("momentum"), *data())))
    model = train(hvd.DistributedOptimizer(make("momentum")), *data(hvd.rank(), hvd.size()))
    assert_same(hvd, model, expected)


@on_ranks(2)
def test_a_train_step_of_one_s_own(hvd):
    """A model that overrides what fit() does with a batch; its loss is three times the usual one."""
    import keras

    def train(optimizer, rank, size, callbacks=()):
        in_float64()
        keras.utils.set_random_seed(rank)
        layers = [keras.layers.Dense(width, "tanh") for width in (1024, 150)]
        inputs = keras.Input((6,))
        outputs = keras.layers.Dense(1)(layers[1](layers[0](inputs)))
        model = tripled()(inputs, outputs)
        model.compile(optimizer)
        fit(model, *data(rank, size), size, callbacks=list(callbacks))
        return model

    expected = on_root(hvd, lambda: weights(train(make("adam"), 0, 1)))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model = train(hvd.DistributedOptimizer(make("adam")), hvd.rank(), hvd.size(), [broadcast])
    assert_same(hvd, model, expected)


@pytest.mark.more
@on_ranks(3, ["torch"])
def test_a_process_set_trains_while_another_does(hvd):
    check_process_sets(hvd)


@pytest.mark.soak
@on_ranks(3, ["tensorflow", "jax"])
def test_a_process_set_trains_while_another_does_elsewhere(hvd):
    check_process_sets(hvd)


def check_process_sets(hvd):
    """Ranks 0 and 2 train a model, rank 1 the same one alone."""
    pair, alone = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    expected, _ = plain(hvd, "momentum")
    mine = alone if hvd.rank() == 1 else pair
    model = build(seed=mine.rank())
    model.compile(hvd.DistributedOptimizer(make("momentum"), process_set=mine), "mse", metrics=["mae"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(mine.ranks[0], process_set=mine),
        hvd.callbacks.MetricAverageCallback(process_set=mine),
    ]
    fit(model, *data(mine.rank(), mine.size()), mine.size(), callbacks=callbacks)
    assert_close(model, expected)
    found = hvd.allgather_object(weights(model)[0].tobytes())
    assert found[0] == found[2] != found[1]  # which adds in another order
    for held in (pair, alone):
        hvd.remove_process_set(held)


def tripled():
    import keras

    class OnTorch(keras.Model):
        def train_step(self, batch):
            import torch

            x, y = batch
            self.zero_grad()
            loss = 3 * keras.ops.sum(keras.ops.square(self(x, training=True) - y)) / y.shape[0]
            loss.backward()
            trained = list(self.trainable_weights)
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in trained], trained)
            return {"loss": loss}

    class OnTensorflow(keras.Model):
        def train_step(self, batch):
            import tensorflow as tf

            x, y = batch
            with tf.GradientTape() as tape:
                loss = 3 * tf.reduce_mean(tf.square(self(x, training=True) - y))
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
            return {"loss": loss}

    class OnJax(keras.Model):
        def train_step(self, state, batch):
            import jax

            trainable, others, optimizer, metrics = state
            x, y = batch

            def compute(values):
                out, changed = self.stateless_call(values, others, x, training=True)
                return 3 * ((out - y) ** 2).mean(), changed

            (loss, others), grads = jax.value_and_grad(compute, has_aux=True)(trainable)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
            return {"loss": loss}, (trainable, others, optimizer, metrics)

    return {"torch": OnTorch, "tensorflow": OnTensorflow, "jax": OnJax}[keras.backend.backend()]


def torch_step(model, x, y):
    import keras
    import torch

    model.zero_grad()
    (model(x) - keras.ops.convert_to_tensor(y)).square().mean().backward()
    with torch.no_grad():
        # A third of the gradients, in new tensors: not those that backward left behind.
        model.optimizer.apply([v.value.grad / 3 for v in model.trainable_variables], model.trainable_variables)


def tensorflow_step(model, x, y):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    grads = [g / 3 for g in tape.gradient(loss, model.trainable_variables)]
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables))


def jax_step(model, x, y):
    import jax

    trainable = [v.value for v in model.trainable_variables]

    def loss(values):
        out, _ = model.stateless_call(values, [v.value for v in model.non_trainable_variables], x)
        return ((out - y) ** 2).mean()

    grads = [g / 3 for g in jax.grad(loss)(trainable)]
    model.optimizer.apply(grads)


STEPS = {"torch": torch_step, "tensorflow": tensorflow_step, "jax": jax_step}
