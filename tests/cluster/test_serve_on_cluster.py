"""pumasi serve --on k8s: a real model of Keras, served by a real cluster, and changed while people ask."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pumasi.serve.texts import KOREAN
from tests.browser import browsing
from tests.cluster.place import Done, Place, kubeconfig_of, make_volume
from tests.cluster.subject import IMAGE, Namespace
from tests.frameworks.conftest import CHECKOUT
from tests.harness import Workplace, wait_for
from tests.models_to_serve import make_reviews

pytestmark = pytest.mark.own

REVIEW = "I loved this brilliant film"
PHONE, DESK = (390, 800), (1200, 900)
OURS = "deployments,services,configmaps,secrets,pods,jobs,replicasets"


class Desk(Place):
    """Somebody with models and the right `edit`, who has them served."""

    def __init__(self, workplace: Workplace, namespace: Namespace) -> None:
        super().__init__(workplace, namespace)
        namespace.kubectl("create", "serviceaccount", "editor")
        editor = f"--serviceaccount={namespace.name}:editor"
        namespace.kubectl("create", "rolebinding", "editor", "--clusterrole=edit", editor)
        self.environ["KUBECONFIG"] = str(kubeconfig_of(namespace, "editor", workplace.home.parent))

    def serve(self, *words: str) -> Done:
        python = str(CHECKOUT / ".venv" / "bin" / "python")
        where = ("--on", "k8s", "--namespace", self.namespace.name, "--image", IMAGE, "--python", python, "--json")
        return self.pumasi("serve", *words, *where)

    def remove(self, name: str) -> Done:
        return self.pumasi("serve", "--on", "k8s", "--namespace", self.namespace.name, "--remove", "--name", name)

    def left_of(self, name: str) -> list[str]:
        return self.namespace.kubectl("get", OURS, "-l", f"pumasi.dev/service={name}", "-o", "name").split()


class Film:
    """What is served as `film`, for who knows its address."""

    def __init__(self, desk: Desk, url: str) -> None:
        self.desk, self.url = desk, url
        address = urlsplit(url)
        self._place = (str(address.hostname), address.port)
        self.token = parse_qs(address.query)["token"][0]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._place, timeout=30)

    def ask(self, connection: http.client.HTTPConnection, token: str = "") -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token or self.token}"}
        connection.request("POST", "/predict", json.dumps({"input": REVIEW}), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def ask_once(self, token: str = "") -> tuple[int, Any]:
        connection = self.connect()
        try:
            return self.ask(connection, token)
        finally:
            connection.close()

    def judge(self) -> float:
        status, said = self.ask_once()
        assert status == 200, said
        percent: float = said["predictions"][0]["percent"]
        return percent

    def change_to(self, model: str) -> Done:
        return self.desk.serve(model, "--name", "film", "--expose", "NodePort")


@pytest.fixture(scope="module")
def desk(shared_namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    workplace = Workplace(tmp_path_factory.mktemp("desk"))
    try:
        make_reviews(workplace.folder)
        folder = workplace.folder
        shutil.copy(folder / "votes" / "1.keras", folder / "other.keras")
        shutil.copy(folder / "final.keras.preprocessing.json", folder / "other.keras.preprocessing.json")
        (folder / "broken.keras").write_bytes((folder / "final.keras").read_bytes()[:5000])
        yield Desk(workplace, shared_namespace)
        workplace.assert_nothing_left()
    finally:
        workplace.clean_up()


@pytest.fixture(scope="module")
def film(desk: Desk) -> Film:
    """Its volume can be mounted by one node at a time."""
    make_volume(desk.namespace, "film", "ReadWriteOnce")
    done = desk.serve("final.keras", "--name", "film", "--expose", "NodePort")
    assert done.returncode == 0, done.stderr
    assert "one node at a time" in done.stderr
    return Film(desk, json.loads(done.stdout)["url"])


@pytest.mark.browser
def test_a_review_is_typed_and_judged_on_the_page(film: Film, tmp_path: Path) -> None:
    expected = f"{film.judge():.2f} % good"
    with browsing(tmp_path / "profile") as browser:
        for size, language in ((DESK, "en"), (PHONE, "ko")):
            browser.be(*size, language=language)
            browser.open(film.url)
            browser.click("#text")
            browser.type(REVIEW)
            browser.click("button.main")
            browser.wait_for("document.querySelector('.answer')")
            assert browser.evaluate("document.querySelector('.answer').textContent") == expected
            assert browser.evaluate("document.documentElement.lang") == language
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is too wide"
            browser.picture(tmp_path / f"{language}.png")
        assert browser.evaluate("document.querySelector('#result h2').textContent") == KOREAN["answer"]
        assert browser.complaints == []


def test_who_has_a_wrong_token_gets_nothing(film: Film) -> None:
    status, said = film.ask_once("wrong")
    assert (status, said["error"]["code"]) == (401, "token_required")


class Crowd:
    """Clients that ask without a pause: some keep their connection, some take a new one for each question."""

    def __init__(self, film: Film) -> None:
        self._film, self._over = film, threading.Event()
        self.failures: list[str] = []
        self.answers: dict[int, list[float]] = {}

    def _ask(self, number: int) -> None:
        heard = self.answers.setdefault(number, [])
        connection = self._film.connect()
        while not self._over.is_set():
            try:
                status, said = self._film.ask(connection)
                if status == 200:
                    heard.append(said["predictions"][0]["percent"])
                else:
                    self.failures.append(f"{status} {said}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            if number % 2:
                connection.close()
        connection.close()

    @contextmanager
    def asking(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: len(self.answers) == 4 and all(self.answers.values()), "everybody's first answer")
            yield
            before = {number: len(heard) for number, heard in self.answers.items()}
            wait_for(lambda: all(len(self.answers[n]) > before[n] + 1 for n in before), "everybody's last answer")
        finally:
            self._over.set()
            for thread in threads:
                thread.join()


def test_a_rolling_change_drops_no_request_and_keeps_the_address(film: Film) -> None:
    assert film.change_to("final.keras").returncode == 0
    old, crowd = film.judge(), Crowd(film)
    with crowd.asking():
        done = film.change_to("other.keras")
    new = film.judge()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["url"] == film.url
    assert crowd.failures == []
    assert old != new
    for heard in crowd.answers.values():
        assert (heard[0], heard[-1]) == (old, new)
        assert set(heard) == {old, new}


def test_a_model_that_can_not_be_loaded_leaves_the_former_in_place(film: Film) -> None:
    before = film.judge()
    done = film.change_to("broken.keras")
    assert done.returncode == 2
    assert "broken.keras is no Keras model, or is damaged" in done.stderr
    assert "What was served before goes on." in done.stderr
    assert film.judge() == before
    kept = film.desk.namespace.volume_folder("film") / "serve" / "film"
    assert len(list(kept.iterdir())) == 2, "what is served, and what should have been"
    wait_for(lambda: len(film.desk.namespace.get("pods", "-l", "pumasi.dev/service=film")["items"]) == 1, "one pod")


def test_a_first_model_that_can_not_be_loaded_leaves_nothing_but_the_volume(desk: Desk) -> None:
    make_volume(desk.namespace, "first", "ReadWriteOnce")
    done = desk.serve("broken.keras", "--name", "first")
    assert done.returncode == 2
    assert "is damaged" in done.stderr
    assert "Nothing of first is left but its volume." in done.stderr
    assert desk.left_of("first") == []


def test_a_model_on_the_volume_is_served_without_a_token_and_removed(desk: Desk) -> None:
    """As a run has left it there: --save /volume/kept.keras."""
    make_volume(desk.namespace, "kept")
    folder = desk.namespace.volume_folder("kept")
    (folder / "kept.keras").write_bytes((desk.folder / "final.keras").read_bytes())
    done = desk.serve("/volume/kept.keras", "--volume", "kept", "--no-token")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["url"], told["token"]) == (f"http://kept.{desk.namespace.name}.svc/", None)
    assert f"kubectl -n {desk.namespace.name} port-forward service/kept 8000:80" in done.stderr
    done = desk.remove("kept")
    assert done.returncode == 0, done.stderr
    assert "The volume kept stays" in done.stderr
    assert desk.left_of("kept") == []
    assert (folder / "kept.keras").exists()
    assert desk.remove("kept").returncode == 6


def test_what_others_have_made_is_not_touched(desk: Desk) -> None:
    desk.namespace.kubectl("create", "service", "clusterip", "theirs", "--tcp=80")
    done = desk.serve("final.keras", "--name", "theirs")
    assert done.returncode == 2
    assert "was not made by `pumasi serve`" in done.stderr
    assert desk.remove("theirs").returncode == 6
    assert desk.namespace.kubectl("get", "service", "theirs", "-o", "name").strip() == "service/theirs"
