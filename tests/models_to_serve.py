"""Models for tests of the server: made-up ones that answer at once, and real ones of Keras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pumasi.serve.ensemble import Ensemble
from pumasi.serve.models import Model
from pumasi.serve.preprocessing import Array, Preprocessing, Text

REVIEWS = Text(
    words=("good", "bad"), length=4, labels=("bad", "good"), examples=("a good film", "<b>bad</b> & 'worse'")
)
Numbers = np.ndarray[Any, Any]


def share_of_good(rows: Numbers) -> Numbers:
    """How many of the words are good, of those that are good or bad."""
    good, bad = (rows == 2).sum(axis=1), (rows == 3).sum(axis=1)
    return np.asarray((good + 0.25) / (good + bad + 0.5), np.float32)[:, None]


def ensemble(
    predict: Callable[[Numbers], Numbers] = share_of_good, preprocessing: Preprocessing = REVIEWS, *, voters: int = 1
) -> Ensemble:
    models = tuple(Model(f"{number}<&>.keras", "none", None, None, None, predict) for number in range(voters))
    return Ensemble(models, preprocessing, lacks_words=False)


def sums() -> Ensemble:
    return ensemble(lambda rows: rows.sum(axis=1, keepdims=True), Array(size=(3,)))


_SCRIPT = """
import os, sys
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np
from pumasi.serve.preprocessing import Text

good, bad = "wonderful great loved brilliant funny".split(), "awful boring terrible hated dull".split()
filler = "the a film plot was and it i in this".split()
words = sorted({*good, *bad, *filler})
text = Text(words=words, length=12, first_id=4, start_id=1, unknown_id=2, labels=("bad", "good"),
            examples=("I loved this film: brilliant!", "Boring, terrible, awful."))
dice = np.random.default_rng(0)
y = dice.integers(0, 2, 512)
x = text.encode([" ".join([*dice.choice(filler, 6), *dice.choice(good if each else bad, 2)]) for each in y])

def trained(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((12,), dtype="int32"), keras.layers.Embedding(len(words) + 4, 8, mask_zero=True),
              keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    model.fit(x, y, epochs=6, batch_size=64, verbose=0)
    return model

masked = keras.Sequential([keras.Input((12,), dtype="int32"), keras.layers.Embedding(len(words) + 4, 8, mask_zero=True),
                           keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1, "sigmoid")])
masked.save("masked.keras")
Text(words=words, length=12, first_id=4, labels=("bad", "good")).save("masked.keras.preprocessing.json")
os.makedirs("votes")
model = trained(0)
for name in ("final.keras", "final.h5", "bare.keras"):
    model.save(name)
model.save_weights("only.weights.h5")
text.save("final.keras.preprocessing.json")
text.save("final.h5.preprocessing.json")
for seed in (1, 2):
    trained(seed).save(f"votes/{seed}.keras")
keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x + 1)]).save("lambda.keras")
"""


def make_reviews(folder: Path) -> None:
    """final.keras and final.h5 with their preprocessing, bare.keras without, votes/1.keras and votes/2.keras,
    masked.keras that knows no answer to nothing, and what can't be served: only.weights.h5, lambda.keras."""
    subprocess.run([sys.executable, "-c", _SCRIPT], cwd=folder, check=True, timeout=240, capture_output=True)
