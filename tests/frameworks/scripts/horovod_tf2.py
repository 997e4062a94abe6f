"""Horovod with TensorFlow 2, as Horovod's own example teaches it: DistributedGradientTape, broadcast after step one."""

import os
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


def main():
    hvd.init()
    rank, world = hvd.rank(), hvd.size()
    tf.keras.utils.set_random_seed(rank)
    generator = np.random.default_rng(7)
    x = generator.normal(size=(48, 8)).astype("float32")
    y = x @ generator.normal(size=(8, 1)).astype("float32")
    x, y = x[rank::world], y[rank::world]
    layers = [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input(shape=(8,)), *layers])
    optimizer = tf.keras.optimizers.legacy.SGD(0.05)

    @tf.function
    def train_step(first):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        return loss

    for step in range(12):
        loss = train_step(step == 0)
        print(f"step {step}: loss={float(loss):.6f}", flush=True)
    weights = {f"w{number}": value for number, value in enumerate(model.get_weights())}
    np.savez(Path(os.environ.get("OUT", ".")) / f"rank{rank}.npz", **weights)


if __name__ == "__main__":
    main()
