"""What a user types, and what comes back, over whole runs."""

from __future__ import annotations

import json

from tests.harness import Workplace


def test_every_verb_that_tells_something_tells_it_in_json_too(workplace: Workplace) -> None:
    workplace.script("print('loss: 0.5'); import sys; print('oh', file=sys.stderr)")
    lines = [json.loads(line) for line in workplace.run("run", "--json", "train.py").stdout.splitlines()]
    assert lines[-1]["event"] == "finished"
    run = workplace.last()["id"]
    waited = json.loads(workplace.run("wait", "--json").stdout)
    assert (waited["run"], waited["exit_code"], waited["verdict"]) == (run, 0, "done")
    logged = [json.loads(line) for line in workplace.run("logs", "--json").stdout.splitlines()]
    assert sorted((line["stream"], line["text"]) for line in logged) == [("stderr", "oh"), ("stdout", "loss: 0.5")]
    assert json.loads(workplace.run("stop", "--json").stdout) == {"run": run, "state": "done"}
    assert json.loads(workplace.run("delete", run, "--json").stdout) == {"run": run, "deleted": True}
    assert workplace.runs() == []


def test_attach_shows_the_end_of_a_long_log(workplace: Workplace) -> None:
    workplace.script("for i in range(5000): print(i)")
    assert workplace.run("run", "train.py").returncode == 0
    shown = workplace.run("attach").stdout.splitlines()
    assert shown == [str(i) for i in range(4000, 5000)]


def test_a_launcher_is_taken_from_the_environment_of_the_python_that_was_named(workplace: Workplace) -> None:
    folder = workplace.folder / "env" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "torchrun"):
        (folder / name).write_text('#!/bin/sh\necho "$0 $@"\n')
        (folder / name).chmod(0o755)
    workplace.script("import torch")
    done = workplace.run("run", "--python", "env/bin/python", "--per-node", "--", "torchrun", "train.py")
    assert done.stdout == f"{folder}/torchrun train.py\n"
    missing = workplace.run("run", "--per-node", "--", "torchrun", "train.py", env={"PATH": "/usr/bin:/bin"})
    assert missing.returncode == 2
    assert "It comes with torch" in missing.stderr


def test_more_processes_than_the_machine_has_cores_for_is_told(workplace: Workplace) -> None:
    workplace.script("print(1)")
    done = workplace.run("run", "--slots", "64", "train.py")
    assert "64 processes share the" in done.stderr


def test_a_script_that_waits_for_input_is_told_that_there_is_none(workplace: Workplace) -> None:
    workplace.script("input('name? ')")
    done = workplace.run("run", "train.py")
    assert done.returncode == 1
    assert "no standard input" in done.stderr
