"""Film reviews, good and bad, as numbers: writes reviews.npz, test.npz, preprocessing.json, and reviews.txt, which says
where they are from.

    python reviews.py [--savedir DIR] [--source imdb|sentences]

The reviews are Keras' IMDB: 25,000 to train on and 25,000 to test. Where that can't be downloaded, they are 10,605
sentences of film reviews that come with the source of the package vaderSentiment, from the package index that pip uses.
"""

import argparse
import collections
import hashlib
import html
import io
import json
import os
import re
import secrets
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

LABELS = ("bad", "good")
WORDS = 10_000
WORD = r"\w+(?:'\w+)*"
PADDING, START, UNKNOWN, FIRST = range(4)
EXAMPLES = (
    "A wonderful film: funny, warm and beautifully acted from beginning to end.",
    "Two hours of boredom. The plot makes no sense, and neither does the acting.",
)

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pumasi" / "data"
PACKAGE, VERSION = "vaderSentiment", "3.3.2"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
NEUTRAL = 0.5
LONGEST_DOWNLOAD = 300
LONGEST_SILENCE = 10


# ---- where reviews come from: (text, label) to train on, and to test with


def imdb():
    """Keras' own division, if it is here or can be downloaded. A child does that, because Keras sets itself no limit of
    time."""
    command = [sys.executable, "-c", DOWNLOAD, str(LONGEST_SILENCE)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_DOWNLOAD)
    except subprocess.SubprocessError:
        return None
    from keras import datasets

    words = {number: word for word, number in datasets.imdb.get_word_index().items()}
    return [
        [(" ".join(words[number] for number in review), int(label)) for review, label in zip(*part, strict=True)]
        for part in datasets.imdb.load_data(start_char=None, index_from=0)
    ]


DOWNLOAD = """
import os, socket, sys, threading, urllib.request
from keras.datasets import imdb

def soon(*words, **options):
    limit = threading.Timer(int(sys.argv[1]), os._exit, [1])
    limit.start()
    try:
        return urlopen(*words, **options)
    finally:
        limit.cancel()

socket.setdefaulttimeout(int(sys.argv[1]))
urlopen, urllib.request.urlopen = urllib.request.urlopen, soon
imdb.load_data()
imdb.get_word_index()
"""


def sentences():
    """People have rated each from -4 to 4; those with a mean close to 0 are neither good nor bad, and left out. One in
    five is for the test: its text says whether it is, so that it is the same ones everywhere."""
    folder = f"{PACKAGE}-{VERSION}"
    with tarfile.open(fetch_source()) as package:
        study = package.extractfile(f"{folder}/additional_resources/hutto_ICWSM_2014.tar.gz").read()
    with tarfile.open(fileobj=io.BytesIO(study)) as files:
        lines = files.extractfile("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt").read().decode().split("\r\n")
    train, test = [], []
    for line in filter(None, lines):
        _, rating, text = line.split("\t")
        if abs(float(rating)) >= NEUTRAL:
            text = html.unescape(text).strip()
            part = test if digest(text.lower())[0] % 5 == 0 else train
            part.append((text, int(float(rating) > 0)))
    return train, test


SOURCES = {
    "imdb": ("Keras' IMDB", imdb, 500),
    "sentences": (f"Sentences from the source of the package {PACKAGE}", sentences, 50),
}
"""What they are called, what gets them, and how many words of a review are looked at."""


def digest(text):
    return hashlib.sha256(text.encode()).digest()


def fetch_source():
    """The package as its authors packed it, downloaded once. pip finds it as it finds everything: its index, proxies,
    certificates and passwords are the user's settings. Nothing of the package is run: pip asks a build backend for name
    and version, and gets ours."""
    kept = CACHE / f"{PACKAGE}-{VERSION}.tar.gz"
    if kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == SHA256:
        return kept
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        backend = Path(folder) / "setuptools"
        backend.mkdir()
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(BACKEND)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--dest", folder]
        only_source = ["--no-deps", "--no-binary", PACKAGE, "--no-build-isolation", "--use-pep517"]
        command = [*pip, *only_source, f"{PACKAGE}=={VERSION}"]
        environ = {**os.environ, "PYTHONPATH": folder}
        try:
            subprocess.run(command, env=environ, check=True, capture_output=True, timeout=LONGEST_DOWNLOAD)
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            sys.exit(f"pip can't download the source of {PACKAGE} {VERSION}:\n{said}")
        except subprocess.TimeoutExpired:
            sys.exit(f"pip has not downloaded the source of {PACKAGE} {VERSION} in {LONGEST_DOWNLOAD} s.")
        fetched = Path(folder) / kept.name
        if not fetched.is_file() or hashlib.sha256(fetched.read_bytes()).hexdigest() != SHA256:
            sys.exit(f"What the package index has as the source of {PACKAGE} {VERSION} is something else.")
        fetched.replace(kept)
    return kept


