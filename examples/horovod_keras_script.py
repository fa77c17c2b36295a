"""A Keras script with Horovod's API as people have them, and one line that differs.

    horovodrun -np 2 python script.py                                   with  import horovod.keras as hvd
    farandole launch -np 2 -- python examples/horovod_keras_script.py   with  import farandole.keras as hvd
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import farandole.keras as hvd

hvd.init()

# Points in the plane: inside or outside of a circle.
rng = np.random.default_rng(hvd.rank())
points = rng.uniform(-1, 1, size=(4096, 2)).astype("float32")
inside = (np.square(points).sum(axis=1) < 0.6).astype("float32")

model = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)

# Scale the learning rate by the number of workers, and wrap the optimizer.
scaled_lr = 0.002 * hvd.size()
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(scaled_lr), backward_passes_per_step=1)
model.compile(loss="binary_crossentropy", optimizer=optimizer, metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]

# Save checkpoints only on worker 0, so that workers do not write the same file.
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.keras"))

model.fit(
    points,
    inside,
    batch_size=64,
    steps_per_epoch=64 // hvd.size(),
    epochs=4,
    callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
)

score = model.evaluate(points, inside, verbose=0)
accuracy = hvd.allreduce(score[1])
if hvd.rank() == 0:
    print(f"Test accuracy: {float(accuracy):.4f}")
