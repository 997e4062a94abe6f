"""Trains a network to tell good film reviews from bad ones, on one part of the data.

    python train.py --data 0.npz --epoch 3 --batch 100 --savemodel model.h5 [--init FILE]

Beside the model it writes what a text goes through before the model sees it, for server.py, and what the model was
trained with, for aggregater.py. Nothing in here is about Pumasi.
"""

import argparse
import hashlib
import json
import os
import sys
import zlib
from pathlib import Path

import reviews  # before Keras: it says what Keras runs on

# isort: split
import keras
from keras import layers


def make(words, length, full):
    """`full`: the network of the original, which takes far longer."""
    network = keras.Sequential([keras.Input((length,), dtype="int32")])
    if full:
        network.add(layers.Embedding(words, 100, mask_zero=True))
        network.add(layers.Bidirectional(layers.GRU(128, return_sequences=True)))
        network.add(layers.Bidirectional(layers.GRU(128)))
    else:
        network.add(layers.Embedding(words, 32, mask_zero=True))
        network.add(layers.GlobalAveragePooling1D())
    network.add(layers.Dense(1, activation="sigmoid"))
    optimizer = keras.optimizers.RMSprop(0.001 if full else 0.02)
    network.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return network


def start(network, init):
    """With the weights of that model, and an optimizer that knows nothing yet."""
    weights = keras.saving.load_model(init, compile=False).get_weights()
    if [each.shape for each in weights] != [each.shape for each in network.get_weights()]:
        sys.exit(f"{init} is another network, or one with another preprocessing.json: it can't be gone on from.")
    network.set_weights(weights)


def about(options, preprocessing, rows):
    """What models have in common that may be averaged, and, as `data` and `rows`, what each has seen of it."""
    manifest = options.data.with_name("manifest.json")
    parts = manifest.read_bytes() if manifest.is_file() else b""
    return {
        "data": options.data.name,
        "rows": rows,
        "parts": json.loads(parts)["n"] if parts else None,
        "manifest": hashlib.sha256(parts).hexdigest(),
        "preprocessing": hashlib.sha256(preprocessing).hexdigest(),
        "init": hashlib.sha256(Path(options.init).read_bytes()).hexdigest() if options.init else "",
        "seed": options.seed,
        "full": options.full,
        "epoch": options.epoch,
        "batch": options.batch,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="an .npz file with x and y")
    parser.add_argument("--epoch", type=int, default=os.environ.get("EPOCH", 3))
    parser.add_argument("--batch", type=int, default=os.environ.get("BATCH", 100))
    parser.add_argument("--savemodel", type=Path, default=Path("model.h5"))
    parser.add_argument("--init", default="", help="a model to go on from; without one, --seed says where to begin")
    parser.add_argument("--seed", type=int, default=0, help="models with the same one can be averaged (default: 0)")
    parser.add_argument("--full", action="store_true", help="two bidirectional GRU(128), as the original had")
    parser.add_argument("--preprocessing", type=Path, help="default: preprocessing.json near the data, or here")
    options = parser.parse_args()

    x, y = reviews.load(options.data)
    preprocessing = (options.preprocessing or reviews.nearby("preprocessing.json", options.data)).read_bytes()
    text = json.loads(preprocessing)
    keras.utils.set_random_seed(options.seed)
    network = make(text["first_id"] + len(text["words"]), text["length"], options.full)
    reviews.check(x, network)
    if options.init:
        start(network, options.init)

    # All begin with the same weights, but each goes through its data in an order of its own: copies of the data too.
    keras.utils.set_random_seed(zlib.crc32(f"{options.seed} {options.data.name}".encode()))
    network.fit(x, y, epochs=options.epoch, batch_size=options.batch, verbose=2)

    # Whoever finds a model finds what belongs to it, and never that of an older one.
    model = options.savemodel
    training = json.dumps(about(options, preprocessing, len(y)), indent=1)
    model.unlink(missing_ok=True)
    reviews.write(Path(f"{model}.preprocessing.json"), lambda path: path.write_bytes(preprocessing))
    reviews.write(Path(f"{model}.training.json"), lambda path: path.write_text(training))
    reviews.write(model, network.save)
    print(f"{model} was trained on {len(y):,} reviews.")


if __name__ == "__main__":
    main()
