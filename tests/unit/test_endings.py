"""The agents' words about an end become a verdict, a sentence and a hint."""

from __future__ import annotations

from typing import Any

import pytest

from pumasi.core.endings import HERE, Setting, outcome_of
from pumasi.core.outcome import Outcome, Verdict

NODES = ("node-1", "node-0")
MIB = 1024**2


def end(cause: str, size: int = 2, setting: Setting = HERE, **facts: Any) -> Outcome:
    return outcome_of({"cause": cause, **facts}, NODES, size, setting)


def test_a_done_gang_is_done() -> None:
    assert end("done").verdict is Verdict.DONE


def test_a_failure_names_rank_node_code_and_keeps_the_last_lines() -> None:
    outcome = end("exit", rank=3, node=1, code=7, signal=None, tail=["first", "ValueError: no"])
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason == "Rank 3 on node-0 failed first, with exit code 7."
    assert (outcome.rank, outcome.node, outcome.code, outcome.signal) == (3, "node-0", 7, None)
    assert outcome.tail == ("first", "ValueError: no")


def test_a_process_that_is_alone_is_called_the_program() -> None:
    assert end("exit", size=1, rank=0, node=0, code=1).reason == "The program on node-1 failed, with exit code 1."


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_crash_is_the_programs_own_failure(signal: str) -> None:
    outcome = end("signal", rank=1, node=1, signal=signal)
    assert outcome.verdict is Verdict.FAILED
    assert signal in outcome.reason


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "signal 40"])
def test_a_kill_from_outside_is_a_loss(signal: str) -> None:
    outcome = end("signal", rank=1, node=1, signal=signal)
    assert outcome.verdict is Verdict.LOST
    assert outcome.reason == f"Rank 1 on node-0 was killed ({signal})."


def test_out_of_memory_is_told_as_such() -> None:
    outcome = end("oom", rank=1, node=0, signal="SIGKILL")
    assert outcome.verdict is Verdict.LOST
    assert "memory ran out" in outcome.reason
    assert "smaller batch" in outcome.hint


def test_what_could_not_be_started_on_a_full_disk_is_not_blamed_on_the_command() -> None:
    facts = {"cause": "unstartable", "rank": 0, "node": 0, "error": "/tmp/x: No space left on device"}
    assert outcome_of(facts, ["node-1"], 1).hint.startswith("A disk is full")
    assert outcome_of({**facts, "error": "./x: Permission denied"}, ["node-1"], 1).hint == "Check the command."


@pytest.mark.parametrize(
    ("cause", "facts", "verdict", "words"),
    [
        ("unstartable", {"rank": 0, "node": 0, "error": "/x: No such file"}, Verdict.FAILED, "Rank 0 on node-1 could"),
        (
            "unstartable",
            {"node": 1, "error": "disk full"},
            Verdict.FAILED,
            "Node node-0 could not be started: disk full",
        ),
        ("vanished", {"rank": 1, "node": 0}, Verdict.LOST, "Rank 1 on node-1 never told how it ended"),
        ("silent", {"node": 1}, Verdict.LOST, "Node node-0 was lost: its agent fell silent."),
        ("agent died", {"node": 0}, Verdict.LOST, "Node node-1 was lost: its agent was killed."),
        ("absent", {"nodes": ["node-0", "c"]}, Verdict.LOST, "node-0, c did not come"),
        ("hub lost", {}, Verdict.LOST, "The chief's node was lost."),
        ("no hub", {"error": "refused"}, Verdict.LOST, "The chief's node could not be reached."),
        ("parent died", {"node": 0}, Verdict.LOST, "The manager was killed"),
        ("stopped", {"node": 0}, Verdict.STOPPED, "Stopped on request."),
    ],
)
def test_every_other_end_has_its_sentence(cause: str, facts: dict[str, Any], verdict: Verdict, words: str) -> None:
    outcome = end(cause, **facts)
    assert outcome.verdict is verdict
    assert words in outcome.reason
    assert outcome.reason.endswith(".")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ModuleNotFoundError: No module named 'keras.src'", "Install keras.src for the Python of the run"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "GPU's memory is full"),
        ("MemoryError", "Memory is full"),
        ("OSError: [Errno 28] No space left on device", "A disk is full"),
        ("OSError: [Errno 98] Address already in use", "Another program has that port"),
        ("train.py: error: unrecognized arguments: --slots", "handed to the script"),
        ("ValueError: something of the user's own", ""),
    ],
)
def test_well_known_last_lines_come_with_a_hint(line: str, words: str) -> None:
    hint = end("exit", rank=0, node=0, code=1, tail=["{curly} %s", line]).hint
    assert words in hint
    assert bool(hint) == bool(words)


def test_a_module_that_an_image_does_not_have_asks_for_another_image_and_not_for_another_python() -> None:
    tail = ["ModuleNotFoundError: No module named 'torch'"]
    there = end("exit", setting=Setting("python:3.12-slim"), rank=0, node=0, code=1, tail=tail)
    assert there.hint == (
        "The image python:3.12-slim has no torch. Name an image that has it with --image, or a list of packages with "
        "--requirements requirements.txt."
    )
    here = end("exit", rank=0, node=0, code=1, tail=tail)
    assert "--python, or a list of packages with --requirements requirements.txt." in here.hint


