"""`make demo`, as one who has just arrived sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.harness import Workplace

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "examples" / "imdb"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def place(workplace: Workplace) -> Workplace:
    shutil.copytree(EXAMPLE, workplace.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("demo", "__pycache__"))
    return workplace


@contextmanager
def demo(place: Workplace, **env: str) -> Iterator[subprocess.Popen[str]]:
    """In a group of its own, as under a shell: Ctrl-C is for all of the group."""
    process = subprocess.Popen(
        [sys.executable, "demo.py"],
        cwd=place.folder,
        env={**place.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(process: subprocess.Popen[str], pattern: str) -> str:
    """What is on the screen when the pattern is."""
    seen = ""
    assert process.stdout is not None
    for line in process.stdout:
        seen += line
        if re.search(pattern, line):
            return seen
    raise AssertionError(f"there was no {pattern} in:\n{seen}")


def asked(address: str, review: str) -> tuple[str, float, str]:
    """What the API says, and what the page shows."""
    opener = build_opener(ProxyHandler({}))
    form = urlencode({"text": review}).encode()
    page = opener.open(Request(f"{address}predict", form), timeout=30).read().decode()
    body = json.dumps({"input": review}).encode()
    question = Request(f"{address}predict", body, {"Content-Type": "application/json"})
    (answer,) = json.load(opener.open(question, timeout=30))["predictions"]
    shown = re.search(r"\d+\.\d\d % (good|bad)", page)
    assert shown
    return answer["label"], answer["percent"], shown[0]


@pytest.mark.network
@pytest.mark.timeout(900)
def test_after_an_interruption_and_then_from_the_reviews_to_a_page_that_judges_them(place: Workplace) -> None:
    with demo(place) as process:
        until(process, r"^\[train-1-\d\] Epoch 1")
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 5, rest
        assert "Traceback" not in rest
        assert "was stopped" in rest
        assert "pumasi serve" not in rest
    place.assert_nothing_left()

    with demo(place, DEMO_SECONDS="10") as process:
        seen = until(process, "http://")
        address = re.findall(r"http://127\.0\.0\.1:\d+/", seen)[0]
        label, percent, shown = asked(address, "A wonderful film: funny, warm and beautifully acted.")
        assert (label, shown) == ("good", f"{percent:.2f} % good")
        label, percent, shown = asked(address, "A boring and pointless waste of time. The acting is terrible.")
        assert (label, shown) == ("bad", f"{percent:.2f} % bad")
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 0, rest

    assert re.search(r"(IMDB|Sentences .*): [\d,]+ reviews to train on, [\d,]+ to test\.", seen)
    assert [line[:14] for line in seen.splitlines() if line.startswith("$")][-3:] == [
        "$ python revie",
        "$ pumasi run -",
        "$ pumasi serve",
    ]
    rows = re.findall(r"^ +(\d)  (\S+ \S+) +0\.\d+ +(0\.\d+)(.*)$", seen, re.MULTILINE)
    models = ["model 0", "model 1", "model 2", "the average", "the ensemble"]
    assert [(number, who) for number, who, _, _ in rows] == [(number, who) for number in "12" for who in models]
    (winner,) = (float(accuracy) for _, _, accuracy, mark in rows if "best" in mark)
    assert winner == max(float(accuracy) for _, _, accuracy, _ in rows) > 0.7
    assert "Nobody has asked anything for 10 s" in rest
    assert rest.endswith("are in demo.\n")
    assert {path.name for path in place.folder.iterdir()} - {path.name for path in EXAMPLE.iterdir()} <= {
        "demo",
        "__pycache__",
    }


def test_with_no_reviews_to_be_had_it_fails_and_says_why(place: Workplace) -> None:
    unreachable = {"PIP_INDEX_URL": NOWHERE, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, "https_proxy": NOWHERE}
    empty = {"XDG_CACHE_HOME": str(place.folder / "cache"), "KERAS_HOME": str(place.folder / "keras")}
    with demo(place, **unreachable, **empty, PIP_FIND_LINKS="") as process:
        seen, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Keras' IMDB can't be downloaded here." in seen
    assert "pip can't download the source of vaderSentiment" in seen
    assert "Traceback" not in seen
    assert "pumasi run" not in seen


def test_make_demo_is_this_demo() -> None:
    planned = subprocess.run(["make", "-n", "demo"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert "examples/imdb/demo.py" in planned
    assert "cluster" not in planned
