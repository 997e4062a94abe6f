"""Several runs at once: which are meant, what is asked before, and that a question is never skipped by accident."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pumasi.errors import SystemTrouble, Unreachable
from pumasi.pools.kubernetes import runs as remote
from pumasi.pools.kubernetes.manifests import DOMAIN
from pumasi.pools.kubernetes.record import Row
from pumasi.pools.kubernetes.target import Target
from pumasi.runs import control
from pumasi.store import RunRecord, Store

SPEC: dict[str, object] = {"command": ["train.py"], "slots": 1}
DAY = 86400.0

Pumasi = Callable[..., tuple[int, str, str]]


@contextmanager
def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *typed: str) -> Iterator[None]:
    """Where these lines are typed."""
    keyboard = io.StringIO("".join(f"{line}\n" for line in typed))
    with monkeypatch.context() as patch:
        patch.setattr(keyboard, "isatty", lambda: True)
        patch.setattr(sys, "stdin", keyboard)
        patch.setattr(sys.stderr, "isatty", lambda: True)
        patch.setattr(sys.stdout, "isatty", lambda: True)
        yield


def ended(store: Store, state: str, days: float = 0.0) -> RunRecord:
    """A run that ended so many days ago, though it was begun long before."""
    record = store.create_run(state.replace(" ", "-"), SPEC, time.time() - 1000 * DAY)
    store.update_run(record.id, state=state, ended=time.time() - days * DAY, exit_code=0)
    return record


def left(store: Store) -> list[str]:
    return [record.id.rpartition("-")[0] for record in store.runs()]


# ---- delete


def test_without_a_name_and_without_a_terminal_nothing_is_deleted_and_the_command_is_told(
    store: Store, pumasi: Pumasi
) -> None:
    run = ended(store, "done", days=3).id
    for words in (("delete",), ("delete",), ("delete", "-y")):
        code, out, err = pumasi(*words)
        assert (code, out) == (2, "")
        assert err == (
            f"pumasi: 'pumasi delete' needs RUN.\n  The last run is {run} (done 3 d ago): pumasi delete {run}\n"
        )
    assert left(store) == ["done"]


@pytest.mark.parametrize(("answer", "stays"), [("", ["done"]), ("n", ["done"]), ("y", []), ("YES", [])])
def test_without_a_name_a_terminal_asks(
    store: Store, pumasi: Pumasi, monkeypatch: pytest.MonkeyPatch, answer: str, stays: list[str]
) -> None:
    run = ended(store, "done", days=3).id
    with at_a_terminal(monkeypatch, answer):
        code, _, err = pumasi("delete")
    assert code == 0
    assert err.startswith(f"pumasi: Delete {run} (done 3 d ago) with its logs and checkpoints? [y/N] ")
    assert left(store) == stays


def test_a_copy_of_somebody_elses_run_is_not_the_last_one(store: Store, pumasi: Pumasi) -> None:
    run = ended(store, "done").id
    store.import_run("theirs-aaaaa", {**SPEC, "on": "k8s"}, time.time())
    store.update_run("theirs-aaaaa", state="done", ended=time.time())
    assert f"pumasi delete {run}" in pumasi("delete")[2]
    assert pumasi("delete", "--all", "-y")[0] == 0
    assert left(store) == ["theirs"]


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        (["--all"], ["running"]),
        (["--older-than", "7d"], ["running", "lost", "failed"]),
        (["--state", "failed"], ["running", "lost", "done", "timed-out"]),
        (["--state", "failed", "--state", "timed-out"], ["running", "lost", "done"]),
        (["--state", "failed", "--older-than", "7d"], ["running", "lost", "done", "failed", "timed-out"]),
        (["--all", "--older-than", "30d"], ["running", "lost", "done", "failed", "timed-out"]),
        (["--state", "running"], ["running", "lost", "done", "failed", "timed-out"]),
    ],
)
def test_options_choose_what_is_deleted(store: Store, pumasi: Pumasi, options: list[str], stays: list[str]) -> None:
    for state, days in [("timed out", 10.0), ("failed", 1.0), ("done", 8.0), ("lost", 0.0)]:
        ended(store, state, days)
    store.update_run(store.create_run("running", SPEC, time.time()).id, state="running")
    assert pumasi("delete", *options, "-y")[0] == 0
    assert sorted(left(store)) == sorted(stays)


def test_the_question_counts_and_names_some(store: Store, pumasi: Pumasi, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [ended(store, "done").id for _ in range(7)][::-1]
    with at_a_terminal(monkeypatch, "no"):
        code, _, err = pumasi("delete", "--all")
    assert code == 0
    assert err == f"pumasi: Delete 7 runs ({', '.join(ids[:5])}, 2 more) with their logs and checkpoints? [y/N] "
    code, _, err = pumasi("delete", "--all")
    assert code == 2
    assert "add -y" in err
    assert len(store.runs()) == 7


def test_one_that_can_not_be_deleted_does_not_keep_the_others(
    store: Store, pumasi: Pumasi, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bad, _ = (ended(store, "done").id for _ in range(3))
    delete = control.delete

    def fail(store: Store, record: RunRecord, **how: Any) -> None:
        if record.id == bad:
            raise SystemTrouble("The disk is broken.")
        delete(store, record, **how)

    monkeypatch.setattr(control, "delete", fail)
    code, out, err = pumasi("delete", "--all", "-y", "--json")
    assert code == 7
    assert "The disk is broken." in err
    assert out.count('"deleted": true') == 2
    assert [record.id for record in store.runs()] == [bad]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("delete", "train", "--all"), "'train' names a run, and --all chooses several."),
        (("stop", "train", "--all"), "'train' names a run, and --all chooses several."),
        (("delete", "--older-than", "soon"), "--older-than takes a time; 'soon' is none."),
        (("delete", "--state", "finished"), "--state: 'finished' is no state of a run."),
        (("ps", "--state", "finished"), "--state: 'finished' is no state of a run."),
        (("ps", "--watch"), "--watch shows a table at a terminal."),
    ],
)
def test_what_makes_no_sense_is_told(store: Store, pumasi: Pumasi, words: tuple[str, ...], told: str) -> None:
    ended(store, "done")
    code, _, err = pumasi(*words)
    assert code == 2
    assert told in err
    assert len(store.runs()) == 1


# ---- stop


def test_all_that_go_on_and_were_started_here_are_stopped(
    store: Store, pumasi: Pumasi, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(store, "done")
    going = [store.create_run("train", SPEC, time.time()).id for _ in range(2)]
    store.import_run("theirs-aaaaa", {**SPEC, "on": "k8s"}, time.time())
    monkeypatch.setattr(control, "reconcile", lambda store: None)
    asked: list[str] = []
    stopped: list[str] = []

    def ask_to_stop(store: Store, record: RunRecord, **_: Any) -> Callable[[], RunRecord]:
        asked.append(record.id)

        def see_it_stop() -> RunRecord:
            assert sorted(asked) == sorted(going), "all are asked before one is waited for"
            stopped.append(record.id)
            return record._replace(state="stopped")

        return see_it_stop

    monkeypatch.setattr(control, "ask_to_stop", ask_to_stop)
    assert pumasi("stop", "--all")[0] == 2
    with at_a_terminal(monkeypatch, ""):
        assert pumasi("stop", "--all")[0] == 0
    assert stopped == []
    code, out, _ = pumasi("stop", "--all", "--yes", "--json")
    assert (code, sorted(stopped)) == (0, sorted(going))
    assert out.count('"state": "stopped"') == 2


def test_a_beginning_means_the_run_that_goes_on_where_the_others_have_ended(
    store: Store, pumasi: Pumasi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        store.update_run(store.create_run("train", SPEC, 1.0).id, state="done", ended=2.0)
    going = store.create_run("train", SPEC, time.time()).id
    monkeypatch.setattr(control, "ask_to_stop", lambda store, record, **_: lambda: record._replace(state="stopped"))
    assert pumasi("stop", "train") == (0, "", f"pumasi: {going} is stopped.\n")
    assert pumasi("delete", "train")[0] == 2


# ---- ps


def test_ps_lists_the_runs_in_a_state_and_ones_own(store: Store, pumasi: Pumasi) -> None:
    failed, done = ended(store, "failed").id, ended(store, "done").id
    store.import_run("theirs-aaaaa", {**SPEC, "on": "k8s"}, time.time())
    store.update_run("theirs-aaaaa", state="failed", ended=time.time())
    assert pumasi("ps", "-q", "--state", "failed")[1].split() == ["theirs-aaaaa", failed]
    assert pumasi("ps", "-q", "--state", "failed", "--mine")[1].split() == [failed]
    assert pumasi("ps", "-q", "--mine")[1].split() == [done, failed]
    assert pumasi("ps", "--state", "running")[2] == "pumasi: No run matches.\n"


def test_ps_of_a_cluster_says_who_started_what(store: Store, pumasi: Pumasi, monkeypatch: pytest.MonkeyPatch) -> None:
    store.import_run("own-aaaaa", {**SPEC, "on": "k8s"}, 1.0)
    store.update_run("own-aaaaa", started_here=True)
    rows = [
        row("theirs-bbbbb", user="lee as admin", host="desk", state="running", beat="1000"),
        row("own-aaaaa", user="kim", host="laptop", state="done", ended="990.0"),
    ]
    monkeypatch.setattr(remote, "rows", lambda target: (rows, 1010.0))
    listed = json.loads(pumasi("ps", "--on", "k8s", "--json")[1])
    assert [(each["id"], each["user"], each["host"]) for each in listed] == [
        ("theirs-bbbbb", "lee as admin", "desk"),
        ("own-aaaaa", "kim", "laptop"),
    ]
    assert "lee as admin" in pumasi("ps", "--on", "k8s")[1]
    assert pumasi("ps", "--on", "k8s", "-q", "--mine")[1] == "own-aaaaa\n"
    assert pumasi("ps", "--on", "k8s", "-q", "--state", "running")[1] == "theirs-bbbbb\n"
    assert pumasi("stop", "--all", "--on", "k8s", "-y") == (
        0,
        "",
        "pumasi: No run that was started from here is going on.\n",
    )


def row(run: str, **notes: str) -> Row:
    return Row(run, "team", {DOMAIN + name: text for name, text in {"created": "900", **notes}.items()})


def test_a_watch_shows_the_list_again_and_bears_a_cluster_that_is_away(
    store: Store, pumasi: Pumasi, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(["there", "away", "there"])

    def rows(target: Target) -> tuple[list[Row], float]:
        if next(looks, "over") == "away":
            raise Unreachable("The cluster can't be reached.")
        return [row("train-aaaaa", state="done", ended="990.0")], 1000.0

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    pauses: list[float] = []
    monkeypatch.setattr(remote, "rows", rows)
    monkeypatch.setattr("pumasi.cli.verbs.ps.time.sleep", sleep)
    with at_a_terminal(monkeypatch):
        code, out, err = pumasi("ps", "--watch", "--on", "k8s")
    assert code == 130
    assert [part.count("train-aaaaa") for part in out.split("\x1b[H\x1b[2J")] == [0, 1, 0, 1]
    assert "can't be reached" in err
