"""Copies that train apart and are averaged, over whole runs on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.harness import Workplace, wait_for

TRAIN = """
    import argparse, os, sys, time
    import numpy as np
    parser = argparse.ArgumentParser()
    for name in ("data", "savemodel", "init", "round", "index", "fail"):
        parser.add_argument("--" + name, default="")
    given = parser.parse_args()
    if given.fail == f"{given.round}-{given.index}":
        sys.exit(f"trainer {given.index} has had enough")
    if os.environ.get("SLOW") == given.round:
        time.sleep(60)
    x = np.load(given.data)["x"] if given.data else np.zeros(1)
    w = np.load(given.init)["w"] if given.init else np.zeros(2)
    w = w + [x.sum(), len(x)]
    np.savez(given.savemodel, w=w)
    print("trained on", len(x))
"""
EVALUATE = """
    import argparse, glob, os
    import numpy as np
    parser = argparse.ArgumentParser()
    parser.add_argument("--modelpath")
    path = parser.parse_args().modelpath
    paths = sorted(glob.glob(path + "/*.npz")) if os.path.isdir(path) else [path]
    print(f"accuracy: {np.mean([np.load(each)['w'][0] for each in paths]) / 1000:.4f}")
"""
RUN = ("run", "--strategy", "average")
COMMAND = ("train.py", "--savemodel", "{model}.npz", "--init", "{init}", "--round", "{round}", "--index", "{index}")
JUDGE = ("--evaluate", "evaluate.py --modelpath {model}")
DATA = ("--data", "{shard}")


@pytest.fixture
def place(workplace: Workplace) -> Workplace:
    workplace.script(TRAIN)
    workplace.script(EVALUATE, "evaluate.py")
    np.savez(workplace.folder / "reviews.npz", x=np.arange(10.0), y=np.arange(10) % 2)
    return workplace


def weights(path: Path) -> list[float]:
    return [float(each) for each in np.load(path)["w"]]


def test_data_is_split_and_models_count_by_their_samples(place: Workplace) -> None:
    """Parts of 4, 3 and 3: 0+1+2+3, 4+5+6, 7+8+9."""
    done = place.run(*RUN, "--slots", "3", "--split", "reviews.npz", "--save", "final.npz", *COMMAND, *DATA)
    assert done.returncode == 0, done.stderr
    assert weights(place.folder / "final.npz") == [(4 * 6 + 3 * 15 + 3 * 24) / 10, (4 * 4 + 3 * 3 + 3 * 3) / 10]
    assert "[train-1-0] trained on 4" in done.stdout


def test_data_is_copied_and_a_second_round_starts_from_the_first_average(place: Workplace) -> None:
    options = ("--slots", "2", "--copy", "reviews.npz", "--rounds", "2", "--save", "final.npz")
    done = place.run(*RUN, *options, *JUDGE, *COMMAND, *DATA)
    assert done.returncode == 0, done.stderr
    assert weights(place.folder / "final.npz") == [90, 20]
    table = done.stderr.partition("The final model: final.npz")[2]
    assert [line.split()[:4] for line in table.splitlines()[2:6]] == [
        ["1", "model", "0", "0.045"],
        ["1", "model", "1", "0.045"],
        ["1", "the", "average", "0.045"],
        ["1", "the", "ensemble", "0.045"],
    ]
    assert table.count("best") == 1
    assert "0.09" in table.partition("best")[0].splitlines()[-1]


DESCRIBED = """
    with open(given.savemodel + ".preprocessing.json", "w") as file:
        file.write("words of " + (given.index if os.environ.get("OWN") else "all"))