@pytest.mark.parametrize(("cause", "facts"), [("oom", {}), ("exit", {"code": 1, "tail": ["MemoryError"]})])
def test_a_limit_of_memory_that_was_too_low_is_to_be_raised(cause: str, facts: dict[str, Any]) -> None:
    outcome = end(cause, setting=Setting("image", ("64Mi", "128Mi")), rank=1, node=0, **facts)
    assert "Each slot may use 64Mi: raise it, as in --memory 128Mi" in outcome.hint
    assert "--memory reserves" in end(cause, setting=Setting("image"), rank=1, node=0, **facts).hint
    assert "--memory" not in end(cause, rank=1, node=0, **facts).hint


@pytest.mark.parametrize("cause", ["silent", "agent died", "hub lost"])
def test_what_is_started_again_goes_on_from_its_checkpoint_only_where_that_is_kept(cause: str) -> None:
    assert "goes on from its checkpoint" in end(cause, node=0).hint
    lost = end(cause, node=0, setting=Setting("image", keeps_checkpoints=False)).hint
    assert "goes on from" not in lost
    assert "from the beginning: checkpoints are lost with the pod" in lost
    assert "--volume NAME" in lost


def test_the_last_clue_counts() -> None:
    tail = ["No module named 'ujson'", "falling back", "No space left on device"]
    assert "disk is full" in end("exit", rank=0, node=0, code=1, tail=tail).hint


# What frameworks know about the end of their programs

KERAS_2 = [
    "ValueError: Argument(s) not recognized: {'lr': 0.1}",
    "ImportError: `keras.optimizers.legacy` is not supported in Keras 3. When using `tf.keras`, to continue using …",
    "TypeError: Trainer.compile() got an unexpected keyword argument 'experimental_run_tf_function'",
    "TypeError: TensorFlowTrainer.fit() got an unexpected keyword argument 'workers'",
    "TypeError: ModelCheckpoint.__init__() got an unexpected keyword argument 'period'",
    "ValueError: The `save_format` argument is deprecated in Keras 3. Please remove this argument and pass a file path",
    "ValueError: Invalid filepath extension for saving. Please add either a `.keras` extension for the native Keras …",
    "ValueError: The filename must end in `.weights.h5`. Received: filepath=/tmp/x.h5",
    "ValueError: The filepath provided must end in `.keras` (Keras model format). Received: filepath=c-{epoch}",
    "ValueError: File format not supported: filepath=m. Keras 3 only supports V3 `.keras` files, legacy H5 …",
    "ValueError: A KerasTensor cannot be used as input to a TensorFlow function. A KerasTensor is …",
    "ValueError: Only instances of `keras.Layer` can be added to a Sequential model. Received: <KerasLayer>",
    "ValueError: Unrecognized keyword arguments passed to Dense: {'batch_input_shape': (1, 2)}",
    "AttributeError: module 'keras._tf_keras.keras.layers' has no attribute 'experimental'",
    "AttributeError: module 'keras._tf_keras.keras.backend' has no attribute 'get_session'",
    "AttributeError: 'Sequential' object has no attribute 'fit_generator'",
    "ModuleNotFoundError: No module named 'keras.utils.np_utils'",
    "ModuleNotFoundError: No module named 'keras.src.engine'",
    "ModuleNotFoundError: No module named 'tensorflow.keras.layers.experimental'",
    "ModuleNotFoundError: No module named 'tensorflow.keras.wrappers.scikit_learn'",
    "ImportError: cannot import name 'adam_v2' from 'keras.optimizers' (/x/keras/optimizers/__init__.py)",
]


@pytest.mark.parametrize("line", KERAS_2)
def test_a_script_for_keras_2_under_keras_3_is_shown_the_way_back(line: str) -> None:
    tail = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', line]
    hint = end("exit", rank=0, node=0, code=1, tail=tail).hint
    assert "--env TF_USE_LEGACY_KERAS=1" in hint
    assert "install tf-keras" in hint
    legacy = ['  File "/x/site-packages/tf_keras/src/engine/training.py", line 3, in fit', line]
    assert "TF_USE_LEGACY_KERAS" not in end("exit", rank=0, node=0, code=1, tail=legacy).hint


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: train() got an unexpected keyword argument 'lr'",
        "ModuleNotFoundError: No module named 'keras'",
        "ModuleNotFoundError: No module named 'keras.ops'",
        "ImportError: cannot import name 'ops' from 'keras' (/x/keras/__init__.py)",
        "AttributeError: 'list' object has no attribute 'fit'",
    ],
)
def test_what_is_no_matter_of_keras_2_is_not_taken_for_it(line: str) -> None:
    assert "TF_USE_LEGACY_KERAS" not in end("exit", rank=0, node=0, code=1, tail=[line]).hint


