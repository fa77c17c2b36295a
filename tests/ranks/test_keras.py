"""The Keras door on two ranks, on every backend: what users rely on, and what they can get wrong."""

import numpy as np
import pytest

from kerasmodels import compiled, data, model_of, on_two, weights

# What is saved


@on_two()
def test_a_saved_model_is_plain_keras_and_can_be_trained_on(hvd):
    import tempfile
    from pathlib import Path

    import keras

    model = compiled(hvd, model_of(), keras.optimizers.Adam(0.01))
    model.fit(*data(16, hvd.rank()), batch_size=8, verbose=0)
    plain = keras.optimizers.Adam(0.01, name=model.optimizer.name)
    assert model.optimizer.get_config() == plain.get_config()
    assert keras.optimizers.serialize(model.optimizer) == keras.optimizers.serialize(plain)
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "model.keras")
        model.save(path)
        alone, again = keras.saving.load_model(path), hvd.load_model(path)
    assert not hasattr(alone.optimizer, "communication_statistics")
    assert int(again.optimizer.iterations) == int(alone.optimizer.iterations) == 2
    for held in (model, again):
        held.fit(*data(16, hvd.rank()), batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(weights(model), weights(again)):
        assert (a == b).all()
    assert hvd.check_buffers_match(weights(again)) == 0


@on_two()
def test_a_loaded_model_adds_passes_up_as_before(hvd):
    import tempfile
    from pathlib import Path

    model = compiled(hvd, model_of(), backward_passes_per_step=2)
    model.fit(*data(16, hvd.rank()), batch_size=8, verbose=0)
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "model.keras")
        model.save(path)
        again = hvd.load_model(path, backward_passes_per_step=2)
    for held in (model, again):
        held.fit(*data(32, hvd.rank()), batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(weights(model), weights(again)):
        assert (a == b).all()


# Overflow


@on_two()
@pytest.mark.parametrize("outer", ["loss scale", "distributed"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(hvd, outer):
    import keras
    import numpy as np

    model = model_of(policy="mixed_float16")
    optimizer = keras.optimizers.SGD(0.01)
    if outer == "distributed":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
    model = compiled(hvd, model, optimizer)
    scaling = model.optimizer  # compile() has put one around where there was none
    assert isinstance(scaling, keras.optimizers.LossScaleOptimizer)
    scaling.initial_scale = 2.0
    x, y = data(24)
    if hvd.rank() == 1:
        x[8:16] = np.inf  # the second of three batches
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert hvd.check_buffers_match(weights(model)) == 0
    assert all(np.isfinite(value).all() for value in weights(model))
    assert int(scaling.inner_optimizer.iterations) == 2
    assert float(keras.ops.convert_to_numpy(scaling.dynamic_scale)) == 1.0


@on_two()
@pytest.mark.parametrize("outer", ["loss scale", "distributed"])
def test_an_overflow_in_a_layer_that_stays_skips_the_step_on_all(hvd, outer):
    """Every shared gradient is finite: the layer that stays is a second output, which the first knows nothing of."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    seen, alone = keras.Input((4,)), keras.Input((4,))
    local = keras.layers.Dense(1, name="local")
    model = keras.Model([seen, alone], [keras.layers.Dense(1, name="shared")(seen), local(alone)])
    optimizer = keras.optimizers.SGD(0.01)
    if outer == "distributed":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
    optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=local)
    if outer == "loss scale":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
    model.compile(optimizer, ["mse", "mse"])
    x, y = data(32)
    own = x.copy()
    if hvd.rank() == 1:
        own[8:16] = np.inf  # the second of four batches
    model.fit([x, own], [y, y], batch_size=8, shuffle=False, verbose=0)
    assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == 1.0
    assert int(optimizer.inner_optimizer.iterations) == 3
    assert hvd.check_buffers_match(weights(model)[:2]) == 0
    assert all(np.isfinite(value).all() for value in weights(model))


@on_two()
def test_passes_add_up_in_either_nesting(hvd):
    import keras
    import numpy as np

    def train(wrap):
        model = model_of(policy="mixed_float16")
        model.compile(wrap(keras.optimizers.SGD(0.02)), "mse")
        model.optimizer.initial_scale = 2.0
        model.fit(*data(32, hvd.rank()), batch_size=8, shuffle=False, verbose=0)
        assert hvd.check_buffers_match(weights(model)) == 0
        return weights(model)

    scaled = keras.optimizers.LossScaleOptimizer
    inside = train(lambda plain: hvd.DistributedOptimizer(scaled(plain, initial_scale=2.0), backward_passes_per_step=2))
    around = train(lambda plain: hvd.DistributedOptimizer(plain, backward_passes_per_step=2))
    for start, a, b in zip(weights(model_of()), inside, around):
        assert not np.array_equal(start, a)
        np.testing.assert_allclose(a, b, rtol=1e-6)


# What ranks can differ in


@on_two()
def test_different_models_are_an_error_that_names_the_variable(hvd):
    import pytest

    model = compiled(hvd, model_of((16 + hvd.rank(), 1)))
    with pytest.raises(Exception, match=r"rank 0 has '.*layer\d/\w+' float32 .*16.*, rank 1 has '.*layer\d/\w+' float32 .*17"):
        model.fit(*data(16), batch_size=8, verbose=0)
    with pytest.raises(Exception, match=r"layer0/kernel"):
        hvd.broadcast_global_variables(0, model)


@on_two()
def test_different_numbers_of_batches_are_an_error_before_training(hvd):
    import pytest

    model = compiled(hvd, model_of())
    with pytest.raises(Exception, match=r"rank 0: 2 batches, 1 epochs; rank 1: 3 batches"):
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.fit(*data(16 + 8 * hvd.rank()), batch_size=8, verbose=0, callbacks=callbacks)


@on_two()
def test_different_numbers_of_batches_nobody_knew_of_are_an_error_in_the_end(hvd):
    import pytest

    model = compiled(hvd, model_of())
    wrong = ("this rank has ended its training after 2 steps", "rank 0 has ended its training, this rank is in step 3")
    with pytest.raises(Exception, match=wrong[hvd.rank()]):
        model.fit(*data(16 + 8 * hvd.rank()), batch_size=8, verbose=0)


def batches(count):
    for start in range(count):
        yield data(8, start)


@on_two()
def test_epochs_of_unknown_length_must_end_together(hvd):
    import pytest

    model = compiled(hvd, model_of())
    with pytest.raises(Exception, match="has ended its training"):
        model.fit(batches(2 + hvd.rank()), verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()])


@on_two()
def test_a_fit_that_handles_an_error_ends_with_the_others(hvd):
    model = compiled(hvd, model_of())
    try:
        raise OSError("for instance a file that is not there")
    except OSError:
        model.fit(*data(16), batch_size=8, verbose=0)
    assert model.optimizer.communication_statistics()["steps"] == 3  # two batches and the end


# Wrong use


@on_two()
def test_wrong_use_is_told(hvd):
    import keras
    import pytest

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="distributed already: wrap it once"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))
    with pytest.raises(ValueError, match="pass a Keras 3 optimizer"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="op=ADASUM"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Adasum)
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=0)
    with pytest.raises(ValueError, match=r"global_clipnorm=1.5 with local_layers: .* Use clipnorm=1.5"):
        clipped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1.5))
        hvd.PartialDistributedOptimizer(clipped, local_layers=model_of().layers[0])
    with pytest.raises(ValueError, match="pass the model"):
        hvd.broadcast_global_variables(0)


@on_two(["tensorflow"])
def test_xla_on_tensorflow_is_refused_with_what_to_type(hvd):
    import keras
    import pytest

    model = model_of()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    with pytest.raises(Exception, match="compile\\(jit_compile=False\\)"):
        model.fit(*data(16), batch_size=8, verbose=0)


@on_two()
@pytest.mark.parametrize("scaled", [False, True])
def test_an_optimizer_can_be_distributed_after_it_has_stepped(hvd, scaled):
    """Its step was compiled without a reduction."""
    import keras

    model = model_of()
    optimizer = keras.optimizers.SGD(0.01)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0) if scaled else optimizer, "mse")
    model.fit(*data(16), batch_size=8, shuffle=False, verbose=0)
    hvd.DistributedOptimizer(model.optimizer)
    model.train_on_batch(*data(8, hvd.rank()))
    model.fit(*data(16, hvd.rank()), batch_size=8, verbose=0)
    assert hvd.check_buffers_match(weights(model)) == 0
    steps = model.optimizer.communication_statistics()["steps"]
    assert steps == 4  # with the end of fit()


@on_two(["jax"])
def test_a_step_of_keras_own_is_one_that_jax_starts_fast(hvd):
    """Its jit takes the fast path only where nothing in it has effects; where it is known to reduce in every step."""
    import jax
    import keras

    class Own(keras.Sequential):
        def train_step(self, state, batch):
            return super().train_step(state, batch)

    def effects(model, **options):
        compiled(hvd, model, **options)
        model.train_on_batch(*data(8, hvd.rank()))
        state = model._get_jax_state(
            trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
        )
        return len(jax.make_jaxpr(model.train_step)(state, (*data(8), None)).effects)

    assert effects(model_of()) == 0
    assert effects(Own([keras.Input((4,)), keras.layers.Dense(1)])) == 1
    assert effects(model_of(), backward_passes_per_step=2) == 1


# Options


@on_two(["tensorflow"])
def test_epochs_of_arrays_do_not_wait_for_tuning(hvd):
    """A dataset of the user's own is tuned as the user wants it."""
    import tensorflow as tf

    from farandole.keras.private import on_tensorflow

    model = compiled(hvd, model_of())
    ours, tuned = on_tensorflow._Epochs, []

    class Seen(ours):
        def _get_iterator(self):
            dataset = super()._get_iterator()
            tuned.append(dataset.options().autotune.enabled)
            return dataset

    on_tensorflow._Epochs = Seen
    try:
        for given in (data(8), (tf.data.Dataset.from_tensor_slices(data(8)).batch(4),)):
            model.fit(*given, verbose=0)
    finally:
        on_tensorflow._Epochs = ours
    assert tuned[0] is False and tuned[-1] is not False


@on_two(["tensorflow"])
def test_batches_at_hand_are_not_made_ahead(hvd):
    """And train the same model."""
    import threading

    import keras
    import numpy as np

    makers = set()

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            makers.add(threading.current_thread())
            x, y = data(12)
            return x[index::3], y[index::3]

    weights = []
    for at_hand in (False, True):
        makers.clear()
        batches = Batches()
        batches.at_hand = at_hand
        model = compiled(hvd, model_of())
        model.fit(batches, epochs=2, shuffle=False, verbose=0)
        assert (makers == {threading.main_thread()}) is at_hand
        weights.append(model.get_weights())
    for ours, theirs in zip(*weights):
        np.testing.assert_array_equal(ours, theirs)


@on_two()
def test_a_rank_outside_the_set_trains_alone(hvd):
    import keras

    first = hvd.add_process_set([0])
    model, plain = compiled(hvd, model_of(), process_set=first), model_of()
    plain.compile(keras.optimizers.SGD(0.05), "mse")
    for held in (model, plain):
        held.fit(*data(16 + 8 * hvd.rank(), hvd.rank()), batch_size=8, shuffle=False, verbose=0)
    for ours, theirs in zip(weights(model), weights(plain)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)  # JAX compiles another step
    hvd.barrier()
    assert hvd.remove_process_set(first)


@on_two()
def test_layers_can_stay_with_their_rank(hvd):
    import keras
    import numpy as np

    model = model_of(seed=hvd.rank())
    local = model.layers[0]
    before = keras.ops.convert_to_numpy(local.kernel)
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.05), local_layers=local)
    model.compile(optimizer, "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(*data(16, hvd.rank()), batch_size=8, verbose=0, callbacks=callbacks)
    after = keras.ops.convert_to_numpy(local.kernel)
    assert not np.array_equal(before, after)
    assert hvd.check_buffers_match([after]) == 1
    assert hvd.check_buffers_match([keras.ops.convert_to_numpy(v) for v in model.layers[1].variables]) == 0


@on_two()
def test_layers_that_stay_step_as_far_as_others(hvd):
    """On batches that are alike on both ranks, one process steps as far. An embedding's gradient may be sparse."""
    import keras

    for passes in (1, 2) if keras.backend.backend() == "tensorflow" else (2,):
        check_steps_of_layers_that_stay(hvd, passes)


def check_steps_of_layers_that_stay(hvd, passes):
    import keras
    import numpy as np

    def train(wrap, rate):
        keras.utils.set_random_seed(0)
        table, head = keras.layers.Embedding(5, 2), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((1,), dtype="int32"), table, keras.layers.Flatten(), head])
        model.compile(wrap(keras.optimizers.SGD(rate), table), "mse")
        words = np.array([[0], [1], [1], [3]] * 2, "int32")
        model.fit(words, words.astype("float32"), batch_size=8 // passes, shuffle=False, verbose=0)
        return weights(model)

    def partly(optimizer, layer):
        options = {"local_layers": layer, "scale_local_gradients": False, "backward_passes_per_step": passes}
        return hvd.PartialDistributedOptimizer(optimizer, **options)

    def accumulating(optimizer, _):
        optimizer.gradient_accumulation_steps = passes if passes > 1 else None  # Keras averages them
        return optimizer

    for a, b in zip(train(partly, 0.05), train(accumulating, 0.05 * passes)):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@on_two()
@pytest.mark.parametrize("way", ["fp16", "bf16"])
def test_gradients_can_travel_in_16_bits(hvd, way):
    import keras
    import numpy as np

    wide, narrow = compiled(hvd, model_of()), compiled(hvd, model_of(), compression=getattr(hvd.Compression, way))
    for model in (wide, narrow):
        model.fit(*data(16, hvd.rank()), batch_size=8, verbose=0, shuffle=False)
    assert hvd.check_buffers_match(weights(narrow)) == 0
    assert any(not np.array_equal(a, b) for a, b in zip(weights(wide), weights(narrow)))
    for a, b in zip(weights(wide), weights(narrow)):
        np.testing.assert_allclose(a, b, atol=0.02)
    assert keras.backend.backend() != "torch" or narrow.optimizer.communication_statistics()["steps"] == 3


@on_two(shipped=True)
def test_sums_averages_and_clipping(hvd):
    """Gradients 1 and 3; what is clipped is their average, as it would be on one process."""
    import keras
    import numpy as np

    def stepped(distribution, **clipping):
        variable = keras.Variable(np.zeros(4, "float32"))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, **clipping), **distribution)
        optimizer.build([variable])
        optimizer.apply([keras.ops.full((4,), 1.0 + 2 * hvd.rank())], [variable])
        found = set(keras.ops.convert_to_numpy(variable).round(5).tolist())
        assert len(found) == 1
        return -found.pop()

    assert stepped({"op": hvd.Sum}) == 4
    assert stepped({"gradient_predivide_factor": 2.0}) == 2
    assert stepped({}, clipvalue=1.5) == 1.5
    assert stepped({}, clipnorm=3.0) == stepped({}, global_clipnorm=3.0) == 1.5  # of norm 4
    assert stepped({"op": hvd.Sum}, clipnorm=20.0) == 4