"""


@pytest.mark.parametrize("best", [(), ("--best",)])
def test_what_lies_beside_the_models_comes_to_lie_beside_the_final_one(place: Workplace, best: tuple[str, ...]) -> None:
    place.script(TRAIN + DESCRIBED)
    (place.folder / "final.npz.preprocessing.json").write_text("words of an earlier model")
    options = ("--slots", "2", "--rounds", "2", "--save", "final.npz", *best, *JUDGE)
    done = place.run(*RUN, *options, *COMMAND)
    assert done.returncode == 0, done.stderr
    assert (place.folder / "final.npz.preprocessing.json").read_text() == "words of all"


def test_models_with_other_words_end_the_run(place: Workplace) -> None:
    place.script(TRAIN + DESCRIBED)
    done = place.run(*RUN, "--slots", "2", "--rounds", "2", "--save", "final.npz", *COMMAND, env={"OWN": "yes"})
    assert done.returncode == 1
    assert "0-model.npz.preprocessing.json and " in done.stderr
    assert "were trained with different preprocessing" in done.stderr
    assert not (place.folder / "final.npz").exists()


def test_a_trainer_that_fails_is_tried_again_and_then_left_out(place: Workplace) -> None:
    done = place.run(*RUN, "--slots", "3", "--copy", "reviews.npz", *COMMAND, *DATA, "--fail", "1-1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("train-1-1: starting again (attempt 1)") == 1
    assert "train-1-1 failed: The program" in done.stderr
    assert "Left out: trainer 1." in json.dumps(place.last())


def test_only_models_of_attempts_that_came_to_their_end_are_read(place: Workplace) -> None:
    """Trainer 0 saves and fails, and then saves nothing; trainer 1 saves, fails, and saves another; 2 goes well."""
    place.script(
        """
        import os, sys
        import numpy as np
        index, again = int(sys.argv[2]), os.environ["PUMASI_ATTEMPT"] == "1"
        if not (index == 0 and again):
            np.savez(sys.argv[1], w=[float(again), 1.0])
        sys.exit(index < 2 and not again and "no more")
        """
    )
    done = place.run(*RUN, *JUDGE, "--slots", "3", "--save", "final.npz", "train.py", "{model}.npz", "{index}")
    assert done.returncode == 0, done.stderr
    assert "train-1-0 failed: The program" in done.stderr
    assert "ended well, but there is no model" in done.stderr
    assert weights(place.folder / "final.npz") == [0.5, 1]
    assert "ensemble" in done.stderr
    assert place.last()["outcome"]["reason"] == "Left out: trainer 0."


def test_a_model_that_has_diverged_is_left_out_of_the_average(place: Workplace) -> None:
    """It is one of the second round; its part has 3 of the 10 rows."""
    place.script(TRAIN.replace("np.savez", "w = w * np.nan if given.index + given.round == '12' else w\n    np.savez"))
    words = ("--slots", "3", "--split", "reviews.npz", "--rounds", "2", "--save", "final.npz", *COMMAND, *DATA)
    done = place.run(*RUN, *words)
    assert done.returncode == 0, done.stderr
    first = [(4 * 6 + 3 * 15 + 3 * 24) / 10, (4 * 4 + 3 * 3 + 3 * 3) / 10]
    second = [first[0] + (4 * 6 + 3 * 24) / 7, first[1] + (4 * 4 + 3 * 3) / 7]
    assert weights(place.folder / "final.npz") == pytest.approx(second)
    assert "1-model.npz has values that are not finite: NaN or infinity. It is left out." in done.stdout
    assert place.last()["outcome"]["reason"] == "Left out: trainer 1 of round 2."


def test_models_that_have_diverged_end_the_run_where_too_few_are_left(place: Workplace) -> None:
    place.script(TRAIN.replace("np.savez", "w = w * np.nan if given.index == '1' else w\n    np.savez"))
    done = place.run(*RUN, "--slots", "3", "--min-models", "3", *COMMAND)
    assert done.returncode == 1
    assert "The models could not be averaged." in done.stderr
    assert "1-model.npz has values that are not finite" in done.stderr


def test_a_run_that_left_somebody_out_tells_it_everywhere(place: Workplace) -> None:
    words = ("--slots", "2", "--best", *JUDGE, "--save", "final.npz", *COMMAND, "--fail", "1-1")
    done = place.run(*RUN, *words)
    assert done.returncode == 0, done.stderr
    final, *_, remark = done.stderr.partition("The final model: ")[2].partition("pumasi: ")[0].splitlines()
    assert final == "final.npz (model 0 of round 1)"
    assert remark.strip() == "Left out: trainer 1."
    assert "is done" in done.stderr
    assert "accuracy 0" in done.stderr.splitlines()[-3]
    shown = place.run("show").stdout
    happened = [line.split(maxsplit=1)[1] for line in shown.partition(" events:\n")[2].splitlines()]
    assert any(line.startswith("2 trainers apart, one round of averaging") for line in happened)
    assert "train-1-0: 1 slot on this machine" in happened
    assert "train-1-0 is done" in happened
    assert any(line.startswith("train-1-1: starting again (attempt 1)") for line in happened)
    assert any(line.startswith("train-1-1 failed: The program") for line in happened)
    assert happened[-1] == "done: Left out: trainer 1."
    assert place.run("metrics").stdout.split()[:2] == ["task", "accuracy"]
    assert "evaluate-1-average" in place.run("metrics", "--name", "accuracy").stdout


def test_a_step_that_fails_says_what_is_wrong_once_and_where_to_look(place: Workplace) -> None:
    (place.folder / "reviews.npz").write_bytes(b"no zip")
    done = place.run(*RUN, "--slots", "2", "--split", "reviews.npz", *COMMAND, *DATA)
    assert done.returncode == 1
    assert done.stderr.count("[data] reviews.npz is no .npz file") == 1
    assert "failed after" in done.stderr
    assert "The data could not be prepared." in done.stderr
    assert f"pumasi logs {place.last()['id']} --task data" in done.stderr
    assert "starting again" not in done.stderr


def test_a_stop_is_told_as_a_stop(place: Workplace) -> None:
    process = place.start(*RUN, "--slots", "2", *COMMAND, env={"SLOW": "1"})
    wait_for(lambda: len(_tasks(place, "running")) == 2, "the trainers")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 5
    assert place.last()["outcome"]["reason"] == "Stopped on request."
    assert said.count("train-1-0") == 1


def test_tasks_that_start_while_a_log_is_followed_have_their_names(place: Workplace) -> None:
    waiting = "print('ready'); exec('while not os.path.exists(\"on\"): time.sleep(0.05)')"
    place.script(TRAIN.replace("time.sleep(60)", waiting))
    run = place.start(*RUN, "--slots", "2", *COMMAND, env={"SLOW": "1"})
    wait_for(lambda: len(_tasks(place, "running")) == 2, "the trainers")
    logs = place.start("logs", "-f")
    assert logs.stdout is not None
    assert logs.stdout.readline().endswith("ready\n")
    (place.folder / "on").touch()
    out, _ = logs.communicate()
    run.communicate()
    assert "[train-1-0] trained on 1" in out
    assert "[average-1] " in out


def test_a_dry_run_shows_every_task_with_its_command(place: Workplace) -> None:
    words = ("--slots", "2", "--split", "reviews.npz", "--rounds", "3", *COMMAND, *DATA)
    told = json.loads(place.run(*RUN, "--dry-run", "--json", *words).stdout)
    tasks = {task["task"]: task for task in told["tasks"]}
    assert list(tasks) == ["data", "train-1-0", "train-1-1", "average-1", "save"]
    assert tasks["train-1-1"]["command"][-1].endswith("/data/1.npz")
    assert tasks["train-1-1"]["env"] == {"WORKER_NUMBER": "2"}
    assert place.runs() == []


def test_a_file_can_not_train_apart(place: Workplace) -> None:
    (place.folder / "pumasi.yaml").write_text("strategy: average\nvolume: files\n")
    done = place.run("render", *COMMAND)
    assert done.returncode == 2
    assert "A file can't be a run with the strategy average" in done.stderr


def test_an_attempt_goes_on_from_the_checkpoint_of_the_one_before(place: Workplace) -> None:
    place.script(
        """
        import os, sys
        import numpy as np
        checkpoint = os.path.join(os.environ["PUMASI_CHECKPOINT_DIR"], "w.npz")
        if not os.path.exists(checkpoint):
            np.savez(checkpoint, w=[float(sys.argv[2]), 1.0])
            sys.exit("out of patience")
        os.rename(checkpoint, sys.argv[1])
        """
    )
    done = place.run(*RUN, "--slots", "2", "--save", "final.npz", "train.py", "{model}.npz", "{index}")
    assert done.returncode == 0, done.stderr
    assert weights(place.folder / "final.npz") == [0.5, 1]


def test_models_of_an_earlier_run_do_not_count(place: Workplace) -> None:
    """Three trainers, and then two on other data, into the same file."""
    options = (*JUDGE, "--save", "final.npz")
    assert place.run(*RUN, "--slots", "3", "--copy", "reviews.npz", *options, *COMMAND, *DATA).returncode == 0
    assert weights(place.folder / "final.npz") == [45, 10]
    np.savez(place.folder / "reviews.npz", x=np.arange(4.0), y=np.arange(4) % 2)
    done = place.run(*RUN, "--slots", "2", "--copy", "reviews.npz", *options, *COMMAND, *DATA)
    assert weights(place.folder / "final.npz") == [6, 4]
    assert re.findall(r"^ +1  (\S+ \S+) +(0\S+)", done.stderr, re.MULTILINE) == [
        (who, "0.006") for who in ("model 0", "model 1", "the average", "the ensemble")
    ]


def test_too_few_models_are_a_failure_that_names_the_first(place: Workplace) -> None:
    options = ("--slots", "2", "--copy", "reviews.npz", "--min-models", "2")
    done = place.run(*RUN, *options, *COMMAND, *DATA, "--fail", "1-1")
    assert done.returncode == 1
    assert "1 of 2 trainers came to their end, and 2 are needed." in done.stderr
    assert "trainer 1 has had enough" in done.stderr


def test_killed_in_the_middle_the_same_command_goes_on_where_it_was(place: Workplace) -> None:
    words = (*RUN, "--slots", "2", "--split", "reviews.npz", "--rounds", "2", "--save", "final.npz", *COMMAND, *DATA)
    process = place.start(*words, env={"SLOW": "2"})
    wait_for(lambda: "average-1" in _tasks(place, "ended"), "the first average")
    wait_for(lambda: "train-2-0" in _tasks(place, "running"), "the second round")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = place.run(*words)
    assert done.returncode == 0, done.stderr
    assert "train-1-0" not in done.stdout
    assert "goes on: 3 of its tasks are done already" in done.stderr
    assert len(place.runs()) == 1
    assert weights(place.folder / "final.npz") == [45, 10]


def test_attach_in_another_environment_goes_on_with_the_python_of_the_run(place: Workplace) -> None:
    """Of the shell that it is attached from, the Python can't even start."""
    words = (*RUN, "--slots", "2", "--rounds", "2", "--save", "final.npz", *COMMAND)
    _lose_manager(place, words)
    (place.folder / "bin").mkdir()
    place.script("#!/bin/sh\nexit 9\n", "bin/python").chmod(0o755)
    attached = place.run("attach", env={"VIRTUAL_ENV": str(place.folder)})
    assert attached.returncode == 0, attached.stderr
    assert weights(place.folder / "final.npz") == [0, 2]