@pytest.mark.parametrize(
    "line",
    [
        "It looks like MPI_INIT failed for some reason; your parallel process is",
        "*** An error occurred in MPI_Init",
        "  ompi_mpi_init: ompi_rte_init failed",
        "[vm:00598] [[INVALID],INVALID] ORTE_ERROR_LOG: Not found in file ess_env_module.c at line 147",
        "[vm:00598] PMIX ERROR: UNREACHABLE in file client/pmix_client.c at line 231",
    ],
)
def test_an_mpi_program_that_does_not_start_is_told_to_compare_versions(line: str) -> None:
    hint = end("exit", rank=0, node=0, code=14, tail=["-" * 70, line, "-" * 70]).hint
    assert "mpirun --version" in hint
    assert "PATH" in hint
    raised = ["Traceback (most recent call last):", "ValueError: no", line]
    assert end("exit", rank=0, node=0, code=14, tail=raised).hint == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("RuntimeError: nccl2 requires at least one CUDA device", 'init_process_group("gloo")'),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", 'init_process_group("gloo")'),
        ("RuntimeError: Collective ops must be configured at program startup", "Make the tf.distribute strategy first"),
    ],
)
def test_what_often_stops_an_example_is_told_with_the_way_out(line: str, words: str) -> None:
    assert words in end("exit", rank=0, node=0, code=1, tail=["Traceback (most recent call last):", line]).hint


STARTING = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1794965601.721069    9647 port.cc:153] oneDNN custom operations are on. You may see …",
    "I0000 00:00:1794965602.164358    9647 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use …",
    "To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow with the …",
    "2026-11-18 01:25:48.823104: I tensorflow/core/util/port.cc:110] oneDNN custom operations are on. You may see …",
    "2026-11-18 01:25:49.038060: I external/local_tsl/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers …",
    "E0000 00:00:1794965602.1    97 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory",
    "W0000 00:00:1794965602.1    97 computation_placer.cc:177] computation placer already registered. Please check",
    "2026-11-18 01:25:48.8: W tensorflow/core/common_runtime/gpu/gpu_device.cc:2348] Cannot dlopen some GPU libraries.",
]


def test_what_frameworks_write_at_every_start_is_left_out_of_the_last_lines() -> None:
    failure = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "ValueError: no"]
    outcome = end("exit", rank=0, node=0, code=1, tail=[*STARTING[:-1], *failure])
    assert outcome.tail == tuple(failure)
    fallback = (
        "W1118 01:00:00.1 97 xla_bridge.py:794] An NVIDIA GPU may be present on this machine, but a CUDA-enabled "
    )
    outcome = end(
        "exit", rank=0, node=0, code=1, tail=[f"{fallback}jaxlib is not installed. Falling back to cpu.", *failure]
    )
    assert outcome.tail == tuple(failure)
    fatal = "2026-11-18 01:25:48.8: F tensorflow/core/platform/default/env.cc:73] Check failed: ret == 0"
    warning = STARTING[-1]
    assert end("exit", rank=0, node=0, code=1, tail=[*STARTING, fatal]).tail == (warning, fatal)


def test_what_tensorflow_writes_at_every_start_is_shown_where_there_is_nothing_else() -> None:
    assert end("exit", rank=0, node=0, code=1, tail=STARTING[:3]).tail == tuple(STARTING[:3])
    assert end("exit", rank=0, node=0, code=1, tail=[]).tail == ()


def installing(*tail: str, **facts: Any) -> Outcome:
    words = "Installing the packages of requirements.txt"
    return end("setup", rank=1, node=1, error=words, tail=tail, **{"code": 1, **facts})


def test_an_installation_that_failed_is_told_with_its_node() -> None:
    outcome = installing("ERROR: no")
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason == "Installing the packages of requirements.txt on node-0 failed, with exit code 1."
    killed = installing(code=None, signal="SIGKILL")
    assert killed.reason == "Installing the packages of requirements.txt on node-0 was killed (SIGKILL)."


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (
            ["WARNING: Failed to establish a new connection", "ERROR: No matching distribution found for x"],
            "No package",
        ),
        (["  Caused by: dns error: failed to lookup address information"], "No package index"),
        (["ERROR: No matching distribution found for nunpy"], "Check the name"),
        (["Because nunpy was not found in the package registry and you require nunpy"], "Check the name"),
        (["ERROR: Package 'x' requires a different Python: 3.8.18 not in '>=3.10'"], "does not fit the Python"),
        (["error: command 'gcc' failed: No such file or directory"], "no compiler"),
        (["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"], "disk is full"),
        (["mkdir: cannot create directory '/opt/x': Permission denied"], "belong into the image"),
        (["There is neither uv nor pip for /usr/bin/python3."], "--image"),
        (["something else"], ""),
    ],
)
def test_an_installation_that_failed_comes_with_advice(lines: list[str], hint: str) -> None:
    given = installing(*lines).hint
    assert hint in given
    assert bool(given) == bool(hint)