@on_two(["tensorflow", "jax"])
def test_gradients_of_another_type_than_the_variable_are_cast(hvd):
    """As Keras' optimizers do; torch itself refuses them. Packed, reduced where it lies, in the window."""
    import keras
    import numpy as np

    variables = [keras.Variable(np.zeros(count, "float32")) for count in (3, 1 << 19, 5 << 20)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)
    optimizer.apply([keras.ops.full(v.shape, 1.0 + 2 * hvd.rank(), "float16") for v in variables], variables)
    for variable in variables:
        assert np.unique(keras.ops.convert_to_numpy(variable)).tolist() == [-2]


@on_two(shipped=True)
def test_values_and_callbacks(hvd):
    import keras
    import numpy as np

    assert hvd.allreduce(float(hvd.rank())) == 0.5
    assert hvd.allreduce(keras.ops.ones((2,)), op=hvd.Sum).tolist() == [2, 2]
    assert hvd.allgather(np.full((1, 2), hvd.rank())).tolist() == [[0, 0], [1, 1]]
    assert hvd.broadcast(hvd.rank(), 1) == 1
    assert hvd.reducescatter(np.arange(4.0)).tolist() == [[0, 1], [2, 3]][hvd.rank()]
    rates = []
    model = model_of((3,))
    f1_of_each_class = keras.metrics.F1Score()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse", metrics=[f1_of_each_class])
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, momentum_correction=False)
    decay = hvd.callbacks.LearningRateScheduleCallback(0.08, 0.5, start_epoch=2, momentum_correction=False)
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rates.append(round(logs["lr"], 6)))
    average = hvd.callbacks.MetricAverageCallback()
    x, classes = data(16, hvd.rank())[0], np.eye(3, dtype="float32")[np.arange(16) % 3]
    history = model.fit(
        x, classes, batch_size=8, epochs=4, verbose=0, callbacks=[warmup, decay, average, hvd.callbacks.ProgressCallback(), watch]
    ).history
    assert rates == [0.06, 0.08, 0.08, 0.04]
    found = hvd.allgather_object([values.tolist() for values in history["f1_score"]])
    mine = keras.ops.convert_to_numpy(f1_of_each_class.result())
    assert found[0] == found[1] and np.allclose(found[0][-1], hvd.allreduce(mine))


