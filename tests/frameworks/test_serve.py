"""pumasi serve with real models of Keras, as a user starts, asks, changes and ends it."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from pumasi.serve.preprocessing import Text
from tests.harness import OUR_TRACEBACK, Workplace, wait_for
from tests.models_to_serve import make_reviews


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    make_reviews(folder)
    return folder


@pytest.fixture
def place(workplace: Workplace, reviews: Path) -> Workplace:
    shutil.copytree(reviews, workplace.folder, dirs_exist_ok=True)
    return workplace


class Served:
    def __init__(self, process: subprocess.Popen[str], started: dict[str, Any]) -> None:
        self.process, self.started = process, started
        self.port: int = started["port"]

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text
        finally:
            connection.close()

    def predict(self, value: object, **headers: str) -> tuple[int, Any]:
        return self.ask("POST", "/predict", json.dumps({"input": value}), Content_Type="application/json", **headers)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        assert not OUR_TRACEBACK.search(err), err
        return self.process.returncode, err


@contextmanager
def serving(place: Workplace, *words: str, **options: Any) -> Iterator[Served]:
    process = place.start("serve", *words, "--port", "0", "--json", **options)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield Served(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_model_that_masks_the_padding_is_served_though_it_has_no_answer_to_nothing(place: Workplace) -> None:
    with serving(place, "masked.keras") as served:
        status, said = served.predict("a wonderful film")
        assert status == 200
        assert 0 < said["predictions"][0]["probabilities"]["good"] < 1


def test_a_review_is_judged_as_in_the_training(place: Workplace) -> None:
    with serving(place, "final.keras", "--vote", "votes") as served:
        assert served.started["models"] == ["final.keras", "1.keras", "2.keras"]
        assert served.started["token"] is None
        status, told = served.predict("I LOVED it: brilliant, funny!")
        assert status == 200
        (prediction,) = told["predictions"]
        assert prediction["label"] == "good"
        assert prediction["percent"] > 80
        votes = [vote["probabilities"]["good"] for vote in prediction["votes"]]
        assert len(set(votes)) == 3
        assert prediction["probabilities"]["good"] == pytest.approx(sum(votes) / 3)
        (bad,) = served.predict("awful. Boring, and DULL")[1]["predictions"]
        assert bad["label"] == "bad"
        assert (
            b"% good"
            in served.ask("POST", "/predict", "text=I+loved+it", Content_Type="application/x-www-form-urlencoded")[1]
        )
        code, err = served.end()
    assert code == 0
    assert "loading final.keras …" in err


def test_old_files_of_keras_are_served_too(place: Workplace) -> None:
    with serving(place, "final.h5") as served:
        assert served.predict("I loved it, great")[1]["predictions"][0]["label"] == "good"


def test_ids_without_words_are_numbers_and_the_page_says_why(place: Workplace) -> None:
    with serving(place, "bare.keras") as served:
        assert served.started["kind"] == "array"
        page = served.ask("GET", "/")[1].decode()
        assert "no file beside it says which word has which id" in page
        assert 'name="text"' not in page
        assert served.predict([4] * 12)[0] == 200
        status, told = served.predict([4] * 11 + [9999])
        assert (status, told["error"]["code"]) == (422, "bad_input")
        assert "from 0 to 23" in told["error"]["message"]


REFUSED = (
    ("missing.keras", "There is no file missing.keras."),
    ("votes", "votes is a folder."),
    ("broken.keras", "broken.keras is no Keras model, or is damaged: it is no zip archive."),
    ("broken.h5", "broken.h5 is no Keras model, or is damaged: it is no HDF5 file."),
    ("only.weights.h5", "It has weights, but not the layers"),
    ("weights.npz", "It has weights, but not the layers"),
    ("state.pt", "It has weights, but not the layers"),
    ("lambda.keras", "lambda.keras has Python code in it"),
    ("notes.txt", "notes.txt is no model that can be served."),
    ("final.keras --vote nowhere", "There is no folder nowhere."),
    ("final.keras --vote others", "1.keras was trained with another preprocessing than final.keras."),
    ("final.keras --preprocessing long.json", "gives inputs of the shape (99,)"),
    ("final.keras --preprocessing rich.json", "gives ids up to 100, but final.keras only knows those up to 23"),
    ("final.keras --preprocessing labels.json", "puts out 1 numbers, but there are 3 labels"),
    ("final.keras --host no.such.host.invalid", "is no address of this machine"),
    ("final.keras --port 99999", "--port takes a whole number up to 65535"),
)


def test_what_can_not_be_served_is_a_sentence(place: Workplace) -> None:
    """All in one process: to import a framework takes seconds."""
    for name in ("broken.keras", "broken.h5", "weights.npz", "notes.txt"):
        (place.folder / name).write_bytes(b"this is nothing")
    with ZipFile(place.folder / "state.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    Text(words=("a",), length=99).save(place.folder / "long.json")
    Text(words=tuple(map(str, range(99))), length=12).save(place.folder / "rich.json")
    Text(words=("a",), length=12, labels=("x", "y", "z")).save(place.folder / "labels.json")
    shutil.copytree(place.folder / "votes", place.folder / "others")
    Text(words=("other", "words"), length=12).save(place.folder / "others" / "1.keras.preprocessing.json")
    script = f"""
        import sys
        from pumasi.cli.main import main
        for words in {[words for words, _ in REFUSED]!r}:
            print(f"=={{main(['serve', '--port', '0', *words.split()])}}", file=sys.stderr, flush=True)
    """
    command = [sys.executable, str(place.script(script))]
    err = subprocess.run(
        command, cwd=place.folder, env=place.environ, stderr=subprocess.PIPE, text=True, timeout=120, check=True
    ).stderr
    told = err.split("==")
    for (words, message), before, after in zip(REFUSED, told, told[1:], strict=False):
        assert message in before, words
        assert after.startswith("2\n"), words
    assert not OUR_TRACEBACK.search(err)


def test_a_port_that_is_taken_is_named(place: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = place.run("serve", "final.keras", "--port", str(port))
    assert ended.returncode == 7
    assert f"Port {port} of 127.0.0.1 is taken" in ended.stderr
    assert "--port 0" in ended.stderr


def test_others_need_the_token_that_is_printed(place: Workplace) -> None:
    with serving(place, "final.keras", "--host", "0.0.0.0") as served:
        token = served.started["token"]
        assert served.started["url"].endswith(f"/?token={token}")
        assert served.predict("great")[0] == 401
        assert served.predict("great", Authorization=f"Bearer {token}")[0] == 200
    with serving(place, "final.keras", "--host", "0.0.0.0", "--no-token") as served:
        assert served.started["token"] is None
        assert served.predict("great")[0] == 200


def test_sigterm_lets_what_runs_finish(place: Workplace) -> None:
    """A request that is still being sent when the signal comes is answered; meanwhile the server is not ready."""
    with serving(place, "final.keras") as served:
        body = json.dumps({"input": "I loved it"}).encode()
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            slow.sendall(b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            assert slow.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            slow.sendall(body[:5])
            served.process.send_signal(signal.SIGTERM)
            wait_for(lambda: served.ask("GET", "/readyz")[0] == 503, "the server to say that it ends")
            assert served.ask("GET", "/healthz")[0] == 200
            assert served.process.poll() is None
            slow.sendall(body[5:])
            answer = b""
            while data := slow.recv(65536):
                answer += data
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"Connection: close" in answer
        assert served.process.wait(30) == 0
        _, err = served.process.communicate()
        assert not OUR_TRACEBACK.search(err)


def test_ctrl_c_ends_at_once_also_while_the_model_is_loaded(place: Workplace) -> None:
    with serving(place, "final.keras") as served, socket.create_connection(("127.0.0.1", served.port)) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        assert served.end(signal.SIGINT)[0] == 130
        with suppress(ConnectionError):
            assert slow.recv(65536) == b"", "it waited until that client was late"
    process = place.start("serve", "final.keras", "--port", "0")
    assert process.stderr is not None
    assert "loading" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert not OUR_TRACEBACK.search(err)


def test_a_server_that_nobody_asks_ends_when_it_was_told_to(place: Workplace) -> None:
    with serving(place, "final.keras", "--for", "5") as served:
        longer = time.monotonic() + 7
        while time.monotonic() < longer:
            assert served.predict("great")[0] == 200
            time.sleep(0.1)
        assert served.process.wait(60) == 0


class Load:
    """Clients that ask all the time, over connections that last."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.answers: list[tuple[int, float]] = []
        self.failures: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(port,)) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Content-Type": "application/json"}
        try:
            while not self._over.is_set():
                connection.request("POST", "/predict", '{"input": "I loved it, great"}', headers)
                answer = connection.getresponse()
                told = json.loads(answer.read())
                self.answers.append((answer.status, told["predictions"][0]["probabilities"]["good"]))
        except (OSError, http.client.HTTPException, KeyError) as error:
            self.failures.append(repr(error))
        finally:
            connection.close()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_a_changed_model_is_loaded_without_a_lost_request(place: Workplace) -> None:
    with serving(place, "final.keras", "--rate", "0") as served:
        load = Load(served.port)
        try:
            wait_for(lambda: len(load.answers) > 100, "answers")
            before = load.answers[0][1]
            fresh = place.folder / "fresh"
            shutil.copy(place.folder / "votes" / "1.keras", fresh)
            fresh.replace(place.folder / "final.keras")
            wait_for(lambda: abs(load.answers[-1][1] - before) > 1e-4, "answers of the new model")
            after = load.answers[-1][1]
            (place.folder / "final.keras").write_bytes(b"half a fi")
            assert served.process.stderr is not None
            lines = iter(served.process.stderr.readline, "")
            wait_for(lambda: "the earlier models go on" in next(lines), "the refusal of a damaged model")
            shutil.copy(place.folder / "votes" / "2.keras", place.folder / "final.keras")
            served.process.send_signal(signal.SIGHUP)
            wait_for(lambda: abs(load.answers[-1][1] - after) > 1e-4, "answers of the third model")
        finally:
            load.end()
        assert load.failures == []
        assert {status for status, _ in load.answers} == {200}
        # Those that were answered in one batch may differ in the last digit.
        assert len({round(good, 4) for _, good in load.answers}) == 3
        assert b"pumasi_reloads_total 2" in served.ask("GET", "/metrics")[1]
        assert served.end()[0] == 0


