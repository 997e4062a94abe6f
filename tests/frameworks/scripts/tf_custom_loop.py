"""A custom training loop under MultiWorkerMirroredStrategy, as TensorFlow's guide teaches it."""

import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 24


def make_dataset(context):
    generator = np.random.default_rng(7)
    x = generator.normal(size=(240, 8)).astype("float32")
    y = x @ generator.normal(size=(8, 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.batch(context.get_per_replica_batch_size(GLOBAL_BATCH))


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input(shape=(8,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
        )
        optimizer = tf.keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
    iterator = iter(strategy.distribute_datasets_from_function(make_dataset))

    @tf.function
    def train_step(iterator):
        def step(inputs):
            x, y = inputs
            with tf.GradientTape() as tape:
                errors = tf.reduce_mean(tf.square(model(x, training=True) - y), axis=-1)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(next(iterator),)), axis=None)

    for number in range(20):
        print(f"step {number}: loss={float(train_step(iterator)):.6f}", flush=True)
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})
    weights = {f"w{number}": value for number, value in enumerate(model.get_weights())}
    np.savez(Path(os.environ.get("OUT", ".")) / f"rank{task['index']}.npz", **weights)


if __name__ == "__main__":
    main()
