"""Runs a training script under its framework's own launcher: what Pumasi's result is compared with."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

Words = Sequence[str | Path]

LIMIT = 240.0
"""Seconds after which a launcher, ours or theirs, has hung."""
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "HF_HUB_OFFLINE": "1",
}
CRASH_AT_EXIT = "terminate called without an active exception"
TRIES = 5
_OURS = ("PUMASI_", "PYTHONPATH", "OMPI_", "PMIX_", "PRTE_")


class LauncherFailed(Exception):
    pass


def environment(out: Path, **more: str) -> dict[str, str]:
    """This process' own, without what would make a rank of it; the same for both sides of a comparison."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**inherited, **QUIET, "OUT": str(out), **more}


def free_ports(count: int) -> list[int]:
    """Below those that the system gives to outgoing connections: a framework binds them only seconds later."""
    found: list[int] = []
    for port in random.sample(range(10_000, 20_000), 10_000):
        if len(found) == count:
            break
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("", port))
            found.append(port)
    return found


def run(command: Words, env: Mapping[str, str], limit: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """In a session of its own, so that a launcher that hangs takes its ranks along when it is ended."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise LauncherFailed(f"{command} did not end in {limit} s\n{output}\n{errors}") from None
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def run_well(command: Words, env: Mapping[str, str]) -> str:
    done = run(command, env)
    check(command, done)
    return done.stdout


def check(command: Words, done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise LauncherFailed(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")


def run_together(commands: Sequence[Words], envs: Sequence[Mapping[str, str]], decisive: int, logs: Path) -> None:
    """Processes started side by side, by hand. The first `decisive` end by themselves, the others are ended then."""
    logs.mkdir(parents=True, exist_ok=True)
    processes = []
    for number, (command, env) in enumerate(zip(commands, envs, strict=True)):
        words = [str(word) for word in command]
        with (logs / f"{number}.log").open("wb") as log:
            processes.append(subprocess.Popen(words, env=dict(env), stdout=log, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + LIMIT
    try:
        for number, process in enumerate(processes[:decisive]):
            if process.wait(max(0.0, deadline - time.monotonic())) != 0:
                text = (logs / f"{number}.log").read_text()
                raise LauncherFailed(f"rank {number} ended with {process.returncode}\n{text}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def torchrun(python: Path, script: Path, out: Path, slots: int) -> None:
    """Started again when PyTorch crashes on the way out of a training that was done, which our shim keeps it from."""
    program: list[str | Path] = [python.parent / "torchrun", "--nproc-per-node", str(slots)]
    for _ in range(TRIES):
        command = [*program, "--master-port", str(free_ports(1)[0]), script]
        done = run(command, environment(out))
        if CRASH_AT_EXIT not in done.stderr:
            break
    check(command, done)


def tf_config(python: Path, script: Path, out: Path, roles: Mapping[str, int], **more: str) -> None:
    """TF_CONFIG by hand. An evaluator stands apart: nobody's cluster lists it but its own."""
    hosts = {role: [f"127.0.0.1:{port}" for port in free_ports(count)] for role, count in roles.items()}
    cluster = {role: where for role, where in hosts.items() if role != "evaluator"}
    envs = [
        environment(
            out,
            TF_CONFIG=json.dumps(
                {"cluster": hosts if role == "evaluator" else cluster, "task": {"type": role, "index": index}}
            ),
            **more,
        )
        for role, count in roles.items()
        for index in range(count)
    ]
    decisive = 1 if "ps" in roles else len(envs)
    run_together([[python, script]] * len(envs), envs, decisive, out / "logs")


def jax_by_hand(python: Path, script: Path, out: Path, slots: int) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    commands: list[Words] = [[python, script, "--by-hand", address, str(slots), str(rank)] for rank in range(slots)]
    run_together(commands, [environment(out)] * slots, slots, out / "logs")


def keras_by_hand(python: Path, script: Path, out: Path, slots: int) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    envs = [
        environment(
            out,
            KERAS_DISTRIBUTION_JOB_ADDRESSES=address,
            KERAS_DISTRIBUTION_NUM_PROCESSES=str(slots),
            KERAS_DISTRIBUTION_PROCESS_ID=str(rank),
        )
        for rank in range(slots)
    ]
    run_together([[python, script]] * slots, envs, slots, out / "logs")


def horovodrun(python: Path, script: Path, out: Path, slots: int) -> None:
    command: list[str | Path] = [python.parent / "horovodrun", "--gloo", "-np", str(slots), "-H", f"localhost:{slots}"]
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    run_well([*command, python, script], environment(out, PATH=path))


def mpirun(launcher: Path, command: Words, out: Path, slots: int, **more: str) -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run_well([launcher, "--oversubscribe", "-n", str(slots), *command], environment(out, **root, **more))
