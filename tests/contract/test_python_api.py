"""Pumasi from Python, as a user would call it from a script or a notebook."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pumasi
from pumasi.pools.base import Request
from tests.harness import Workplace, wait_for

TRAIN = """
    import os
    for epoch in range(3):
        print(f"epoch {epoch}: loss=0.{9 - epoch}")
"""


@pytest.fixture
def place(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """The workplace's environment and folder, in this very process."""
    monkeypatch.chdir(workplace.folder)
    monkeypatch.setenv("PUMASI_HOME", str(workplace.home))
    monkeypatch.setenv("TMPDIR", str(workplace.temporary))
    monkeypatch.setenv(*workplace.mark.split("=", 1))
    return workplace


def test_a_run_is_started_and_waited_for(place: Workplace) -> None:
    place.script(TRAIN)
    run = pumasi.run("train.py", slots=2)
    assert run.wait(60) == "done"
    assert run.state == "done"
    assert [row.value for row in run.metrics("loss", rank=1)] == [0.9, 0.8, 0.7]
    assert run.logs(rank=0) == "".join(f"epoch {e}: loss=0.{9 - e}\n" for e in range(3))
    assert pumasi.Run(run.id).outcome == run.outcome
    assert run.outcome is not None
    assert run.outcome["metrics"] == {"loss": 0.7}


def test_a_running_event_loop_does_not_disturb_it(place: Workplace) -> None:
    place.script(TRAIN)

    async def notebook() -> str:
        return pumasi.run("train.py").wait(60)

    assert asyncio.run(notebook()) == "done"


def test_arguments_go_to_the_script(place: Workplace) -> None:
    place.script("import sys; print(sys.argv[1:])")
    run = pumasi.run("train.py", "--epochs", "3", name="mine")
    assert run.wait(60) == "done"
    assert run.id.startswith("mine-")
    assert run.logs() == "['--epochs', '3']\n"


def test_a_failure_is_told_and_not_raised(place: Workplace) -> None:
    place.script("raise ValueError('no')")
    run = pumasi.run("train.py")
    assert run.wait(60) == "failed"
    assert run.outcome is not None
    assert "exit code 1" in str(run.outcome["reason"])


def test_a_mistake_is_raised_at_once_and_leaves_no_run(place: Workplace) -> None:
    with pytest.raises(pumasi.PumasiError, match="whole number"):
        pumasi.run("train.py", slots="two")
    with pytest.raises(pumasi.PumasiError, match=r"There is no train\.py"):
        pumasi.run("train.py")
    assert place.runs() == []


def test_waiting_too_long_raises_and_stopping_stops(place: Workplace) -> None:
    place.script("import time; time.sleep(600)")
    run = pumasi.run("train.py")
    with pytest.raises(TimeoutError):
        run.wait(0.2)
    assert run.stop() == "stopped"


@pytest.mark.parametrize(("detach", "state"), [(False, "stopped"), (True, "running")])
def test_a_run_ends_with_the_program_that_started_it_unless_detached(
    place: Workplace, detach: bool, state: str
) -> None:
    place.script("import time; time.sleep(600)")
    program = f"""
        import pumasi, time
        run = pumasi.run("train.py", detach={detach})
        while run.state != "running":
            time.sleep(0.02)
        print(run.id, flush=True)
        time.sleep(600)
    """
    caller = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=place.folder
    )
    assert caller.stdout is not None
    run_id = caller.stdout.readline().strip()
    os.kill(caller.pid, signal.SIGKILL)
    caller.communicate()
    run = pumasi.Run(run_id)
    if detach:
        assert run.state == state
        run.stop()
    else:
        wait_for(lambda: run.state == state, "the stop")


def test_report_reaches_the_metrics_also_where_pumasi_is_not_installed(place: Workplace, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    place.script("""
        import pumasi
        pumasi.report(step=3, loss=0.123456789012345)
    """)
    run = pumasi.run("train.py", python=str(tmp_path / "bare" / "bin" / "python"))
    assert run.wait(60) == "done", run.logs()
    (row,) = run.metrics("loss")
    assert (row.step, row.value) == (3, 0.123456789012345)


def test_a_text_may_hold_the_arguments_and_a_number_is_one(place: Workplace) -> None:
    place.script("import sys; print(sys.argv[1:])")
    one, two = pumasi.run("train.py --epochs 3"), pumasi.run("train.py", "--epochs", 3)
    assert (one.wait(60), two.wait(60)) == ("done", "done")
    assert one.logs() == two.logs() == "['--epochs', '3']\n"


def test_what_the_user_should_know_is_a_warning_at_the_line_that_starts_the_run(place: Workplace) -> None:
    place.script(TRAIN)
    slots = 2 * (os.cpu_count() or 1) + 1
    with pytest.warns(UserWarning, match=f"{slots} processes share") as warned:
        assert pumasi.run("train.py", slots=slots).wait() == "done"
    assert [each.filename for each in warned if "processes share" in str(each.message)] == [__file__]


def test_files_that_stay_here_are_told_also_where_the_manager_is_in_the_cluster(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.script(TRAIN)
    (place.folder / ".env").write_text("TOKEN=abc")
    config = {"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a", "user": ""}}]}
    config |= {"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}]}
    (place.folder / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(place.folder / "kubeconfig"))
    asked: list[Request] = []

    async def detach(request: Request, *_: object) -> None:
        asked.append(request)

    monkeypatch.setattr("pumasi.pools.kubernetes.beginning.make_detached", detach)
    with pytest.warns(UserWarning, match="they look like credentials: .env") as warned:
        run = pumasi.run("train.py", on="k8s", detach=True)
    assert [request.run for request in asked] == [run.id]
    assert warned[0].filename == __file__


def test_the_public_names_are_listed() -> None:
    assert {"run", "Run", "report", "PumasiError"} <= set(dir(pumasi))
