"""Saves three trained models in the formats of Keras, or checks that their averages load and are what they should be.

models_keras.py save|check FOLDER keras|tf_keras SUFFIX...
"""

import importlib
import sys
from pathlib import Path

import numpy as np

action, folder, flavour, *suffixes = sys.argv[1:]
keras = importlib.import_module(flavour)
folder = Path(folder)


def make():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.BatchNormalization(center=False, scale=False),
            layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
    return model


def saved(model, path):
    (model.save_weights if ".weights." in path.name else model.save)(str(path))


def loaded(path):
    if ".weights." not in path.name:
        return keras.models.load_model(str(path))
    model = make()
    model.load_weights(str(path))
    return model


def weights_of(model):
    return [np.asarray(each) for each in model.get_weights()]


if action == "save":
    for number in range(3):
        keras.backend.clear_session()
        dice = np.random.default_rng(number)
        keras.utils.set_random_seed(number)
        model = make()
        for _ in range(number + 1):
            model.fit(dice.normal(number, 2, (64, 6)), dice.normal(size=(64, 2)), verbose=0)
        for suffix in suffixes:
            (folder / suffix).mkdir(exist_ok=True)
            saved(model, folder / suffix / f"{number}{suffix}")
        np.savez(folder / f"weights-{number}", *weights_of(model))
else:
    several = [list(np.load(folder / f"weights-{number}.npz").values()) for number in range(3)]
    expected = [np.mean([each.astype(np.float64) for each in every], axis=0) for every in zip(*several)]
    # gamma, beta, mean, variance of the first normalization; mean and variance of the second
    for mean, variance in ((4, 5), (6, 7)):
        expected[variance] += np.var([model[mean].astype(np.float64) for model in several], axis=0)
    for suffix in suffixes:
        model = loaded(folder / f"final{suffix}")
        for ours, theirs in zip(weights_of(model), expected):
            np.testing.assert_array_equal(ours, theirs.astype(np.float32))
        if ".weights." not in suffix:
            assert int(np.asarray(model.optimizer.iterations)) == 6
        model.predict(np.ones((8, 6)), verbose=0)
        # Keras 3 can't go on with what it loads from its old format, averaged or not.
        if (flavour, suffix) != ("keras", ".h5"):
            model.fit(np.ones((8, 6)), np.ones((8, 2)), verbose=0)
        print(suffix, "is right")
