"""Keras 3 on JAX with `keras.distribution`, as Keras' distribution guide teaches it."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from pathlib import Path

import jax
import keras
import numpy as np


def main():
    keras.distribution.initialize()
    rank, world = jax.process_index(), jax.process_count()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(7)
    x = generator.normal(size=(48, 8)).astype("float32")
    y = x @ generator.normal(size=(8, 1)).astype("float32")
    model = keras.Sequential(
        [keras.Input(shape=(8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    model.fit(x[rank::world], y[rank::world], batch_size=8, epochs=3, shuffle=False, verbose=2)
    weights = {f"w{number}": np.asarray(value) for number, value in enumerate(model.get_weights())}
    np.savez(Path(os.environ.get("OUT", ".")) / f"rank{rank}.npz", **weights)


if __name__ == "__main__":
    main()
