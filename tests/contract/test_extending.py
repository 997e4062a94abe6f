"""docs/extending.md: its example works through every verb when it is installed as a package; built in, it takes as many
files as the documents say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pumasi
from tests.harness import Workplace, wait_for

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extending"
MODULES = EXAMPLE / "pumasi_extending"
TRAIN = """
    import os, sys, time
    seed = int(os.environ.get("SEED", "0"))
    print("loss:", "nan" if "nan" in sys.argv and seed == 1 else 0.5 + seed / 10, flush=True)
    print("niceness", os.nice(0), os.environ.get("PADDLE_CURRENT_ENDPOINT", "nowhere"), flush=True)
    if "long" in sys.argv or ("nan" in sys.argv and seed == 1):
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example is installed."""
    folder = tmp_path_factory.mktemp("packages")
    source = tmp_path_factory.mktemp("source") / "extending"
    shutil.copytree(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    return folder


@pytest.fixture
def place(workplace: Workplace, packages: Path) -> Workplace:
    workplace.environ["PYTHONPATH"] = str(packages)
    workplace.script(TRAIN)
    return workplace


def niceness_here() -> int:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.network
def test_a_pool_of_an_installed_package(place: Workplace) -> None:
    done = place.run("run", "--on", "quiet", "--niceness", "3", "--slots", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"niceness {niceness_here() + 3}") == 2
    run = place.last()["id"]
    assert place.run("ps", "--on", "quiet", "-q").stdout.split() == [run]
    assert "niceness 3" in place.run("show", run).stdout
    assert "loss: 0.5" in place.run("logs", "-f", "--rank", "1", run).stdout
    assert json.loads(place.run("metrics", "--json", run).stdout)["0"] == {"loss": 0.5}
    assert place.run("wait", run).returncode == 0
    assert place.run("attach", run).returncode == 0
    assert place.run("delete", run).returncode == 0
    assert place.runs() == []


@pytest.mark.network
def test_a_flow_of_an_installed_package(place: Workplace) -> None:
    done = place.run("run", "--strategy", "repeat", "--times", "3", "train.py", "nan", "{seed}")
    assert done.returncode == 0, done.stderr
    assert "[seed-2] loss: 0.7" in done.stdout
    assert "seed-1: ending: Its loss is not a number." in done.stderr
    assert "loss: 0.6 ± 0.1, of 2 runs" in done.stderr
    run = place.last()["id"]
    shown = json.loads(place.run("show", "--json", run).stdout)
    verdicts = {each["task"]: each["verdict"] for each in shown["events"] if each["event"] == "task ended"}
    assert verdicts == {"seed-0": "done", "seed-1": "stopped", "seed-2": "done"}
    assert "of 2 runs" in place.run("show", run).stdout
    assert "loss: 0.7" in place.run("logs", "-f", "--task", "seed-2", run).stdout
    assert place.run("metrics", run).returncode == 0
    assert place.run("attach", run).returncode == 0
    assert place.run("wait", run).returncode == 0
    assert place.run("delete", run).returncode == 0


@pytest.mark.network
def test_both_in_the_background_stopped_and_deleted(place: Workplace) -> None:
    words = ("--on", "quiet", "--strategy", "repeat", "--times", "2", "train.py", "long", "{seed}")
    run = place.run("run", "-d", *words).stdout.strip()
    wait_for(lambda: place.run("logs", run).stdout.count("loss") == 2, "the first line of both tasks")
    assert place.run("ps", "-q", "--state", "running").stdout.split() == [run]
    assert place.run("stop", run).returncode == 0
    assert place.last()["state"] == "stopped"
    assert place.run("delete", run).returncode == 0


@pytest.mark.network
def test_a_framework_of_an_installed_package(place: Workplace) -> None:
    done = place.run("run", "--framework", "paddle", "--slots", "2", "train.py")
    endpoints = re.findall(r"niceness \S+ (127\.0\.0\.1:\d+)", done.stdout)
    assert (done.returncode, len(set(endpoints))) == (0, 2), done.stderr
    assert place.last()["framework"] == "paddle"
    meant = place.run("run", "--framework", "paddlepaddle", "train.py")
    assert (meant.returncode, "did you mean paddle?" in meant.stderr) == (2, True), meant.stderr


@pytest.mark.network
def test_mistakes_in_options_of_an_installed_package_are_told_as_others_are(place: Workplace) -> None:
    for words, said in (
        (("--on", "quiet", "--niceness", "20"), "--niceness: 20 is too large; give 19 at the most"),
        (("--niceness", "5"), "--niceness: it is for --on quiet, but --on is local"),
        (("--strategy", "repeat", "--times", "x"), '--times: "x" is not a whole number; give 1 or more'),
    ):
        told = place.run("run", *words, "train.py")
        assert (told.returncode, said in told.stderr) == (2, True), told.stderr


def test_the_document_has_the_example_word_for_word() -> None:
    document = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    for path in (EXAMPLE / "pyproject.toml", *(MODULES / f"{name}.py" for name in ("quiet", "repeat", "paddle"))):
        assert path.read_text(encoding="utf-8").rstrip("\n") in document, f"{path.name} differs from docs/extending.md"


# ---- built in: one file and one line

VERB = """
from pumasi.cli.grammar import Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.view.output import show

