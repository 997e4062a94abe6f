"""Chief and workers train and write checkpoints; an evaluator beside them reads and scores them.

The evaluator is ended with the training: the chief stays until the last checkpoint has its score.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

STEPS = 12


def make_data():
    generator = np.random.default_rng(7)
    x = generator.normal(size=(48, 8)).astype("float32")
    return x, x @ generator.normal(size=(8, 1)).astype("float32")


def evaluate(checkpoints, out):
    x, y = make_data()
    weight = tf.Variable(tf.zeros((8, 1)))
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weight=weight, step=step)
    for path in tf.train.checkpoints_iterator(checkpoints, timeout=200):
        checkpoint.restore(path).expect_partial()
        loss = float(tf.reduce_mean(tf.square(x @ weight - y)))
        print(f"step {int(step)}: eval_loss={loss:.6f}", flush=True)
        if int(step) == STEPS:
            np.savez(out / "scoring.npz", loss=loss, weight=weight.numpy())
            (out / "scoring.npz").rename(out / "evaluator.npz")
            return


def wait_for_score(out):
    deadline = time.monotonic() + 200
    while not (out / "evaluator.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def train(checkpoints, out, task):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x, y = make_data()
    with strategy.scope():
        weight = tf.Variable(tf.zeros((8, 1)))
        step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train_step():
        def replica_step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weight - y)) / strategy.num_replicas_in_sync
            gradient = tape.gradient(loss, weight)
            total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
            weight.assign_sub(0.05 * total)
            step.assign_add(1)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step), axis=None)

    is_chief = task["type"] == "chief"
    folder = checkpoints if is_chief else checkpoints / f"not-chief-{task['index']}"
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(weight=weight, step=step), folder, max_to_keep=None)
    for number in range(STEPS):
        print(f"step {number}: loss={float(train_step()):.6f}", flush=True)
        if (number + 1) % 4 == 0:
            manager.save(checkpoint_number=number + 1)
    rank = 0 if is_chief else task["index"] + 1
    np.savez(out / f"rank{rank}.npz", weight=weight.numpy())
    if is_chief:
        wait_for_score(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.environ.get("OUT", "."), type=Path)
    out = parser.parse_args().out
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    checkpoints = out / "checkpoints"
    if task["type"] == "evaluator":
        evaluate(checkpoints, out)
    else:
        train(checkpoints, out, task)


if __name__ == "__main__":
    main()