BACKEND = f"""
from pathlib import Path


class __legacy__:
    def prepare_metadata_for_build_wheel(folder, settings=None):
        about = Path(folder, "{PACKAGE}-{VERSION}.dist-info")
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\\nName: {PACKAGE}\\nVersion: {VERSION}\\n")
        return about.name
"""


# ---- from words to numbers


def make_preprocessing(texts, length):
    """What is done with a text before the network sees it, as `pumasi serve` reads it too. It knows the most frequent
    words of these texts: as many as an embedding of WORDS rows has room for."""
    about = {"format": "pumasi-preprocessing", "version": 1, "kind": "text", "labels": LABELS, "examples": EXAMPLES}
    about |= {"pattern": WORD, "lowercase": True, "length": length, "pad": "before", "cut": "before"}
    about |= {"padding_id": PADDING, "start_id": START, "unknown_id": UNKNOWN, "first_id": FIRST}
    counts = collections.Counter(word for text in texts for word in words_of(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {**about, "words": ranked[: WORDS - FIRST]}


def words_of(text):
    return re.findall(WORD, text.lower())


def encode(texts, preprocessing):
    """A row of numbers for each text. Padding comes before a text, and of a long one the end is kept."""
    ids = {word: number for number, word in enumerate(preprocessing["words"], FIRST)}
    length = preprocessing["length"]
    rows = np.full((len(texts), length), PADDING, "int32")
    for row, text in zip(rows, texts, strict=True):
        numbers = [START, *(ids.get(word, UNKNOWN) for word in words_of(text))][-length:]
        row[-len(numbers) :] = numbers
    return rows


# ---- files


def prepare(folder, source=None):
    """Writes the files into the folder, unless they are there: reviews.npz comes last."""
    reviews, origin = folder / "reviews.npz", folder / "reviews.txt"
    if reviews.exists():
        print(f"{reviews} is there already: {origin.read_text()}")
        return reviews
    for name in [source] if source else SOURCES:
        title, load, length = SOURCES[name]
        if parts := load():
            break
        print("Keras' IMDB can't be downloaded here.", flush=True)
    else:
        sys.exit(1)
    # In an order that is as good as random, and the same everywhere: parts of it have as much good as bad.
    train, test = (sorted(part, key=lambda review: digest(review[0])) for part in parts)
    about = f"{title}: {len(train):,} reviews to train on, {len(test):,} to test."
    print(about)
    preprocessing = make_preprocessing([text for text, _ in train], length)
    folder.mkdir(parents=True, exist_ok=True)
    write(origin, lambda path: path.write_text(about))
    write(folder / "preprocessing.json", lambda path: path.write_text(json.dumps(preprocessing)))
    for path, part in ((folder / "test.npz", test), (reviews, train)):
        texts, labels = zip(*part, strict=True)
        arrays = {"x": encode(texts, preprocessing), "y": np.array(labels, "int32")}
        write(path, lambda path, arrays=arrays: np.savez_compressed(path, **arrays))
    return reviews


def write(path, save):
    """`save` gets another name to write to, so that the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        save(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def nearby(name, path):
    """That file beside this one, in a folder above, or in the working folder."""
    path = path.absolute()
    for folder in (path, *path.parents, Path()):
        if (folder / name).is_file():
            return folder / name
    sys.exit(f"There is no {name} near {path}, nor in the working folder. It is written by reviews.py.")


def load(path):
    with np.load(path) as arrays:
        return arrays["x"], arrays["y"]


def check(x, network):
    """Keras would take a number that is too large for another one, and say nothing."""
    words, length = network.layers[0].input_dim, network.input_shape[1]
    if x.shape[1:] != (length,) or x.min() < 0 or x.max() >= words:
        sys.exit(
            f"The data do not fit the model, which takes {length} numbers below {words} a review.\n"
            "Was one of them made with another preprocessing.json?"
        )


def models_in(folder, but=None):
    """By name. Hidden ones are not whole yet."""
    found = [path for path in folder.glob("[!.]*") if path.suffix in (".h5", ".keras") and path != but]
    if not found:
        sys.exit(f"There are no models in {folder.absolute()}: train.py makes them.")
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--savedir", type=Path, default=Path())
    parser.add_argument("--source", choices=SOURCES, help="default: imdb, else sentences")
    options = parser.parse_args()
    prepare(options.savedir, options.source)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
