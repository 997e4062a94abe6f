"""`model.fit` under MultiWorkerMirroredStrategy, as TensorFlow's multi-worker guide teaches it.

With TF_USE_LEGACY_KERAS=1 it is Keras 2 (tf-keras) that trains, without it Keras 3. TF_CONFIG comes from outside.
"""

import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 24


def make_dataset():
    generator = np.random.default_rng(7)
    x = generator.normal(size=(240, 8)).astype("float32")
    y = x @ generator.normal(size=(8, 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # The end of an epoch waits for a thread of the data's iterator, with the tuner for many seconds on busy cores.
    options.autotune.enabled = False
    return dataset.with_options(options)


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input(shape=(8,)),
                tf.keras.layers.Dense(16, activation="relu"),
                tf.keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer=tf.keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    history = model.fit(make_dataset(), epochs=3, validation_data=make_dataset(), verbose=2)
    results = model.evaluate(make_dataset(), verbose=0)
    print(f"Test loss: {results[0]:.6f}", flush=True)
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})
    weights = {f"w{number}": value for number, value in enumerate(model.get_weights())}
    np.savez(Path(os.environ.get("OUT", ".")) / f"rank{task['index']}.npz", loss=history.history["loss"], **weights)


if __name__ == "__main__":
    main()
