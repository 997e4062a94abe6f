"""The whole of examples/imdb on a cluster: reviews, trainers that learn apart on three nodes, one of which dies, the
average, and the page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import browsing
from tests.cluster import breaking
from tests.cluster.place import Place, make_volume
from tests.cluster.subject import IMAGE, Kubernetes, Namespace
from tests.frameworks.conftest import CHECKOUT
from tests.harness import Workplace, wait_for

pytestmark = [pytest.mark.timeout(900), pytest.mark.own, pytest.mark.network, pytest.mark.browser]

AVERAGE = ("--strategy", "average", "--slots", "3", "--split", "reviews.npz", "--rounds", "2", "--cpus", "1.2")
JUDGE = ("--evaluate", "evaluate.py --modelpath {model}", "--save", "final.keras")
TRAINER = (
    *("train.py", "--data", "{shard}", "--epoch", "3", "--batch", "100"),
    *("--savemodel", "{model}.keras", "--init", "{init}"),
)
THERE = ("--volume", "imdb", "--image", IMAGE, "--python", sys.executable)
GOOD = "A beautiful film: I was moved from the first minute to the last."
BAD = "Boring, badly acted and far too long. A waste of time."


@pytest.fixture
def place(workplace: Workplace, namespace: Namespace) -> Place:
    shutil.copytree(CHECKOUT / "examples" / "imdb", workplace.folder, dirs_exist_ok=True)
    subprocess.run([sys.executable, "reviews.py"], cwd=workplace.folder, check=True, timeout=300)
    make_volume(namespace, "imdb")
    return Place(workplace, namespace)


def running(place: Place) -> list[str]:
    """The nodes where trainers of the first round run."""
    return [
        pod["spec"]["nodeName"]
        for pod in place.pods()
        if pod["metadata"]["labels"]["pumasi.dev/task"].startswith("train-1-") and pod["status"]["phase"] == "Running"
    ]


def judgement(browser_folder: Path, url: str, review: str) -> str:
    with browsing(browser_folder) as browser:
        browser.be(390, 800)
        browser.open(url)
        browser.click("#text")
        browser.type(review)
        browser.click("button.main")
        browser.wait_for("document.querySelector('.answer')")
        assert browser.complaints == []
        return str(browser.evaluate("document.querySelector('.answer').innerText"))


def test_reviews_are_learned_apart_averaged_and_judged(place: Place, kubernetes: Kubernetes, tmp_path: Path) -> None:
    process = place.start(*AVERAGE, *JUDGE, *THERE, *TRAINER)
    wait_for(lambda: len(set(running(place))) == 3, "a trainer on each node", 120)
    with breaking.powered_off(kubernetes, running(place)[0]):
        wait_for(lambda: "restarting" in place.pumasi("show", "--json").stdout, "a trainer to be missed", 120)
    _, err = process.communicate(timeout=700)
    assert process.returncode == 0, err
    assert "The final model: /volume/final.keras" in err
    table = err.partition("The final model")[2].splitlines()[2:12]
    assert [line.split()[0] for line in table] == ["1"] * 5 + ["2"] * 5
    accuracies = [float(line.split("◄")[0].split()[-1]) for line in table]
    assert min(accuracies) > 0.7
    assert accuracies[8] > max(accuracies[5:8]), "the last average beats each of its models"

    where = ("--on", "k8s", "--namespace", place.namespace.name)
    served = place.pumasi("serve", "/volume/final.keras", *THERE, *where, "--expose", "NodePort", "--json")
    assert served.returncode == 0, served.stderr
    url = json.loads(served.stdout)["url"]
    assert "% good" in judgement(tmp_path / "1", url, GOOD)
    assert "% bad" in judgement(tmp_path / "2", url, BAD)
    assert place.pumasi("serve", *where, "--name", "final", "--remove").returncode == 0