@on_two()
def test_the_best_model_is_saved_once_by_what_all_ranks_found(hvd):
    import tempfile
    from pathlib import Path

    import keras
    import numpy as np

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "best.keras"
        best = hvd.callbacks.BestModelCheckpoint(str(path), monitor="loss")
        model = compiled(hvd, model_of(), keras.optimizers.SGD(0.02))
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), best]
        history = model.fit(*data(16, hvd.rank()), batch_size=8, epochs=3, verbose=0, callbacks=callbacks).history
        assert path.exists() == (hvd.rank() == 0)  # each has a folder of its own
        if hvd.rank() == 0:
            kept = keras.saving.load_model(str(path))
            assert not hasattr(kept.optimizer, "communication_statistics")
            assert int(kept.optimizer.iterations) == 2 * (1 + int(np.argmin(history["loss"])))
            assert np.isclose(best.best, min(history["loss"]))  # of the averaged losses
    assert len(set(map(str, hvd.allgather_object(history["loss"])))) == 1


@on_two()
def test_a_set_s_first_rank_saves_and_shows(hvd):
    import contextlib
    import io
    import tempfile
    from pathlib import Path

    second = hvd.add_process_set([1])
    try:
        if hvd.rank() == 1:
            shown = io.StringIO()
            model = compiled(hvd, model_of(), process_set=second)
            with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(shown):
                path = Path(directory) / "best.keras"
                best = hvd.callbacks.BestModelCheckpoint(str(path), monitor="loss", process_set=second)
                model.fit(*data(16), batch_size=8, callbacks=[best, hvd.callbacks.ProgressCallback(process_set=second)])
                assert path.exists()
            assert "2/2" in shown.getvalue()
    finally:
        hvd.remove_process_set(second)


@on_two(["torch", "jax"])
def test_callbacks_do_not_make_fit_wait_for_every_batch(hvd):
    """Keras then hands a batch's metrics to a thread. Nor do they lose the order they need."""
    import keras

    schedule = hvd.callbacks.LearningRateScheduleCallback(0.05, lambda epoch: 1 + epoch, staircase=False)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.05, warmup_epochs=1)
    broadcast, progress = hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.ProgressCallback()
    assert keras.callbacks.CallbackList([broadcast, schedule, warmup, progress])._async_train
    momenta = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: momenta.append(round(model.optimizer.momentum, 6)))
    model = compiled(hvd, model_of(), keras.optimizers.SGD(0.05, momentum=0.5))
    model.fit(*data(16, hvd.rank()), batch_size=8, verbose=0, callbacks=[broadcast, schedule, watch, progress])
    corrected = [0.5, 0.75] if keras.backend.backend() == "torch" else [0.5, 0.5]
    assert momenta == corrected and model.optimizer.momentum == 0.5