def test_attach_gives_an_interrupted_run_a_new_manager(place: Workplace) -> None:
    words = (*RUN, "--slots", "2", "--copy", "reviews.npz", "--rounds", "2", *COMMAND, *DATA)
    _lose_manager(place, words)
    attached = place.run("attach")
    assert attached.returncode == 0, attached.stderr
    assert "goes on where it was interrupted" in attached.stderr


def _lose_manager(place: Workplace, words: Sequence[str]) -> None:
    """In the second round, which could end from then on."""
    place.script(TRAIN.replace("time.sleep(60)", "os.path.exists('on') or time.sleep(60)"))
    process = place.start(*words, env={"SLOW": "2"})
    wait_for(lambda: "train-2-0" in _tasks(place, "running"), "the second round")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (place.folder / "on").touch()


def _tasks(place: Workplace, state: str) -> list[str]:
    from pumasi.store import Store

    if not (place.home / "runs").exists():
        return []
    store = Store.open(place.home)
    try:
        return [name for run in store.runs() for name, task in store.tasks(run.id).items() if task["state"] == state]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.py", "--savemodel", "{modle}"), "{modle} in the command stands for nothing"),
        (("train.py",), "The trainers are not told where to save their models"),
        (("train.py", "--savemodel", "{model}", "--data", "{shard}"), "{shard} in the command stands for nothing"),
        (("--split", "no.npz", *COMMAND, *DATA), "There is no no.npz in"),
        (("--split", "reviews.npz", *COMMAND), "The trainers are not told where their data is"),
        (("--rounds", "2", "train.py", "{model}"), "The trainers are not told which model to begin with"),
        (("--init", "no.npz", *COMMAND), "There is no no.npz in"),
        (("--evaluate", "evaluate.py {shard} {model}", *COMMAND), "{shard} in the command stands for nothing"),
        (("--save", "final.h5", *COMMAND), "--save final.h5 is of another format than the models"),
        (("--save", "train.py/final.npz", *COMMAND), "train.py/final.npz can't be written"),
        (("--best", *COMMAND), "--best has nothing to compare the models by"),
        (("train.py", "{model}", "{{BATCH}}"), "Give it a value: --env BATCH=3"),
        (("--evaluate", "no.py {model}", *COMMAND), "There is no no.py in"),
        (("--evaluate", "evaluate.py", *COMMAND), "--evaluate does not name the model"),
    ],
)
def test_what_can_not_work_is_told_before_anything_starts(place: Workplace, words: tuple[str, ...], said: str) -> None:
    done = place.run(*RUN, "--slots", "2", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert place.runs() == []


def test_averaging_once_without_a_common_start_is_told_to_be_poor(place: Workplace) -> None:
    done = place.run(*RUN, "--slots", "2", "train.py", "--savemodel", "{model}.npz")
    assert "likely to be poor" in done.stderr
    done = place.run(*RUN, "--slots", "2", "--rounds", "2", *COMMAND)
    assert "likely to be poor" not in done.stderr


def test_trainers_that_do_not_know_each_other_are_what_was_asked_for(place: Workplace) -> None:
    place.script("import keras\nmodel = keras.Model()\nmodel.fit(epochs=1)\n", "lone.py")
    words = ("--slots", "2", "--dry-run", "lone.py", "--savemodel", "{model}", "--init", "{init}")
    assert "train apart" in place.run("run", *words[:3], "lone.py", env={"KERAS_BACKEND": "jax"}).stdout
    assert "train apart" not in place.run(*RUN, "--rounds", "2", *words, env={"KERAS_BACKEND": "jax"}).stdout
