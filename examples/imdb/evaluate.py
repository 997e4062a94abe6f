"""Measures a model, or all models of a folder together, on reviews that no trainer has seen.

    python evaluate.py --modelpath FILE|FOLDER [--batch N]

Of a folder, the mean of what the models say counts: an ensemble. Nothing in here is about Pumasi.
"""

import argparse
import os
from pathlib import Path

import reviews  # before Keras: it says what Keras runs on

# isort: split
import keras
import numpy as np


def predict(paths, x, batch):
    said = []
    for path in paths:
        network = keras.saving.load_model(path, compile=False)
        reviews.check(x, network)
        said.append(network.predict(x, batch_size=batch, verbose=0)[:, 0])
    return np.mean(said, axis=0, dtype="float64")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modelpath", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=os.environ.get("BATCH", 100))
    parser.add_argument("--data", type=Path, help="default: test.npz near the model, or here")
    options = parser.parse_args()

    x, y = reviews.load(options.data or reviews.nearby("test.npz", options.modelpath))
    paths = [options.modelpath] if options.modelpath.is_file() else reviews.models_in(options.modelpath)
    good = predict(paths, x, options.batch)
    right = np.where(y, good, 1 - good)
    print(f"accuracy: {np.mean(right > 0.5):.4f} - loss: {-np.mean(np.log(right.clip(1e-7))):.4f}")


if __name__ == "__main__":
    main()
