"""Layers for images compute on torch what Keras' own do: values, gradients, moving means; and save and load as before."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(any(find_spec(name) is None for name in ("keras", "torch")), reason="Keras or torch is not installed")

SCRIPT = """
import json, os, sys, tempfile
os.environ["KERAS_BACKEND"] = "torch"
sys.modules.update(dict.fromkeys(["tensorflow", "jax"]))  # Keras would load them
import keras, numpy as np, torch
from keras import layers
from farandole.train.rank.keras.torch_images import compute_images_in_place

class Own(layers.Conv2D):
    def call(self, inputs):
        return 2 * super().call(inputs)

def built():
    images = keras.Input((13, 12, 4))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(images)
    x = layers.BatchNormalization(momentum=0.7)(x)
    x = layers.Conv2D(8, (1, 5), padding="same", use_bias=False, groups=2)(x)
    x = layers.BatchNormalization(scale=False, center=False, epsilon=0.1)(x)
    x = layers.Conv2D(6, 3, strides=2, padding="same")(x)
    x = layers.MaxPooling2D(3, strides=1, padding="same")(x)
    x = layers.Conv2D(6, 2, padding="same", dilation_rate=2)(layers.Conv2D(6, 2, padding="valid", strides=1)(x))
    x = Own(5, 1)(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.BatchNormalization()(layers.Dense(7)(layers.Flatten()(x)))
    return keras.Model(images, layers.Dense(3)(x))

random = np.random.default_rng(0)
ours, theirs = built(), built()
theirs.set_weights([random.normal(size=w.shape).astype("float32") ** (2 if "variance" in w.path else 1) for w in theirs.weights])
ours.set_weights(theirs.get_weights())
compute_images_in_place(ours)
x = torch.tensor(random.normal(1, 2, (5, 13, 12, 4)).astype("float32"))

def trained(model):
    found = []
    for _ in range(2):
        inputs = x.clone().requires_grad_()
        outputs = model(inputs, training=True)
        (outputs ** 2).sum().backward()
        found += [outputs, inputs.grad, *(v.value.grad for v in model.trainable_variables)]
        model.zero_grad()
    found += [v.value for v in model.non_trainable_variables]
    found += [model(x, training=False), torch.tensor(model.predict(x.numpy(), verbose=0))]
    return [keras.ops.convert_to_numpy(one.detach()) for one in found]

def furthest():
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3)) for a, b in zip(trained(ours), trained(theirs), strict=True))

apart = furthest()
with tempfile.TemporaryDirectory() as folder:
    ours.save(f"{folder}/m.keras")
    again = keras.models.load_model(f"{folder}/m.keras", custom_objects={"Own": Own})
same = bool(np.allclose(again.predict(x.numpy(), verbose=0), ours.predict(x.numpy(), verbose=0), rtol=1e-4, atol=1e-4))
replaced = [type(layer).__name__ for layer in ours.layers if "call" in vars(layer)]
strides = ours.layers[1].kernel.value.stride()
print(json.dumps([apart, same, replaced, strides]))
"""


def test_values_gradients_and_moving_means_are_keras_own() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    apart, same_loaded, replaced, strides = json.loads(run.stdout.splitlines()[-1])
    assert apart < 1e-4
    assert same_loaded
    # Not those with padding on one side, or of other classes.
    assert replaced == ["Conv2D", "BatchNormalization", "Conv2D", "BatchNormalization", "MaxPooling2D", "Conv2D", "MaxPooling2D", "BatchNormalization"]
    assert strides == [12, 4, 1, 36], "(3, 3, 4, 8): a filter's values lie together, its channels last"