_SERVE_ELSEWHERE = """
    import sys
    from pathlib import Path
    from pumasi.serve.ensemble import Sources, gather

    ensemble = gather(Sources(Path(sys.argv[1])), 4, lambda text: None)
    rows = [ensemble.preprocessing.row(text) for text in ("I loved it, great", "awful, dull")]
    import numpy
    print(ensemble.models[0].framework)
    print(*(ensemble.verdict(each).mean.label for each in ensemble.predict(numpy.stack(rows))))
"""


def served_by(python: Path, place: Workplace, file: str, **environ: str) -> list[str]:
    source = str(Path(__file__).parents[2] / "src")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(place.folder / "caches")}
    quiet = {**caches, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
    command = [str(python), str(place.script(_SERVE_ELSEWHERE, "serve_elsewhere.py")), file]
    ended = subprocess.run(
        command,
        cwd=place.folder,
        env={**place.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-2:]


@pytest.mark.big
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_a_model_of_keras_answers_alike_on_every_backend(place: Workplace, big_python: Path, backend: str) -> None:
    assert served_by(big_python, place, "final.keras", KERAS_BACKEND=backend) == [f"Keras on {backend}", "good bad"]


@pytest.mark.big
def test_a_torchscript_is_served(place: Workplace, big_python: Path) -> None:
    script = """
        import torch
        from pumasi.serve.preprocessing import Text

        class Reviews(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weights = torch.nn.Embedding.from_pretrained(torch.tensor([[0.0], [0.0], [9.0], [-9.0]]))

            def forward(self, ids):
                return self.weights(ids).sum(1)

        torch.jit.script(Reviews()).save("final.pt")
        text = Text(words=["loved", "awful"], length=5, labels=["bad", "good"], output="logits")
        text.save("final.pt.preprocessing.json")
    """
    environ = {**place.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([big_python, place.script(script)], cwd=place.folder, env=environ, check=True, timeout=200)
    assert served_by(big_python, place, "final.pt") == ["TorchScript", "good bad"]