VERB = Verb(name="hello", usage=("pumasi hello",), about="Greets.")


def main(arguments: Arguments) -> int:
    show(["Hello."])
    return 0
"""
FRAMEWORK = (
    "core/frameworks/paddle.py",
    "registry.py",
    '"jax": "',
    '"paddle": "pumasi.core.frameworks.paddle:PADDLE",',
)
POOL = ("pools/quiet/__init__.py", "registry.py", '"local": "', '"quiet": "pumasi.pools.quiet:POOL",')
FLOW = ("core/flows/repeat.py", "registry.py", '"together": "', '"repeat": "pumasi.core.flows.repeat:FLOW",')
GREETING = ("cli/verbs/hello.py", "cli/grammar.py", '"run": "', '"hello": "greet",')


@pytest.fixture
def sources(workplace: Workplace, tmp_path: Path) -> Path:
    """A copy of Pumasi that the command uses."""
    copy = tmp_path / "sources" / "pumasi"
    shutil.copytree(Path(pumasi.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    workplace.environ["PYTHONPATH"] = str(copy.parent)
    workplace.script(TRAIN)
    return copy


def add(sources: Path, text: str, where: tuple[str, str, str, str]) -> None:
    """One file, and one line before that which begins with `beside`."""
    file, listed, beside, line = where
    path = sources / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    before = (sources / listed).read_text(encoding="utf-8").splitlines(keepends=True)
    (number,) = [number for number, each in enumerate(before) if each.strip().startswith(beside)]
    indent = before[number][: len(before[number]) - len(before[number].lstrip())]
    (sources / listed).write_text("".join([*before[:number], f"{indent}{line}\n", *before[number:]]), encoding="utf-8")


@pytest.mark.parametrize(
    ("where", "module", "words", "said"),
    [
        (FRAMEWORK, "paddle.py", ("run", "--framework", "paddle", "--slots", "2", "train.py"), "127.0.0.1:"),
        (POOL, "quiet.py", ("run", "--on", "quiet", "--niceness", "4", "train.py"), "niceness"),
        (
            FLOW,
            "repeat.py",
            ("run", "--strategy", "repeat", "--times", "2", "train.py", "{seed}"),
            "[seed-1] loss: 0.6",
        ),
        (GREETING, "", ("hello",), "Hello."),
    ],
    ids=["framework", "pool", "flow", "verb"],
)
def test_a_built_in_one_is_one_file_and_one_line(
    workplace: Workplace,
    sources: Path,
    where: tuple[str, str, str, str],
    module: str,
    words: tuple[str, ...],
    said: str,
) -> None:
    add(sources, (MODULES / module).read_text(encoding="utf-8") if module else VERB, where)
    done = workplace.run(*words)
    assert (done.returncode, said in done.stdout) == (0, True), done.stderr
    helped = workplace.run("help", words[0])
    assert helped.returncode == 0
    for flag in (word for word in words if word.startswith("--")):
        assert flag in helped.stdout
