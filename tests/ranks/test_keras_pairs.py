"""Several Keras models, optimizers and backward passes in one training, on two ranks and on every backend."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from kerasmodels import compiled, data, model_of, on_two, weights


@on_two()
def test_two_models_train_on_teams_of_their_own(hvd):
    a, b = compiled(hvd, model_of()), compiled(hvd, model_of(seed=1))
    for step in range(3):
        for model in (a, b):
            model.train_on_batch(*data(8, 2 * step + hvd.rank()))
    assert hvd.check_buffers_match(weights(a) + weights(b)) == 0


@on_two()
def test_two_models_train_at_the_same_time(hvd):
    """Each in a thread of its own, begun in another order on each rank."""
    models = [compiled(hvd, model_of(seed=seed)) for seed in (0, 1)]
    for model in models:
        model.train_on_batch(*data(8, hvd.rank()))
    batches = [data(8, 2 * step + hvd.rank()) for step in range(6)]

    def train(model):
        for batch in batches:
            model.train_on_batch(*batch)

    before = weights(models[0]) + weights(models[1])
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(train, model) for model in models[:: -1 if hvd.rank() else 1]]:
            done.result()
    after = weights(models[0]) + weights(models[1])
    assert hvd.check_buffers_match(after) == 0
    assert not any((a == b).all() for a, b in zip(before, after))


@on_two()
def test_two_optimizers_in_one_step(hvd):
    """As in a GAN: neither update waits for the other's, and a compiler may order them as it likes."""
    import keras

    models = [model_of(seed=seed) for seed in (0, 1)]
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)) for _ in models]
    for model, optimizer in zip(models, optimizers):
        optimizer.build(model.trainable_variables)
    before = weights(models[0]) + weights(models[1])
    step = {"torch": torch_pair, "tensorflow": tensorflow_pair, "jax": jax_pair}[keras.backend.backend()](models, optimizers)
    for number in range(4):
        step(*data(8, 2 * number + hvd.rank()))
    after = weights(models[0]) + weights(models[1])
    assert hvd.check_buffers_match(after) == 0
    assert not any((a == b).all() for a, b in zip(before, after))


def torch_pair(models, optimizers):
    import keras
    import torch

    def step(x, y):
        for model in models:
            model.zero_grad()
        sum((model(x) - keras.ops.convert_to_tensor(y)).square().mean() for model in models).backward()
        with torch.no_grad():
            for model, optimizer in zip(models, optimizers):
                optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)

    return step


def torch_critic_and_generator(hvd, critic_steps, rounds, **options):
    """Weights after training as a WGAN does: the generator's backward makes gradients of the critic, too."""
    import keras
    import torch

    generator, critic = model_of((16, 4), seed=0), model_of(seed=1)
    trained = [(m, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), **options)) for m in (critic, generator)]
    overlapped = []

    def step(model, optimizer, loss):
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_variables], model.trainable_variables)

    for number in range(rounds):
        x = keras.ops.convert_to_tensor(data(8, 2 * number + hvd.rank())[0])
        for _ in range(critic_steps):
            step(*trained[0], (critic(x) - critic(generator(x).detach())).square().mean())
        overlapped.append(trained[0][1].communication_statistics()["overlapped"])
        step(*trained[1], critic(generator(x)).square().mean())
    return weights(critic) + weights(generator), overlapped


# As within a node, and as between nodes.
both_ways = pytest.mark.parametrize("exchange", ["direct", "none"])


def using(exchange):
    import os
    from unittest.mock import patch

    return patch.dict(os.environ, {"FARANDOLE_NODE_EXCHANGE": exchange})


@on_two(["torch"])
@both_ways
def test_gradients_made_on_the_way_to_others_are_dropped(hvd, exchange):
    import numpy as np

    with using(exchange):
        expected, _ = torch_critic_and_generator(hvd, 3, 3, team=hvd.Team(threads=0))
        found, overlapped = torch_critic_and_generator(hvd, 3, 3)
    assert overlapped == [1, 0, 0]
    assert hvd.check_buffers_match(found) == 0
    assert all(np.array_equal(a, b) for a, b in zip(expected, found))


@on_two(["torch"])
def test_a_backward_pass_that_only_one_rank_makes_is_an_error_on_all(hvd):
    model = compiled(hvd, model_of())
    model.fit(*data(24, hvd.rank()), batch_size=8, verbose=0)
    assert model.optimizer.communication_statistics()["overlapped"] == 1
    if hvd.rank() == 0:
        model(data(8)[0]).sum().backward()
    with pytest.raises(RuntimeError, match=r"rank 0 has called backward\(\) without a step .* other ranks have not"):
        model.train_on_batch(*data(8))


@on_two(["torch"])
@both_ways
def test_a_rank_that_ends_while_another_drops_a_step_is_named_on_both(hvd, exchange):
    model = compiled(hvd, model_of())
    with using(exchange):
        model.fit(*data(24, hvd.rank()), batch_size=8, verbose=0)
    if hvd.rank() == 0:
        model.train_on_batch(*data(8))
        model(data(8)[0]).sum().backward()
        with pytest.raises(RuntimeError, match="rank 1 has ended its training, this rank is in step 6"):
            model.train_on_batch(*data(8))
    else:
        with pytest.raises(RuntimeError, match="this rank has ended its training after 5 steps, rank 0 has not"):
            model.fit(*data(8), batch_size=8, verbose=0)


@on_two(["torch"])
def test_a_second_backward_pass_tells_what_to_pass(hvd):
    model = compiled(hvd, model_of())
    model.fit(*data(24, hvd.rank()), batch_size=8, verbose=0)
    model.zero_grad()
    model(data(8)[0]).sum().backward()
    with pytest.raises(ValueError, match=r"without a step between: .*, pass DistributedOptimizer\(..., team=Team\(threads=0\)\)"):
        model(data(8)[0]).sum().backward()
    model.fit(*data(16, hvd.rank()), batch_size=8, verbose=0)  # which begins without gradients
    assert hvd.check_buffers_match(weights(model)) == 0


def tensorflow_pair(models, optimizers):
    import tensorflow as tf

    @tf.function
    def step(x, y):
        for model, optimizer in zip(models, optimizers):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step


def jax_pair(models, optimizers):
    import jax

    @jax.jit
    def updated(states, x, y):
        def gradients(model, values):
            return jax.grad(lambda v: ((model.stateless_call(v, [], x)[0] - y) ** 2).mean())(values)

        return [
            optimizer.stateless_apply(own, gradients(model, values), values)
            for model, optimizer, (values, own) in zip(models, optimizers, states)
        ]

    def step(x, y):
        held = [(m.trainable_variables, o.variables) for m, o in zip(models, optimizers)]
        states = [tuple([v.value for v in variables] for variables in pair) for pair in held]
        for pair, new in zip(held, updated(states, x, y)):
            for variables, values in zip(pair, new):
                for variable, value in zip(variables, values):
                    variable.assign(value)

    return step
