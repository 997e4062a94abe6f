"""Learns to read handwritten digits with JAX, as one process or as many: each takes its part of every batch.

Nothing in here is about Pumasi.
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits


def load(seed):
    """1,797 real digits of 8 × 8 pixels, which come with scikit-learn."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images, labels = digits.data[order].astype("float32") / 16, digits.target[order].astype("int32")
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def init(key, sizes):
    shapes = list(itertools.pairwise(sizes))
    keys = jax.random.split(key, len(shapes))
    return [(jax.random.normal(k, s) * np.sqrt(2 / s[0]), jnp.zeros(s[1])) for k, s in zip(keys, shapes, strict=True)]


def logits(params, x):
    *hidden, (weights, bias) = params
    for w, b in hidden:
        x = jax.nn.relu(x @ w + b)
    return x @ weights + bias


def loss_of(params, x, y):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], axis=1))


def accuracy_of(params, x, y):
    return float(np.mean(np.argmax(np.asarray(logits(params, x)), axis=1) == y))


@jax.jit
def step(params, x, y, rate):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--out", default="digits.npz")
    options = parser.parse_args()

    jax.distributed.initialize()
    rank, ranks = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), "data")
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    (images, labels), (test_images, test_labels) = load(seed=0)
    params = jax.device_put(init(jax.random.key(0), [64, 128, 64, 10]), everywhere)
    share = options.batch // ranks
    for epoch in range(options.epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(order) - options.batch + 1, options.batch):
            mine = order[start + rank * share : start + (rank + 1) * share]
            x = jax.make_array_from_process_local_data(split, images[mine])
            y = jax.make_array_from_process_local_data(split, labels[mine])
            params, loss = step(params, x, y, options.rate)
        here = jax.tree.map(lambda p: np.asarray(p.addressable_data(0)), params)
        accuracy = accuracy_of(here, test_images, test_labels)
        print(f"epoch {epoch + 1}: loss={float(loss.addressable_data(0)):.4f} test_accuracy={accuracy:.4f}")

    if rank == 0:
        np.savez(options.out, *jax.tree.leaves(here))


if __name__ == "__main__":
    main()
