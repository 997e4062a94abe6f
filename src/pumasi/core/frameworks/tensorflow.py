"""TensorFlow: the whole cluster in one variable, TF_CONFIG.

The evaluator stands beside the cluster: the others must not know about it, or they would wait for it; it must find
itself, or its strategy has no worker. Keras on TensorFlow belongs here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pumasi.core.fields import switch, whole
from pumasi.core.frameworks.base import Framework, Gang, Layout, Package, host, port
from pumasi.core.frameworks.script import Script
from pumasi.core.options import PROCESSES, Contradiction, Options, option
from pumasi.core.ranks import Rank
from pumasi.core.spec import MOST_SLOTS

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_WITHIN_ONE_PROCESS = (
    "tensorflow.distribute.MirroredStrategy",
    "tensorflow.distribute.OneDeviceStrategy",
    "tensorflow.distribute.ReduceOp",
    "tensorflow.distribute.NcclAllReduce",
    "tensorflow.distribute.HierarchicalCopyAllReduce",
    "tensorflow.distribute.ReductionToOneDevice",
    "tensorflow.distribute.InputOptions",
    "tensorflow.distribute.get_strategy",
    "tensorflow.distribute.has_strategy",
    "tensorflow.distribute.get_replica_context",
    "tensorflow.distribute.in_cross_replica_context",
)
_OTHER_WAYS = (
    r"TF_CONFIG|dtensor|(?<![A-Za-z])tpu|TPU|ClusterSpec|train\.Server|train_and_evaluate|horovod|keras\.distribution\b"
)
_TF_KERAS = "install tf-keras and set TF_USE_LEGACY_KERAS=1"
_STARTING = (
    r"^(?:[-0-9]{10} [:.0-9]{8,15}: )?I (?:tensorflow|external|xla)/|^I0000 00:00:"
    r"|^WARNING: All log messages before absl::InitializeLog\(\)|oneDNN custom operations are on"
    r"|^To enable the following instructions: |Could not find cuda drivers|TF-TRT Warning: Could not find TensorRT"
    r"|Unable to register cu\w+ (?:factory|plugin)|computation placer already registered"
    r"|Skipping registering GPU devices|failed call to cuInit"
)
_OF_KERAS_2 = re.compile(
    r"unexpected keyword argument '(?:experimental_run_tf_function|workers|use_multiprocessing|period|save_format)'"
    r"|Argument\(s\) not recognized: \{'lr'|`keras\.optimizers\.legacy` is not supported in Keras 3"
    r"|`save_format` argument is deprecated in Keras 3|Invalid filepath extension for saving"
    r"|file(?:name|path)(?: provided)? must end in `\.(?:weights\.h5|keras)`|Keras 3 only supports V3 `\.keras` files"
    r"|A KerasTensor cannot be used as input to a TensorFlow function|Only instances of `keras\.Layer` can be added"
    r"|Unrecognized keyword arguments passed to \w+: \{'(?:batch_input_shape|batch_shape|weights|time_major)'"
    r"|module 'keras\._tf_keras\.[\w.]+' has no attribute|cannot import name '\w+' from 'keras\._tf_keras\."
    r"|No module named '(?:tensorflow\.)?keras\.(?:(?:src\.)?engine|wrappers|preprocessing)\b"
    r"|No module named '(?:tensorflow\.)?keras\.(?:layers|utils|optimizers)\."
    r"|object has no attribute '(?:fit_generator|predict_generator|evaluate_generator|predict_classes|predict_proba)'"
    r"|cannot import name '\w+_v[12]' from 'keras\."
)
"""What Keras 3 says of scripts that were written for Keras 2."""


@dataclass(frozen=True)
class TensorFlowOptions(Options):
    for_gangs: ClassVar[bool] = True

    ps: int = option(
        whole(0, MOST_SLOTS),
        "parameter servers, in addition (TensorFlow)",
        example=2,
        default=0,
        value="N",
        group=PROCESSES,
    )
    evaluator: bool = option(
        switch(), "an evaluator, in addition (TensorFlow)", example=True, default=False, group=PROCESSES
    )

    def contradictions(self, spec: Spec) -> Iterator[Contradiction]:
        whose = {"ps": "parameter servers are TensorFlow's", "evaluator": "an evaluator is TensorFlow's"}
        for name in self.changed_names():
            if spec.framework not in ("auto", "tensorflow"):
                yield Contradiction(name, whose[name], "framework")
            if spec.per_node:
                yield Contradiction(name, "it takes one process a slot", "per_node")


class TensorFlow(Framework):
    name = "tensorflow"
    synonyms = ("tf",)
    options = TensorFlowOptions
    modules = ("tensorflow", "tf_keras")
    companions = ("tensorflow_datasets", "tensorflow_hub", "tensorflow_probability", "tensorflow_text")
    variables = ("TF_CONFIG",)
    runs_keras = True
    packages = (
        Package("tensorflow", ("tensorflow-cpu", "tensorflow-macos", "tf-nightly"), is_large=True),
        Package("keras", is_large=True),
        Package("tf-keras"),
    )
    noise = _STARTING
    starts = ("tensorflow.distribute", "tensorflow.compat.v1.distribute", "tensorflow.compat.v2.distribute")

    def wires(self, gang: Gang) -> bool:
        return gang.processes > 1

    def extra_roles(self, spec: Spec) -> list[str]:
        asked = spec[TensorFlowOptions]
        return ["ps"] * asked.ps + ["evaluator"] * asked.evaluator

    def decides(self, gang: Gang, rank: Rank) -> bool:
        """Parameter servers never end by themselves, nor do the workers that they serve: there the chief decides
        alone."""
        if any(member.role == "ps" for member in gang.table.ranks):
            return rank.role == "chief"
        return rank.role != "evaluator"

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        cluster: dict[str, list[str]] = {}
        for member in gang.table.ranks:
            if member.role != "evaluator" or member == rank:
                cluster.setdefault(member.role, []).append(f"{host(member.rank)}:{port(member.rank)}")
        task = {"type": rank.role, "index": rank.index}
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}

    def traps(self, script: Script, layout: Layout) -> Iterator[str]:
        yield from _keras_three(script, layout)
        yield from _apart(script, layout)

    def hint(self, tail: Sequence[str]) -> str:
        all_lines = "\n".join(tail)
        if "Collective ops must be configured at program startup" in all_lines:
            return "Make the tf.distribute strategy first, before anything else of TensorFlow is used."
        is_old = _OF_KERAS_2.search(all_lines) or ("keras/src/" in all_lines and "PerReplica" in all_lines)
        if not is_old or "tf_keras/" in all_lines:
            return ""
        return (
            "This script was probably written for Keras 2, and TensorFlow 2.16 and later come with Keras 3: "
            "install tf-keras for the Python of the run, and add --env TF_USE_LEGACY_KERAS=1."
        )


def _keras_three(script: Script, layout: Layout) -> Iterator[str]:
    if not script.fits_keras() or _has_legacy_keras(script):
        return
    if script.mentions_any("ParameterServerStrategy"):
        yield (
            "Keras 3 (TensorFlow 2.16 and later) cannot train with model.fit under ParameterServerStrategy: "
            f"{_TF_KERAS}, or write the loop with a ClusterCoordinator."
        )
    elif script.mentions_any("MultiWorkerMirroredStrategy") and not layout.shim:
        yield (
            "With Keras 3 (TensorFlow 2.16 and later) and without the shim, model.fit fails under "
            f"MultiWorkerMirroredStrategy: leave out --no-shim, or {_TF_KERAS}."
        )


def _has_legacy_keras(script: Script) -> bool:
    told = script.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    only_legacy = script.imports_any("tf_keras") and not script.names_under("tensorflow.keras", "keras")
    return told or only_legacy


def _apart(script: Script, layout: Layout) -> Iterator[str]:
    trains = script.fits_keras() or script.mentions_any("GradientTape")
    if layout.processes < 2 or not trains or script.may_start_elsewhere(_OTHER_WAYS):
        return
    if any(not name.startswith(_WITHIN_ONE_PROCESS) for name in script.names_under(*TensorFlow.starts)):
        return
    if script.mentions_any("MirroredStrategy"):
        yield (
            f"MirroredStrategy joins the GPUs of one process only, so {layout.processes} copies will train apart: "
            "use tf.distribute.MultiWorkerMirroredStrategy instead."
        )
    else:
        yield (
            f"{script.main} never uses tf.distribute, so {layout.processes} copies will train apart: "
            "build the model in the scope of a tf.distribute.MultiWorkerMirroredStrategy."
        )


TENSORFLOW = TensorFlow()
