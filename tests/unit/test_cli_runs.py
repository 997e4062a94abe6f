"""The verbs that look at runs, on a store that a manager has left behind."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime

import pytest

from pumasi.cli.verbs import attach, logs
from pumasi.core.events import unpack
from pumasi.core.frames import Frame
from pumasi.errors import UsageError
from pumasi.runs import control
from pumasi.runs.recorder import Unwatched
from pumasi.store import MetricRow, RunRecord, Store

MS = 1763240000000
SPEC: dict[str, object] = {"command": ["train.py", "--lr", "0.1 x"], "workdir": "/work dir", "slots": 2, "restarts": 3}
OUTCOME = {
    "verdict": "failed",
    "reason": "Rank 1 failed first, with exit code 1.",
    "hint": "Fix it.",
    "rank": 1,
    "tail": ["ValueError: bad"],
}
RANKS = [{"rank": rank, "node": "here", "role": "worker", "pid": 9} for rank in (0, 1)]

Pumasi = Callable[..., tuple[int, str, str]]


@pytest.fixture
def failed(store: Store) -> RunRecord:
    """A run of two ranks that has failed."""
    now = time.time()
    record = store.create_run("train", SPEC, now - 100)
    store.update_run(
        record.id,
        state="failed",
        started=now - 99,
        ended=now - 87,
        exit_code=1,
        outcome=OUTCOME,
        framework="torch",
        ranks=2,
        placement={"here": 2},
    )
    store.add_event(
        record.id, now - 99, unpack("planned", {"placement": {"here": 2}, "framework": "torch", "because": "told"})
    )
    store.add_event(record.id, now - 99, unpack("running", {"attempt": 0, "ranks": RANKS}))
    store.add_event(record.id, now - 88, unpack("rank ended", {"attempt": 0, "rank": 1, "code": 1, "signal": None}))
    store.add_event(record.id, now - 87, unpack("finished", dict(OUTCOME)))
    lines = [(0, "|", "hello"), (1, "|", "hi"), (0, ":", "oh"), (1, "~", "10%"), (1, "|", "100%"), (0, "|", "bye")]
    frames = [f"{rank}.{seq} {MS + seq * 1000}{kind}{text}\n" for seq, (rank, kind, text) in enumerate(lines)]
    store.append_log(record.id, 0, "".join(frames).encode())
    rows = [
        MetricRow(now - 90 + step, 0, rank, step, None, name, value / (step + 1))
        for step in range(4)
        for rank in (0, 1)
        for name, value in (("loss", 1.0), ("accuracy", 0.5))
    ]
    store.add_metrics(record.id, rows)
    return store.run(record.id)


def test_ps_says_what_to_do_where_there_are_no_runs(pumasi: Pumasi) -> None:
    assert pumasi("ps") == (0, "", "pumasi: There are no runs yet.\n  Start one: pumasi run train.py\n")


def test_ps_says_that_there_are_more_only_where_there_are(pumasi: Pumasi, store: Store) -> None:
    for number in range(20):
        store.create_run("train", SPEC, float(number))
    assert "Only the last 20" not in pumasi("ps")[2]
    store.create_run("train", SPEC, 20.0)
    assert len(pumasi("ps", "-q")[1].split()) == 20
    assert "Only the last 20 are shown; --all shows the others too." in pumasi("ps")[2]
    assert "Only the last 20" not in pumasi("ps", "--all")[2]


def test_ps_lists_a_run_with_its_state_last_metric_and_command(pumasi: Pumasi, failed: RunRecord) -> None:
    code, out, _ = pumasi("ps")
    head, row = out.splitlines()
    assert code == 0
    assert head.split() == ["id", "state", "age", "slots", "framework", "last", "command"]
    assert row.split("  ")[0] == failed.id
    assert "failed  1 min      2  torch      loss 0.25  train.py --lr '0.1 x'" in row


def test_ps_lists_the_last_twenty_unless_told_otherwise(pumasi: Pumasi, store: Store) -> None:
    ids = [store.create_run("train", SPEC, time.time()).id for _ in range(25)]
    assert pumasi("ps", "--quiet")[1].split() == ids[:4:-1]
    assert pumasi("ps", "-aq")[1].split() == ids[::-1]


def test_show_and_wait_tell_how_long_a_run_waited(pumasi: Pumasi, failed: RunRecord, store: Store) -> None:
    first = store.events(failed.id)[0]
    store.delete_run(failed.id)
    again = store.create_run("train", SPEC, first.at - 41)
    store.update_run(again.id, state="failed", started=first.at, ended=first.at + 12, exit_code=1, outcome=OUTCOME)
    store.add_event(again.id, first.at - 40, unpack("waiting", {"reason": "4 GPUs are busy."}))
    store.add_event(again.id, first.at, unpack("running", {"attempt": 0, "ranks": RANKS}))
    failed = store.run(again.id)
    assert pumasi("show")[1].startswith(f"{failed.id}  failed, 12 s (waited 40 s)\n")
    assert f"{failed.id} failed after 12 s (waited 40 s): Rank 1" in pumasi("show")[1]
    assert f"{failed.id} failed after 12 s (waited 40 s): Rank 1" in pumasi("wait")[2]


def test_ps_and_show_speak_json_to_programs(pumasi: Pumasi, failed: RunRecord) -> None:
    (listed,) = json.loads(pumasi("ps", "--json")[1])
    assert (listed["id"], listed["exit_code"], listed["metrics"]["loss"]) == (failed.id, 1, 0.25)
    shown = json.loads(pumasi("show", failed.id, "--json")[1])
    assert shown["outcome"] == OUTCOME
    assert [event["event"] for event in shown["events"]] == ["planned", "running", "rank ended", "finished"]
    assert shown["metrics"]["1"] == {"loss": 0.25, "accuracy": 0.125}


def test_show_tells_what_was_asked_what_happened_and_how_it_ended(pumasi: Pumasi, failed: RunRecord) -> None:
    code, out, err = pumasi("show", failed.id[:8])
    assert (code, err) == (0, "")
    assert out.startswith(f"{failed.id}  failed, 12 s\n")
    for part in (
        "  command    train.py --lr '0.1 x'\n",
        "  in         /work dir\n",
        "  framework  torch\n",
        "  options    restarts 3\n",
        "  exit code  1\n",
        f"{failed.id} failed after 12 s: Rank 1 failed first, with exit code 1.\n",
        "  | ValueError: bad\n",
        "   1  here  worker  exit 1  loss 0.25 · accuracy 0.125\n",
        "  rank 1 ended: exit code 1\n",
    ):
        assert part in out


def test_a_run_that_has_not_started_yet_can_be_shown_too(pumasi: Pumasi, store: Store) -> None:
    record = store.create_run("train", SPEC, time.time())
    assert pumasi("show")[1].startswith(f"{record.id}  queued\n")
    assert pumasi("logs") == (0, "", "")


def test_the_last_run_is_meant_where_none_is_named(pumasi: Pumasi, failed: RunRecord, store: Store) -> None:
    newer = store.create_run("eval", SPEC, time.time())
    assert newer.id in pumasi("show")[1]


def test_a_run_that_is_not_there_is_exit_code_6(pumasi: Pumasi, failed: RunRecord) -> None:
    for verb in ("show", "logs", "metrics", "wait", "stop", "delete", "attach"):
        code, out, err = pumasi(verb, "nosuch")
        assert (code, out) == (6, ""), verb
        assert "nosuch" in err


def test_logs_print_each_stream_where_it_was_written(pumasi: Pumasi, failed: RunRecord) -> None:
    assert pumasi("logs") == (0, "[0] hello\n[1] hi\n[1] 100%\n[0] bye\n", "[0] oh\n")


def test_logs_of_one_rank_are_its_own_bytes(pumasi: Pumasi, failed: RunRecord) -> None:
    assert pumasi("logs", failed.id, "--rank", "1") == (0, "hi\n10%\r100%\n", "")
    assert pumasi("logs", "-r0", "-r", "1")[1] == "[0] hello\n[1] hi\n[1] 100%\n[0] bye\n"


def test_logs_can_be_cut_at_the_end_or_at_a_time(pumasi: Pumasi, failed: RunRecord) -> None:
    assert pumasi("logs", "--tail", "1")[1] == "[0] bye\n"
    assert pumasi("logs", "--tail=2", "-r0", "-r1")[1] == "[1] 100%\n[0] bye\n"
    assert (
        pumasi("logs", "--tail=3", "-r0", "-r1")
        == pumasi("logs", "-f", "--tail=3", "-r0", "-r1")
        == pumasi("logs", "--tail=3")
    )
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(MS / 1000 + 4))
    assert pumasi("logs", "--since", stamp)[1] == "[1] 100%\n[0] bye\n"


def test_logs_have_the_time_and_its_zone_in_front_when_asked(
    pumasi: Pumasi, failed: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Seoul")
    time.tzset()
    try:
        first, *_ = pumasi("logs", "-t", "--tail", "99")[1].splitlines()
    finally:
        monkeypatch.undo()
        time.tzset()
    stamp = re.fullmatch(r"\[0\] (\S{23}\+09:00) hello", first)
    assert stamp, first
    assert datetime.fromisoformat(stamp[1]).timestamp() == MS / 1000


def test_times_do_not_stand_inside_progress_bars_and_long_lines(pumasi: Pumasi, store: Store) -> None:
    record = store.create_run("train", {**SPEC, "slots": 1}, time.time())
    texts = ("~10%", "~100%", "|", ">a long ", ">long ", "|line", "~50%")
    store.append_log(record.id, 0, "".join(f"0.{n + 1} {MS + n}{text}\n" for n, text in enumerate(texts)).encode())
    times = [line.partition(" ") for line in pumasi("logs", "-t")[1].splitlines()]
    assert [text for _, _, text in times] == ["100%", "a long long line", "50%"]
    assert all(datetime.fromisoformat(stamp) for stamp, _, _ in times)


@pytest.mark.parametrize("verb", ["logs", "show", "metrics", "wait", "stop", "delete", "attach", "ps"])
def test_n_is_a_namespace_for_every_verb_about_runs(verb: str, pumasi: Pumasi, failed: RunRecord) -> None:
    code, _, err = pumasi(verb, "-n", "team")
    assert (code, err) == (2, "pumasi: --namespace is for clusters.\n  Add --on k8s.\n")
    code, _, err = pumasi(verb, "--on", "k8s", "-n", "Team/A")
    assert code == 2
    assert '"Team/A" can\'t name a namespace' in err


def test_a_number_after_n_is_told_to_be_for_tail(pumasi: Pumasi, failed: RunRecord) -> None:
    code, _, err = pumasi("logs", "-n", "20")
    assert (code, err.splitlines()[1]) == (2, "  For lines: --tail 20")


def test_following_the_logs_of_a_run_that_waits_says_so_and_why(
    pumasi: Pumasi, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = store.create_run("train", SPEC, time.time())
    happens = [
        lambda: store.add_event(record.id, time.time(), unpack("waiting", {"reason": "4 GPUs are busy."})),
        lambda: store.add_event(record.id, time.time(), unpack("waiting", {"reason": "2 GPUs are busy."})),
        lambda: store.append_log(record.id, 0, b"0.1 1763240000000|hello\n"),
        lambda: store.update_run(record.id, state="done", ended=time.time()),
    ]
    monkeypatch.setattr(time, "sleep", lambda _: happens.pop(0)())
    code, out, err = pumasi("logs", "-f")
    assert (code, out) == (0, "[0] hello\n")
    assert [line for line in err.splitlines() if "waiting" in line] == [
        f"pumasi: {record.id} is waiting: it has not started yet.",
        f"pumasi: {record.id} is waiting: 4 GPUs are busy.",
        f"pumasi: {record.id} is waiting: 2 GPUs are busy.",
    ]


def test_following_the_logs_of_a_run_that_has_ended_ends(pumasi: Pumasi, failed: RunRecord) -> None:
    assert pumasi("logs", "-f", "--rank", "0") == (0, "hello\nbye\n", "oh\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rank", "two"], "--rank takes a whole number; 'two' is none."),
        (["--rank", "-1"], "--rank takes a whole number; '-1' is none."),
        (["--rank", "2"], "has no rank 2."),
        (["--tail", "1e3"], "--tail takes a whole number"),
        (["--since", "yesterday"], "--since takes a time; 'yesterday' is none."),
    ],
)
def test_what_logs_can_not_understand_is_named(
    pumasi: Pumasi, failed: RunRecord, words: list[str], message: str
) -> None:
    code, out, err = pumasi("logs", *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10m", 999_400.0),
        ("90", 999_910.0),
        ("1970-01-12T13:46:40Z", 1_000_000.0),
        ("1970-01-12T13:46:40+00:00", 1_000_000.0),
    ],
)
def test_a_time_is_written_as_an_age_or_as_a_date(text: str, at: float) -> None:
    assert logs.parse_since(text, 1_000_000.0) == at


def test_a_time_longer_than_all_time_is_since_ever(pumasi: Pumasi, failed: RunRecord) -> None:
    assert pumasi("logs", "--since", "9" * 400) == pumasi("logs")


def test_a_time_of_day_is_one_of_today() -> None:
    now = time.mktime((2026, 11, 15, 21, 40, 0, 0, 0, -1))
    assert logs.parse_since("21:30", now) == now - 600
    with pytest.raises(UsageError):
        logs.parse_since("", now)


def test_metrics_are_a_table_of_last_values_by_rank(pumasi: Pumasi, failed: RunRecord) -> None:
    assert pumasi("metrics")[1].splitlines() == ["rank  loss  accuracy", "   0  0.25     0.125", "   1  0.25     0.125"]
    assert json.loads(pumasi("metrics", "--json")[1])["0"] == {"loss": 0.25, "accuracy": 0.125}


def test_one_metric_is_shown_as_a_curve(pumasi: Pumasi, failed: RunRecord) -> None:
    _, row, _ = pumasi("metrics", "--name", "loss")[1].splitlines()
    assert row.split() == ["0", "█▃▂▁", "1", "0.25", "0.25", "1", "4"]
    rows = json.loads(pumasi("metrics", "--name", "loss", "--json")[1])
    assert [(row["rank"], row["step"], row["value"]) for row in rows][:3] == [(0, 0, 1.0), (1, 0, 1.0), (0, 1, 0.5)]


def test_every_value_is_to_be_had_as_csv(pumasi: Pumasi, failed: RunRecord) -> None:
    head, first, *_ = rows = pumasi("metrics", "--csv")[1].splitlines()
    assert head == "at,attempt,rank,step,epoch,name,value"
    assert first.endswith(",0,0,0,,loss,1.0")
    assert len(rows) == 17
    assert len(pumasi("metrics", "--csv", "--name", "loss")[1].splitlines()) == 9


def test_a_metric_that_was_not_measured_is_not_found(pumasi: Pumasi, failed: RunRecord) -> None:
    code, _, err = pumasi("metrics", "--name", "los")
    assert code == 6
    assert "Did you mean loss?" in err
    assert "It measured accuracy, loss." in pumasi("metrics", "--name", "bleu")[2]


def test_a_loss_that_is_not_a_number_is_still_json(pumasi: Pumasi, store: Store, failed: RunRecord) -> None:
    store.add_metrics(failed.id, [MetricRow(1.0, 0, 0, 9, None, "loss", float("nan"))])
    assert json.loads(pumasi("metrics", "--json")[1], parse_constant=pytest.fail)["0"]["loss"] is None
    assert "nan" in pumasi("metrics", "--name", "loss")[1]


def test_metrics_too_many_for_the_terminal_become_a_list(
    pumasi: Pumasi, store: Store, failed: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"layer_{index}_norm" for index in range(20)]
    store.add_metrics(failed.id, [MetricRow(1.0, 0, 0, 9, None, name, 1.5) for name in names])
    monkeypatch.setattr("pumasi.cli.verbs.metrics.columns", lambda: 60)
    lines = pumasi("metrics")[1].splitlines()
    assert lines[0].split() == ["rank", "metric", "value"]
    assert lines[1].split() == ["0", "loss", "0.25"]
    assert len(lines) == 1 + 22 + 2


def test_a_run_without_metrics_says_how_to_have_some(pumasi: Pumasi, store: Store) -> None:
    store.create_run("train", SPEC, time.time())
    code, out, err = pumasi("metrics")
    assert (code, out) == (0, "")
    assert "has measured nothing" in err
    assert "pumasi.report" in err


def test_wait_ends_with_the_exit_code_of_the_run(pumasi: Pumasi, failed: RunRecord) -> None:
    code, out, err = pumasi("wait", failed.id)
    assert (code, out) == (1, "")
    assert "failed after" in err


def test_wait_gives_up_in_time(pumasi: Pumasi, store: Store) -> None:
    record = store.create_run("train", SPEC, time.time())
    code, _, err = pumasi("wait", "--timeout", "0.1")
    assert code == 4
    assert f"{record.id} is still queued" in err
    assert pumasi("wait", "--timeout", "soon")[0] == 2


def test_stopping_a_run_that_has_ended_is_no_mistake(pumasi: Pumasi, failed: RunRecord) -> None:
    assert pumasi("stop") == (0, "", f"pumasi: {failed.id} has ended already: failed.\n")


def test_deleted_runs_are_gone(pumasi: Pumasi, failed: RunRecord, store: Store) -> None:
    other = store.create_run("eval", SPEC, time.time() - 1000)
    store.update_run(other.id, state="done", ended=1.0, exit_code=0)
    code, _, err = pumasi("delete", failed.id, other.id, failed.id)
    assert code == 0
    assert err == "".join(
        f"pumasi: {run} is deleted, with its logs and checkpoints.\n" for run in (failed.id, other.id)
    )
    assert store.runs() == []
    assert not store.folder(failed.id).exists()


def test_nothing_is_deleted_where_one_of_the_names_is_wrong(pumasi: Pumasi, failed: RunRecord, store: Store) -> None:
    assert pumasi("delete", failed.id, "nosuch")[0] == 6
    assert [record.id for record in store.runs()] == [failed.id]


def test_a_run_that_goes_on_is_not_deleted(pumasi: Pumasi, store: Store) -> None:
    record = store.create_run("train", SPEC, time.time())
    code, _, err = pumasi("delete", record.id)
    assert code == 2
    assert "pumasi stop" in err


def test_attaching_to_a_run_that_has_ended_shows_it_from_its_beginning(pumasi: Pumasi, failed: RunRecord) -> None:
    code, out, err = pumasi("attach", failed.id)
    assert code == 1
    assert out == "[0] hello\n[1] hi\n[1] 100%\n[0] bye\n"
    assert "2 slots on this machine · torch (told)" in err
    assert "Rank 1 failed first" in err


class Interrupted(Unwatched):
    """Ctrl-C comes while the first lines are being shown, `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.done: list[str] = []

    def output(self, frames: Sequence[Frame]) -> None:
        self.done.append("shows")
        while self.times:
            self.times -= 1
            signal.raise_signal(signal.SIGINT)
        self.done.append("has shown")

    def ask(self, question: str) -> None:
        self.done.append("asks" if question else "goes on")


@pytest.fixture
def at_desk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Somebody at a terminal, who will answer this."""

    def sits(answer: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    return sits


def test_ctrl_c_in_the_middle_of_a_line_asks_after_it(
    store: Store, failed: RunRecord, at_desk: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    view = Interrupted(1)
    at_desk("l\n")
    assert attach._watch(store, failed, view, None) == 0
    assert view.done == ["shows", "has shown", "asks"]
    assert "goes on in the background" in capfd.readouterr().err


def test_ctrl_c_and_then_nothing_goes_on(store: Store, failed: RunRecord, at_desk: Callable[[str], None]) -> None:
    view = Interrupted(1)
    at_desk("what?\n\n")
    assert attach._watch(store, failed, view, None) == failed.exit_code
    assert view.done[:5] == ["shows", "has shown", "asks", "asks", "goes on"]


def test_ctrl_c_twice_leaves_at_once_whatever_is_being_shown(
    store: Store, failed: RunRecord, at_desk: Callable[[str], None]
) -> None:
    view = Interrupted(2)
    at_desk("")
    assert attach._watch(store, failed, view, None) == 0
    assert view.done == ["shows"]


def test_ctrl_c_while_the_run_is_being_stopped_is_an_ordinary_one(
    store: Store, failed: RunRecord, at_desk: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "stop", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    at_desk("s\n")
    with pytest.raises(KeyboardInterrupt):
        attach._watch(store, failed, Interrupted(1), None)


def test_attach_speaks_json_too(pumasi: Pumasi, failed: RunRecord) -> None:
    code, out, _ = pumasi("attach", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert {one["event"] for one in told} == {"planned", "running", "rank ended", "output", "finished"}
