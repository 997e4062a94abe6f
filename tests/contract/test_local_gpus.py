"""GPUs of this machine: an nvidia-smi that gives recorded answers stands in for the driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import Workplace, wait_for

SHOW = """
    import os
    print(os.environ["PUMASI_RANK"], os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    if os.path.exists("wait"):
        import time
        while not os.path.exists("go"):
            time.sleep(0.02)
"""


@pytest.fixture
def machine(workplace: Workplace) -> Workplace:
    """A machine with four GPUs, of which the third is busy with somebody else's process."""
    folder = workplace.folder.parent / "bin"
    folder.mkdir()
    smi = folder / "nvidia-smi"
    rows = "\n".join(
        f"{i}, GPU-{i}{i}{i}{i}, NVIDIA A100-SXM4-80GB, 81920, {4000 if i == 2 else 0}, Disabled" for i in range(4)
    )
    smi.write_text(f"""#!/bin/sh
case "$*" in
  *compute-apps*) echo "GPU-2222, 4711" ;;
  *) cat <<'END'
{rows}
END
  ;;
esac
""")
    smi.chmod(0o755)
    workplace.environ["PATH"] = f"{folder}:{workplace.environ['PATH']}"
    return workplace


def seen(text: str) -> dict[str, str]:
    return dict(line.split("] ")[-1].split(" ", 1) for line in text.splitlines())


def test_each_rank_gets_a_free_gpu_of_its_own(machine: Workplace) -> None:
    machine.script(SHOW)
    done = machine.run("run", "--gpus", "2", "--see-gpus", "own", "train.py")
    assert done.returncode == 0, done.stderr
    assert seen(done.stdout) == {"0": "GPU-0000", "1": "GPU-1111"}


def test_a_torch_rank_sees_all_gpus_of_the_gang(machine: Workplace) -> None:
    machine.script(SHOW)
    done = machine.run("run", "--gpus", "2", "--framework", "torch", "train.py")
    assert seen(done.stdout) == {"0": "GPU-0000,GPU-1111", "1": "GPU-0000,GPU-1111"}


def test_more_gpus_than_there_are_is_an_error_that_counts_them(machine: Workplace) -> None:
    machine.script(SHOW)
    done = machine.run("run", "--gpus", "5", "train.py")
    assert done.returncode == 2
    assert "5" in done.stderr
    assert "4" in done.stderr


def test_without_waiting_a_busy_gpu_is_an_error(machine: Workplace) -> None:
    machine.script(SHOW)
    done = machine.run("run", "--gpus", "4", "--no-wait", "train.py")
    assert done.returncode == 1
    assert "3" in done.stderr


def test_the_second_run_waits_for_the_gpus_of_the_first(machine: Workplace) -> None:
    machine.script(SHOW)
    (machine.folder / "wait").touch()
    first = machine.start("run", "--gpus", "2", "--name", "first", "train.py")
    wait_for(lambda: machine.runs() and machine.last()["state"] == "running", "the first run")
    second = machine.start("run", "--gpus", "2", "--name", "second", "--see-gpus", "own", "train.py")
    wait_for(lambda: machine.last()["id"].startswith("second") and machine.last()["state"] == "queued", "the queue")
    (machine.folder / "go").touch()
    assert first.wait(60) == 0
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0
    assert "waiting" in err
    assert sorted(seen(out).values()) == ["GPU-0000", "GPU-1111"]


def test_gpus_0_hides_them(machine: Workplace) -> None:
    machine.script(SHOW)
    done = machine.run("run", "--slots", "6", "--gpus", "0", "train.py")
    assert done.returncode == 0
    assert set(seen(done.stdout).values()) == {""}


def test_the_plan_says_which_gpus(machine: Workplace, tmp_path: Path) -> None:
    machine.script(SHOW)
    machine.run("run", "--gpus", "2", "train.py")
    events = json.loads(machine.run("show", "--json").stdout)["events"]
    planned = next(event for event in events if event["event"] == "planned")
    assert list(planned["gpus"].values()) == [["GPU-0000", "GPU-1111"]]
