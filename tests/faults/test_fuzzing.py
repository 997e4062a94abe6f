"""Thousands of random command lines, and random pumasi.yaml files, against the real command line in this process.

Whatever is typed ends in a sentence and an exit code of the documented table: never in a traceback, never in 70. What
starts processes, listens or talks to a cluster is replaced; all that reads, checks and refuses is the real thing.
`make soak` (PUMASI_FUZZ_CASES=14000) makes it thorough; PUMASI_FUZZ_FIRST=N PUMASI_FUZZ_CASES=1 repeats the case N.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumasi.catalogue import catalogue_for
from pumasi.cli import main
from pumasi.cli.grammar import EXIT_CODES, SUMMARIES, Option, load
from pumasi.cli.verbs import nodes
from pumasi.core.events import unpack
from pumasi.core.outcome import Outcome, Verdict
from pumasi.errors import ClusterTrouble, Conflict, Forbidden, NotThere, Rejected
from pumasi.kube.api import Api
from pumasi.runs.session import Session
from pumasi.store import MetricRow, Store

FIRST = int(os.environ.get("PUMASI_FUZZ_FIRST", "0"))
CASES = int(os.environ.get("PUMASI_FUZZ_CASES", "1500"))
DOCUMENTED = frozenset(code for code, _ in EXIT_CODES) - {70}
ERRORS = (2, 6, 7)

NUMBERS = ("0", "1", "-1", "2", "3.5", "1e3", "9" * 30, "0x10", "٣", "²", "NaN", "inf", "4096", "4097", "65536", "+2")
TIMES = ("90", "15m", "2h30m", "1d", "0s", "-5m", "1y", "2026-11-15T21:40", "25:61", "12:30", "2026-13-45", "1" * 400)
PAIRS = ("A=1", "A=", "=1", "=", "A", "A=B=C", "a.b/c=d", "ключ=значение", "A=\n", "A=\udcff", " = ", "PATH=/x")
CLUSTERS = ("k8s", "k8s:", "k8s:lab", "k8s:no", "local", "kubernetes", "k8s:\udcff", "moon", "K8S")
WORDS = (
    "",
    " ",
    "-",
    "--",
    "x" * 300,
    "é",
    "한국어",
    "🙂",
    "a\nb",
    "\t",
    "\x1b[31m",
    "\udcff",
    "null",
    "~",
    "*",
    "[",
    "{",
    "%s",
)
PLACES = (
    ".",
    "..",
    "folder",
    "empty.py",
    "train.py",
    "junk.keras",
    "junk.h5",
    "junk.npz",
    "junk.pt",
    "good.npz",
    "good.csv",
)
FAR_PLACES = (
    "/dev/null",
    "/no/such/file.keras",
    "/volume/final.keras",
    "/volume",
    "no.py",
    "folder/..",
    "./",
    "loop",
    "~",
)
PATCHES = (
    "spec.dnsPolicy=None",
    "spec.containers[0].tty=true",
    "spec..a=1",
    "a[=1",
    "spec.containers[9].x=1",
    "[0]=1",
    "spec=null",
)
CLAIMS = (
    "data:/data",
    "data",
    "a:/x:ro",
    "A:/x",
    "a:x",
    "imdb:20Gi",
    "imdb:-1",
    ":",
    "a:/x:rw:ro",
    "hub/token",
    "T=hub/token",
)
SIZES = ("8Gi", "8GB", "500m", "0", "-1Gi", "1e400", "Gi", "0.5")
RUNS = ("done", "failed", "do", "", "no-such-run", "DONE", "done/../x")
VALUES = (NUMBERS, TIMES, PAIRS, CLUSTERS, WORDS, PLACES, FAR_PLACES, PATCHES, CLAIMS, SIZES, RUNS)
YAML = (
    *(
        "slots: 4",
        "slots: [",
        "slots:\n\t- 1",
        "- a\n- b",
        "&a [*a]",
        "command: train.py",
        "command: [train.py, 1, null]",
    ),
    *(
        "env: {A: 1, A: 2}",
        "env: [A=1]",
        "? [a]\n: b",
        "!!python/object:os.system {}",
        "set: x",
        "a: b: c",
        "'",
        "%YAML 9",
    ),
    *("slots: 1\n---\nslots: 2", "\x00", "\ufeffslots: 2", "{" * 2000, "on: k8s\nimage: ''", "timeout: 2026-11-15"),
)


SENSIBLE = {
    "N": ("1", "2", "3"),
    "TIME": ("90", "15m"),
    "SECONDS": ("0", "1"),
    "SIZE": ("8Gi",),
    "DIR": ("folder", "."),
    "POOL": ("k8s", "local"),
    "PATH=VALUE": PATCHES[:2],
    "CLAIM:/PATH": CLAIMS[:1],
    "NAME[:SIZE]": ("imdb:20Gi",),
    "SECRET": ("T=hub/token",),
    "IMAGE": ("img",),
    "FILE": ("train.py", "good.npz", "out", "vars.env"),
    "S": ("7",),
    "NAME=VALUE": ("A=1",),
    "KEY=VALUE": ("a=b",),
    "LIST": ("5,3,2", "a=5,b=3"),
    "N,N": ("5,1",),
    "N,N,…": ("1,2",),
    "PATH": ("python3",),
    "COMMAND": ("train.py {model}",),
    "ADDRESS": ("127.0.0.1",),
    "[KEY]": ("y",),
}
"""What each kind of value is when it is right."""


class Case:
    """One command line, with the variables and the pumasi.yaml that it finds; always the same for one number. Every
    other one is sensible in most of its parts, so that it comes further."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._dice = random.Random(f"pumasi {number}")
        self._is_mild = number % 2 == 1
        self.words = self._command_line()
        self.variables = {f"PUMASI_{self._name().upper()}": self._value() for _ in range(self._few(0.1))}
        for name in ("PUMASI_HOME", "KUBECONFIG"):
            if self._dice.random() < 0.03:
                self.variables[name] = self._dice.choice(PLACES)
        self.yaml = self._yaml() if self._dice.random() < (0.1 if self._is_mild else 0.4) else None

    def __str__(self) -> str:
        return f"case {self.number}: pumasi {self.words!r} with {self.variables!r} and pumasi.yaml {self.yaml!r}"

    def _few(self, often: float) -> int:
        return self._dice.randint(1, 3) if self._dice.random() < often else 0

    def _value(self) -> str:
        return self._dice.choice(self._dice.choice(VALUES)).replace("\0", "")

    def _name(self) -> str:
        return self._dice.choice((*sorted(catalogue_for({}).all), "gpus", "sluts", ""))

    def _command_line(self) -> list[str]:
        dice = self._dice
        name = dice.choice(("run", "run", "run", "render", "serve", *SUMMARIES, *SUMMARIES, "help", self._value()))
        verb = load(name) if name in SUMMARIES else None
        most = 3 if self._is_mild else 5
        words = [part for _ in range(dice.randint(0, most)) for part in self._option(verb.options if verb else ())]
        fewest, limit = verb.takes if verb else (0, None)
        few = max(fewest, min(1 if limit is None else limit, 1))
        rest = [self._argument(name) for _ in range(few if self._is_mild else dice.choice((0, 1, 1, 1, 2, 3)))]
        if name in ("data", "models") and self._is_mild:
            rest = [dice.choice(load(name).completes[1:]), "good.npz", "-n2" if name == "data" else "--json"]
        if name == "plan" and self._is_mild:
            words += ["--slots", "2", "--free", "2,1"]
        if dice.random() < (0 if self._is_mild else 0.2):
            rest.insert(0, "--")
        words = [*words, *rest] if verb is None or verb.passes_on or dice.random() < 0.6 else [*rest, *words]
        if name == "run" and dice.random() < 0.5:
            words.insert(0, "--dry-run")
        return [name, *words] if dice.random() < 0.99 else words

    def _argument(self, verb: str) -> str:
        dice = self._dice
        if dice.random() < (0 if self._is_mild else 0.2):
            return self._value()
        completes = load(verb).completes if verb in SUMMARIES else ()
        if completes[1:] and dice.random() < 0.5:
            return dice.choice(completes[1:])
        if completes == ("RUN",):
            return dice.choice(RUNS[:2] if self._is_mild else RUNS)
        if self._is_mild and verb in ("run", "render"):
            return dice.choice(("train.py", "train.py", "empty.py"))
        return str(dice.choice((*PLACES, *PLACES, *FAR_PLACES, *(("/",) if verb == "serve" else ()))))

    def _option(self, options: tuple[Option, ...]) -> list[str]:
        dice = self._dice
        if not options or dice.random() < (0 if self._is_mild else 0.05):
            return [
                dice.choice(("--no-such-option", "-z", "---", "-", "-nfq", "--slots", "--", "-h", "--json=1", "--é"))
            ]
        option = dice.choice(options)
        name = dice.choice(option.names)
        if not option.value or dice.random() < 0.03:
            return [name]
        value = self._suitable(option) if dice.random() < (0.95 if self._is_mild else 0.7) else self._value()
        return [f"{name}={value}"] if name.startswith("--") and dice.random() < 0.3 else [name, value]

    def _suitable(self, option: Option) -> str:
        """Something that is not refused at the first look."""
        if self._is_mild and (option.choices or option.value in SENSIBLE):
            return self._dice.choice(option.choices or SENSIBLE[option.value])
        fitting: dict[str, tuple[str, ...]] = {
            "N": ("1", "2", *NUMBERS),
            "TIME": TIMES,
            "SECONDS": NUMBERS,
            "POOL": CLUSTERS,
            "SIZE": SIZES,
            "FILE": (*PLACES, *FAR_PLACES),
            "DIR": PLACES,
            "PATH=VALUE": PATCHES,
            "CLAIM:/PATH": CLAIMS,
            "NAME[:SIZE]": CLAIMS,
            "SECRET": CLAIMS,
            "IMAGE": ("img", "ghcr.io/a/b:1", "A B", ""),
        }
        known: tuple[str, ...] = option.choices or fitting.get(option.value) or (PAIRS if "=" in option.value else ())
        return self._dice.choice(known or ("train", "a", "team-a", "1,2", "a=5,b=3"))

    def _yaml(self) -> str:
        lines = [self._dice.choice(YAML) for _ in range(self._few(0.3))]
        lines += [f"{self._name()}: {self._yaml_value()}" for _ in range(self._dice.randint(0, 4))]
        self._dice.shuffle(lines)
        return "\n".join(lines)

    def _yaml_value(self) -> str:
        value = self._value()
        forms = (value, json.dumps(value), f"[{value}]", json.dumps({"a": value}), json.dumps([value, [value]]), "")
        return self._dice.choice(forms)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of all kinds, a home with two runs that have ended, a kubeconfig, and nothing behind them."""
    for name in [name for name in os.environ if name.startswith("PUMASI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PUMASI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(sys, "argv", ["pumasi"])
    context = {"name": "lab", "context": {"cluster": "c", "user": "u"}}
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    (tmp_path / "kubeconfig").write_text(
        json.dumps({"current-context": "lab", "contexts": [context], "clusters": [cluster], "users": []})
    )
    _replace_the_edges(monkeypatch)
    return tmp_path


def _keep_runs(home: Path) -> None:
    """A run that is done and one that failed, whatever the case before has done to them."""
    store = Store.open(home)
    known = [record.id.partition("-")[0] for record in store.runs(None)]
    for state in {"done", "failed"}.difference(known):
        spec: dict[str, object] = {"command": ["train.py"], "slots": 1}
        record = store.create_run(state, spec, time.time(), framework="none", detached=False)
        store.append_log(record.id, 0, b"0.1 1763240000000|loss: 0.5\n0.2 1763240000001~50%\n")
        store.add_metrics(record.id, [MetricRow(time.time(), 0, 0, 1, None, "loss", 0.5)])
        outcome: dict[str, object] = {"verdict": state, "reason": "It ended."}
        store.add_event(record.id, time.time(), unpack("finished", {"run": record.id, **outcome}))
        store.update_run(record.id, state=state, ended=time.time(), exit_code=0, ranks=1, outcome=outcome)


def _replace_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(session: Session, *_: object) -> Outcome:
        _end(session._store, session._record.id)
        return Outcome(Verdict.DONE)

    def started(store: Store, record: Any, mode: str) -> None:
        _end(store, record.id)

    async def answered(api: Api, method: str, target: str, *_: object, **__: object) -> Mapping[str, Any]:
        number = sum(target.encode(errors="replace")) + len(method)
        if method == "GET" and number % 3 == 0:
            return {"items": [], "metadata": {"resourceVersion": "1", "uid": "1", "name": "thing"}}
        raise (Forbidden, NotThere, Rejected, Conflict, ClusterTrouble)[number % 5](f"The cluster refuses {target}.")

    looked_up = socket.getaddrinfo

    def without_names(host: str, *given: Any, **options: Any) -> Any:
        return looked_up(host, *given, **{**options, "flags": socket.AI_NUMERICHOST})

    monkeypatch.setattr(Session, "run", ran)
    monkeypatch.setattr("pumasi.runs.session.start_background", started)
    monkeypatch.setattr(Api, "_try", answered)
    monkeypatch.setattr(nodes, "_watch", lambda pool, resource, watcher: nodes._look_once(pool, resource))
    monkeypatch.setattr("pumasi.doctor.examine", lambda place: [])
    monkeypatch.setattr(socket, "getaddrinfo", without_names)


def _end(store: Store, run: str) -> None:
    store.update_run(run, state="done", ended=time.time(), exit_code=0, outcome={"verdict": "done", "reason": ""})


def _furnish(folder: Path, case: Case) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "folder").mkdir(parents=True)
    for name in ("empty.py", "folder/a.keras"):
        (folder / name).touch()
    (folder / "train.py").write_text("import torch\nprint('loss: 0.5')\n")
    for name in ("junk.keras", "junk.h5", "junk.npz", "junk.pt"):
        (folder / name).write_bytes(random.Random(name).randbytes(300))
    (folder / "good.csv").write_text("x,y\n1,a\n2,b\n")
    np.savez(folder / "good.npz", x=np.arange(6), y=np.arange(6) % 2)
    (folder / "vars.env").write_text("A=1\n")
    (folder / "loop").symlink_to("loop")
    if case.yaml is not None:
        (folder / "pumasi.yaml").write_bytes(case.yaml.encode(errors="surrogateescape"))


def test_no_command_line_and_no_settings_end_in_a_traceback(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    mistakes: dict[str, str] = {}
    for case in map(Case, range(FIRST, FIRST + CASES)):
        _furnish(place / "work", case)
        _keep_runs(place / "home")
        monkeypatch.chdir(place / "work")
        with monkeypatch.context() as patched:
            for name, value in case.variables.items():
                patched.setenv(name, value)
            codes.append(main.main(case.words))
        if wrong := _wrong(codes[-1], capfd.readouterr().err):
            mistakes.setdefault(wrong[-200:], f"{case}\n{wrong}")
    assert not mistakes, "\n\n".join([*mistakes.values()][:20])
    assert {0, 2} < set(codes)


def _wrong(code: int, said: str) -> str:
    if code not in DOCUMENTED:
        named = re.search(r"details are in (\S+);", said)
        return f"exit code {code}: {said}" + (Path(named[1]).read_text() if named else "")
    if "Traceback" in said or (code in ERRORS and not re.match(r"pumasi: \S+\s+\S+", said)):
        return f"exit code {code}, and no sentence: {said!r}"
    return ""
