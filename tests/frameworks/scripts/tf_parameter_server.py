"""Parameter server training as TensorFlow's guide teaches it: the chief coordinates, workers and ps only serve.

Every batch is the whole data, so that it does not matter which worker takes which step.
"""

import os
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH = 240


def make_dataset():
    generator = np.random.default_rng(7)
    x = generator.normal(size=(240, 8)).astype("float32")
    y = x @ generator.normal(size=(8, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH)


def serve(resolver):
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()


def coordinate(resolver):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input(shape=(8,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
        )
        optimizer = tf.keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(iterator):
        def step(inputs):
            x, y = inputs
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(next(iterator),)), axis=None)

    iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
    losses = []
    for number in range(20):
        losses.append(coordinator.schedule(train_step, args=(iterator,)).fetch())
        print(f"step {number}: loss={losses[-1]:.6f}", flush=True)
    coordinator.join()
    weights = {f"w{number}": value for number, value in enumerate(model.get_weights())}
    np.savez(Path(os.environ.get("OUT", ".")) / "rank0.npz", losses=losses, **weights)


def main():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        os.environ["GRPC_FAIL_FAST"] = "use_caller"
        serve(resolver)
    else:
        coordinate(resolver)


if __name__ == "__main__":
    main()
