from __future__ import annotations

from textwrap import dedent

import pytest

from pumasi.core.frameworks import Layout
from pumasi.core.frameworks.detect import Detection, detect, joins, local_imports, traps
from pumasi.core.frameworks.lightning import LightningOptions
from pumasi.errors import UsageError

# Scripts in the manner of the official guides, cut down to what can be seen in them.

TORCH_ALONE = """
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

def train(model, device, loader, optimizer):
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()

def main():
    loader = DataLoader(datasets.MNIST("data", transform=transforms.ToTensor()), batch_size=64)
    model = nn.Linear(784, 10)
    train(model, "cpu", loader, torch.optim.Adadelta(model.parameters()))

if __name__ == "__main__":
    main()
"""

TORCH_TORCHRUN = """
import os
import torch
from torch.utils.data.distributed import DistributedSampler
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed import init_process_group, destroy_process_group

def main():
    init_process_group(backend="gloo")
    model = DDP(torch.nn.Linear(20, 1))
    model(torch.rand(1, 20)).sum().backward()
    destroy_process_group()

if __name__ == "__main__":
    main()
"""

TORCH_SPAWN = """
import os
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed import init_process_group, destroy_process_group

def ddp_setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    os.environ["RANK"] = str(rank)
    init_process_group(backend="nccl", rank=rank, world_size=world_size)

def main(rank, world_size):
    ddp_setup(rank, world_size)
    DDP(torch.nn.Linear(20, 1))(torch.rand(1, 20)).sum().backward()
    destroy_process_group()

if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(main, args=(world_size,), nprocs=world_size)
"""

TORCH_SPAWN_OR_RANK = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def main(args):
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    if args.multiprocessing_distributed:
        mp.spawn(main_worker, nprocs=torch.cuda.device_count(), args=(args,))
    else:
        main_worker(args.gpu, args)

def main_worker(gpu, args):
    dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url)
"""

ACCELERATE = """
import argparse
from torch.utils.data import DataLoader
from accelerate import Accelerator
from transformers import AutoModelForSequenceClassification, AutoTokenizer

def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu)
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
    model, loader = accelerator.prepare(model, DataLoader([]))
    for batch in loader:
        accelerator.backward(model(**batch).loss)
"""

HUGGING_FACE = """
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
trainer = Trainer(model=model, args=TrainingArguments(output_dir="out"), train_dataset=load_dataset("imdb")["train"])
trainer.train()
"""

LIGHTNING = """
import lightning as L
import torch

class LitModel(L.LightningModule):
    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

trainer = L.Trainer(max_epochs=10{arguments})
trainer.fit(LitModel(), torch.utils.data.DataLoader([]))
"""

MULTI_WORKER_KERAS = """
import json
import os
import tensorflow as tf
import mnist_setup

per_worker_batch_size = 64
num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
data = mnist_setup.mnist_dataset(per_worker_batch_size * num_workers)
with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()
multi_worker_model.fit(data, epochs=3, steps_per_epoch=70)
"""

MULTI_WORKER_LOOP = """
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.SGD()

@tf.function
def train_step(batch):
    def step_fn(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    strategy.run(step_fn, args=(batch,))
"""

PARAMETER_SERVER_KERAS = """
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
model.compile(tf.keras.optimizers.SGD(), "mse")
model.fit(tf.keras.utils.experimental.DatasetCreator(dataset_fn), epochs=5, steps_per_epoch=20)
"""

KERAS_ALONE = """
import tensorflow as tf

(x, y), _ = tf.keras.datasets.mnist.load_data()
model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
model.compile("adam", "mse")
model.fit(x, y, epochs=5)
"""

MIRRORED = """
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
model.compile("adam", "mse")
model.fit(data, epochs=12, callbacks=[tf.keras.callbacks.TensorBoard("logs")])
"""

KERAS_ON_JAX = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import tensorflow as tf
import keras
from keras import layers

keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
model = keras.Sequential([layers.Dense(10)])
model.compile("adam", "mse")
model.fit(tf.data.Dataset.range(10), epochs=3)
"""

FLAX = """
# Distributed under the License is distributed on an "AS IS" BASIS.
from absl import app, flags
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow_datasets as tfds

def loss_fn(params, batch):
    return jnp.mean(batch @ params)

@jax.jit
def train_step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    return loss, grads

if __name__ == "__main__":
    app.run(train_step)
"""

JAX_TOGETHER = FLAX.replace("if __name__", "jax.distributed.initialize()\nif __name__")

HOROVOD_TORCH = """
import torch
import torch.nn.functional as F
import torch.utils.data.distributed
import horovod.torch as hvd

def train(model, optimizer):
    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    sampler = torch.utils.data.distributed.DistributedSampler([], num_replicas=hvd.size(), rank=hvd.rank())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    F.nll_loss(model(1), 2).backward()
"""

MPI4PY = """
from mpi4py import MPI
import numpy as np

comm = MPI.COMM_WORLD
total = comm.allreduce(np.ones(4) * comm.Get_rank())
"""

TWO = Layout(slots=2, shares=(2,))
THREE = Layout(slots=3, shares=(1, 2))
BARE = Layout(slots=2, shares=(2,), shim=False)


def found(text: str, *command: str, environ: dict[str, str] | None = None) -> Detection:
    return detect({"train.py": text}, environ, command)


def warned(text: str, layout: Layout = TWO, *command: str, environ: dict[str, str] | None = None) -> list[str]:
    return list(traps(found(text, *command, environ=environ), layout))


def lightning(arguments: str = "") -> str:
    return LIGHTNING.format(arguments=f", {arguments}" if arguments else "")


# Which framework


@pytest.mark.parametrize(
    ("text", "framework", "because"),
    [
        (TORCH_ALONE, "torch", "train.py imports torch"),
        (TORCH_TORCHRUN, "torch", "train.py imports torch"),
        (ACCELERATE, "torch", "train.py imports torch.utils.data"),
        (HUGGING_FACE, "torch", "train.py imports transformers"),
        (lightning(), "torch", "train.py imports lightning"),
        (MULTI_WORKER_KERAS, "tensorflow", "train.py imports tensorflow"),
        (PARAMETER_SERVER_KERAS, "tensorflow", "train.py imports tensorflow"),
        (KERAS_ON_JAX, "jax", "train.py imports keras (on jax) and uses keras.distribution"),
        (FLAX, "jax", "train.py imports flax"),
        (HOROVOD_TORCH, "horovod", "train.py imports horovod.torch and uses horovod.torch.init"),
        (MPI4PY, "mpi", "train.py imports mpi4py"),
        ("import numpy as np\nprint(np.pi)", "none", "train.py imports no framework that Pumasi knows"),
        ("", "none", "train.py imports no framework that Pumasi knows"),
    ],
)
def test_a_script_gives_its_framework_away(text: str, framework: str, because: str) -> None:
    detection = found(text)
    assert (detection.framework, detection.because) == (framework, because)


@pytest.mark.parametrize(
    "text",
    [
        "def train():\n    import torch\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\n",
        "if True:\n    from torch import nn\n",
        "class A:\n    from torch.nn import Linear as L\n",
        "\ufeffimport torch\n",
        "import numpy; import torch.nn as nn",
    ],
)
def test_an_import_counts_wherever_it_stands(text: str) -> None:
    assert found(text).framework == "torch"


def test_an_import_for_the_type_checker_does_not_count() -> None:
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nelse:\n    import jax\n"
    assert found(guarded).framework == "jax"
    assert found("import typing\nif typing.TYPE_CHECKING:\n    import torch\n").framework == "none"


def test_a_name_in_a_comment_or_a_string_is_no_import() -> None:
    assert found('"""import torch"""\n# import tensorflow\nprint("import jax")\n').framework == "none"


def test_a_framework_in_a_local_module_is_found_and_the_module_is_named() -> None:
    detection = detect({"train.py": "from models.net import Net\nNet().fit()\n", "models/net.py": "import torch\n"})
    assert (detection.framework, detection.because) == ("torch", "models/net.py imports torch")


def test_of_several_frameworks_the_one_that_trains_together_is_meant() -> None:
    both = "import torch\nimport tensorflow as tf\n"
    assert found(both + "strategy = tf.distribute.MirroredStrategy()").framework == "tensorflow"
    detection = found("import tensorflow\n" + TORCH_TORCHRUN)
    assert detection.framework == "torch"
    assert detection.because == "train.py imports torch and uses torch.distributed"


def test_of_several_frameworks_otherwise_the_first_is_meant() -> None:
    assert found("import jax\nimport tensorflow as tf\nimport torch").framework == "jax"
    assert found("import tensorflow as tf\nimport jax").framework == "tensorflow"


def test_a_library_that_serves_several_frameworks_gives_way_to_a_framework() -> None:
    assert found("from transformers import TFAutoModel\nimport tensorflow as tf").framework == "tensorflow"
    assert found("import tensorflow_datasets as tfds\nimport torch").framework == "torch"
    assert found("import keras\nimport jax").framework == "jax"


def test_nobody_imports_mpi_or_horovod_for_anything_else() -> None:
    assert found("import torch\nfrom mpi4py import MPI").framework == "mpi"
    assert found("import torch\nimport horovod.torch as hvd").framework == "horovod"
    assert found("from mpi4py import MPI\nimport horovod.torch as hvd\nhvd.init()").framework == "horovod"


@pytest.mark.parametrize(
    ("text", "environ", "framework"),
    [
        ("import keras", {}, "tensorflow"),
        ("import keras", {"KERAS_BACKEND": "torch"}, "torch"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", {}, "jax"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", {"KERAS_BACKEND": "torch"}, "jax"),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'jax')\nimport keras", {"KERAS_BACKEND": "torch"}, "torch"),
        ("from os import environ\nenviron['KERAS_BACKEND'] = 'jax'\nimport keras", {}, "jax"),
        ("import tensorflow as tf\nimport keras", {"KERAS_BACKEND": "jax"}, "jax"),
        ("import keras_hub", {"KERAS_BACKEND": "jax"}, "jax"),
        ("import keras", {"KERAS_BACKEND": "openvino"}, "none"),
        ("from tensorflow import keras", {}, "tensorflow"),
    ],
)
def test_keras_is_what_its_backend_is(text: str, environ: dict[str, str], framework: str) -> None:
    assert found(text, environ=environ).framework == framework


@pytest.mark.parametrize(
    ("command", "framework"),
    [
        (("torchrun", "train.py"), "torch"),
        (("/opt/venv/bin/torchrun", "--standalone", "train.py"), "torch"),
        (("python3", "-m", "torch.distributed.run", "train.py"), "torch"),
        (("accelerate", "launch", "train.py"), "torch"),
        (("mpirun", "python", "train.py"), "mpi"),
        (("horovodrun", "-np", "4", "python", "train.py"), "horovod"),
        (("accelerate", "env"), "tensorflow"),
        (("python", "train.py"), "tensorflow"),
    ],
)
def test_a_launcher_in_the_command_decides(command: tuple[str, ...], framework: str) -> None:
    assert found("import tensorflow", *command).framework == framework


def test_a_program_that_is_no_python_script_has_no_framework() -> None:
    detection = detect({}, {}, ("./anything", "--args"))
    assert (detection.framework, detection.because) == ("none", "./anything is no Python script")
    assert detect({}).framework == "none"


# Scripts that cannot be read


def test_a_syntax_error_is_told_as_python_tells_it() -> None:
    with pytest.raises(UsageError) as caught:
        found("import torch\n\nprint((1, 2)\n")
    assert caught.value.message == "train.py, line 3: '(' was never closed\n    print((1, 2)\n         ^"


def test_a_file_with_null_bytes_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="null bytes"):
        found("import torch\0")


def test_a_syntax_error_in_a_local_module_does_not_stand_in_the_way() -> None:
    detection = detect({"train.py": "import broken\n", "broken.py": "import torch\nthis is not Python\n"})
    assert (detection.framework, detection.because) == ("torch", "broken.py imports torch")
    assert traps(detection, TWO) == ()


def test_what_only_another_python_understands_is_no_error_of_the_script() -> None:
    newer = TORCH_ALONE + "\nwhat comes after 3.99\n"
    detection = detect({"train.py": newer}, may_pass=lambda _: True)
    assert detection.framework == "torch"
    assert traps(detection, TWO) == ()


@pytest.mark.filterwarnings("error")
def test_a_bad_escape_in_a_string_is_not_warned_of_here() -> None:
    assert found("import torch\nx = '\\d'\n").framework == "torch"


def test_deeply_nested_code_is_survived() -> None:
    assert found("import torch\nx = " + "+".join(["1"] * 5000)).framework == "torch"
    assert found("import torch\nx = " + "-" * 100_000 + "1").framework == "torch"


# Local modules


def test_local_imports_name_modules_with_their_packages() -> None:
    text = "import os\nimport a.b\nfrom c import d\nfrom e.f import *\ndef g():\n    import h\n"
    assert local_imports(text) == {"os", "a", "a.b", "c", "c.d", "e", "e.f", "h"}


@pytest.mark.parametrize(
    ("text", "package", "names"),
    [
        ("from . import net", "models", {"models", "models.net"}),
        ("from .net import Net", "models", {"models", "models.net", "models.net.Net"}),
        ("from ..data import load", "pkg.models", {"pkg", "pkg.data", "pkg.data.load"}),
        ("from . import net", "", {"net"}),
        ("from ... import net", "models", {"net"}),
    ],
)
def test_relative_imports_are_resolved(text: str, package: str, names: set[str]) -> None:
    assert local_imports(text, package) == names


def test_local_imports_of_a_broken_file_are_still_found() -> None:
    assert local_imports("import a\nfrom b.c import d\n(((") == {"a", "b", "b.c"}


# Traps: copies that train apart


def test_a_torch_script_that_never_starts_distributed_training_is_told() -> None:
    assert warned(TORCH_ALONE) == [
        "train.py imports torch but never starts torch.distributed, so 2 copies will train apart: call "
        "init_process_group and wrap the model in DistributedDataParallel, or use accelerate."
    ]


def test_a_tensorflow_script_that_never_distributes_is_told() -> None:
    (trap,) = warned(KERAS_ALONE)
    assert "never uses tf.distribute, so 2 copies will train apart" in trap
    assert "MultiWorkerMirroredStrategy" in trap


def test_a_strategy_for_one_process_does_not_join_several() -> None:
    (trap,) = warned(MIRRORED)
    assert trap.startswith("MirroredStrategy joins the GPUs of one process only, so 2 copies will train apart")


def test_a_jax_script_that_never_initializes_is_told() -> None:
    (trap,) = warned(FLAX)
    assert trap.startswith("train.py never calls jax.distributed.initialize, so 2 copies will train apart")


def test_a_keras_script_on_jax_is_shown_keras_own_way() -> None:
    text = "import keras\nmodel = keras.Sequential()\nmodel.fit(x, y, epochs=3)\n"
    (trap,) = warned(text, environ={"KERAS_BACKEND": "jax"})
    assert "keras.distribution.initialize" in trap


def test_a_keras_script_on_torch_is_not_told_that_it_imports_torch() -> None:
    text = "import keras\nmodel = keras.Sequential()\nmodel.fit(x, y, epochs=3)\n"
    (trap,) = warned(text, environ={"KERAS_BACKEND": "torch"})
    assert trap.startswith("Keras on torch knows one process only, so 2 copies will train apart: set KERAS_BACKEND=jax")


GOOD = [
    TORCH_TORCHRUN,
    TORCH_SPAWN_OR_RANK,
    ACCELERATE,
    HUGGING_FACE,
    MULTI_WORKER_KERAS,
    MULTI_WORKER_LOOP,
    KERAS_ON_JAX,
    JAX_TOGETHER,
    HOROVOD_TORCH,
    MPI4PY,
]


@pytest.mark.parametrize("text", GOOD)
@pytest.mark.parametrize("layout", [TWO, THREE, Layout(slots=4, shares=(2, 2))])
def test_a_script_as_the_guides_teach_it_raises_no_alarm(text: str, layout: Layout) -> None:
    assert warned(text, layout) == []


@pytest.mark.parametrize("text", [*GOOD, TORCH_ALONE, TORCH_SPAWN, KERAS_ALONE, MIRRORED, FLAX, lightning()])
def test_a_process_that_is_alone_is_never_warned(text: str) -> None:
    assert warned(text, Layout(slots=1, shares=(1,))) == []
    assert warned(text, Layout(slots=1, shares=(1,), shim=False)) == []


@pytest.mark.parametrize(
    "extra",
    [
        "import mylib",
        "from wandb_callbacks import start",
        "import os\nrank = int(os.environ['RANK'])",
        "import os\nrank = os.getenv('SLURM_PROCID', '0')",
        "from torch import distributed as dist\ndist.is_initialized()",
        "import subprocess\nsubprocess.run(['torchrun', 'worker.py'])",
        "from deepspeed.ops.adam import FusedAdam",
    ],
)
def test_a_torch_script_that_may_start_it_somehow_raises_no_alarm(extra: str) -> None:
    assert warned(f"{extra}\n{TORCH_ALONE}") == []


# What is said about a script, in comments, docstrings and messages, changes nothing

MAGIC_WORDS = """
tpu TPU multihost coordinator_address COORDINATOR_ADDRESS distributed jax.distributed.initialize() keras.distribution
TF_CONFIG dtensor ClusterSpec tf.train.Server train_and_evaluate horovod hvd.init() tf.distribute TPUStrategy
MultiWorkerMirroredStrategy ParameterServerStrategy MirroredStrategy GradientTape TF_USE_LEGACY_KERAS=1
torch.distributed init_process_group init_device_mesh init_rpc DistributedDataParallel fully_shard FSDP backward
RANK LOCAL_RANK WORLD_SIZE SLURM_PROCID torchrun mpirun mpiexec horovodrun accelerate deepspeed
excepthook Abort strategy="ddp" TYPE_CHECKING KERAS_BACKEND
"""
MAGIC = MAGIC_WORDS.split()
IMPORTS = """
import torch
import jax
import tensorflow as tf
from mpi4py import MPI
import horovod.torch as hvd
"""


def talked_about(text: str) -> str:
    """The same script, with every word that could matter in comments, docstrings, idle strings and messages."""
    everything = " ".join(MAGIC)
    lines = [f'"""It works on {everything}.\n{IMPORTS}"""', f"# works on {everything}", text]
    for number, word in enumerate(MAGIC):
        lines += [f"# {word}", f"def words_{number}():", f"    {word!r}", f"class Words{number}:", f"    {word!r}"]
    told = ("print(%r)", "print(f%r)", "raise SystemExit(%r)")
    return "\n".join([*lines, "def tell():", *(f"    {each}" % f"Use {everything}" for each in told)])


TRAPPED = {
    "torch alone": (TORCH_ALONE, TWO),
    "torch spawns": (TORCH_SPAWN, TWO),
    "lightning without a strategy": (lightning(), TWO),
    "lightning in unequal shares": (lightning("strategy='ddp', devices=3"), THREE),
    "lightning with another number": (lightning("strategy='ddp', devices=4"), TWO),
    "keras alone": (KERAS_ALONE, TWO),
    "mirrored": (MIRRORED, TWO),
    "parameter servers": (PARAMETER_SERVER_KERAS, TWO),
    "multi worker without the shim": (MULTI_WORKER_KERAS, BARE),
    "jax alone": (FLAX, TWO),
    "jax without the shim": (JAX_TOGETHER, BARE),
    "mpi4py without the shim": (MPI4PY, BARE),
}


@pytest.mark.parametrize("trap", TRAPPED)
def test_no_comment_and_no_docstring_silences_a_warning(trap: str) -> None:
    text, layout = TRAPPED[trap]
    said = [sentence.partition(": ")[2] for sentence in warned(text, layout)]
    assert said
    assert [sentence.partition(": ")[2] for sentence in warned(talked_about(text), layout)] == said


@pytest.mark.parametrize("text", GOOD)
def test_no_comment_and_no_docstring_changes_what_a_script_is_taken_for(text: str) -> None:
    plain, talked = found(text), found(talked_about(text))
    assert (plain.framework, plain.because, joins(plain)) == (talked.framework, talked.because, joins(talked))
    assert warned(talked_about(text)) == []


def test_no_docstring_makes_a_framework_where_the_syntax_is_not_understood() -> None:
    newer = talked_about("import torch") + "\nwhat comes after 3.99\n"
    detection = detect({"train.py": newer}, may_pass=lambda _: True)
    assert (detection.framework, detection.because) == ("torch", "train.py imports torch")
    assert traps(detection, TWO) == ()
    commented = "import os  # it's ''' here\nimport torch\nx = '''\nimport jax\n'''\n((("
    assert local_imports(commented) == {"os", "torch"}


@pytest.mark.parametrize(
    "extra",
    [
        "jax.distributed.initialize(coordinator_address=a, num_processes=2, process_id=0)",
        "from jax import distributed\ndistributed.initialize()",
        "from jax.experimental import multihost_utils",
        "jax.devices('tpu')",
        "import os\nos.environ['JAX_PLATFORMS'] = 'tpu'",
        "import os\naddress = os.environ['MY_COORDINATOR_ADDRESS']",
        "use_tpu = True",
        "start(coordinator_address=a)",
        "import os\nos.system(f'mpirun -np {n} python worker.py')",
    ],
)
def test_a_jax_script_that_may_start_it_somehow_raises_no_alarm(extra: str) -> None:
    assert warned(FLAX + extra) == []


@pytest.mark.parametrize(
    "extra",
    [
        "import os\nos.environ['TF_CONFIG'] = json.dumps(cluster)",
        "import os\nprint(os.environ.get('TF_CONFIG'))",
        "from tensorflow.experimental import dtensor",
        "server = tf.train.Server(tf.train.ClusterSpec(cluster))",
        "tf.estimator.train_and_evaluate(a, b, c)",
        "resolver = make(tpu='local')",
    ],
)
def test_a_tensorflow_script_that_may_start_it_somehow_raises_no_alarm(extra: str) -> None:
    assert warned(KERAS_ALONE + extra) == []


def test_a_torch_script_that_does_not_train_raises_no_alarm() -> None:
    assert warned("import torch\nprint(torch.load('model.pt').eval())") == []


def test_a_local_module_is_looked_into_before_anything_is_said() -> None:
    main = "import setup_dist\n" + TORCH_ALONE
    assert len(traps(detect({"train.py": main, "setup_dist.py": "SEED = 1\n"}), TWO)) == 1
    starts = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    assert traps(detect({"train.py": main, "setup_dist.py": starts}), TWO) == ()


@pytest.mark.parametrize(
    "strategy",
    [
        "getattr(tf.distribute, args.strategy)()",
        "tf.distribute.experimental.MultiWorkerMirroredStrategy()",
        "tf.distribute.TPUStrategy(resolver)",
    ],
)
def test_a_strategy_that_may_join_several_processes_raises_no_alarm(strategy: str) -> None:
    assert warned(MIRRORED.replace("tf.distribute.MirroredStrategy()", strategy)) == []


def test_a_fit_of_scikit_learn_is_no_training_of_keras() -> None:
    text = "import tensorflow as tf\nfrom sklearn.svm import SVC\nmodel = SVC()\nmodel.fit(x, y)\n"
    assert warned(text) == []


def test_one_process_on_one_node_trains_apart_from_nobody() -> None:
    assert warned(TORCH_ALONE, Layout(slots=4, shares=(4,), per_node=True)) == []
    assert warned(FLAX, Layout(slots=4, shares=(4,), per_node=True)) == []


# Traps: launchers and scripts that start processes of their own


def test_a_script_that_spawns_belongs_on_a_node_once() -> None:
    (trap,) = warned(TORCH_SPAWN)
    assert trap == (
        "train.py, line 21: torch.multiprocessing.spawn starts processes of its own, and would do so in each of 2 "
        "slots: run it with --per-node."
    )
    assert warned(TORCH_SPAWN, TWO._replace(per_node=True)) == []


def test_keras_way_to_spawn_on_torch_is_seen_too() -> None:
    text = "import torch\nif __name__ == '__main__':\n    torch.multiprocessing.start_processes(main, nprocs=2)\n"
    (trap,) = warned(text)
    assert "torch.multiprocessing.start_processes" in trap


@pytest.mark.parametrize("launcher", [("torchrun",), ("accelerate", "launch"), ("deepspeed",)])
def test_a_launcher_in_every_slot_is_told(launcher: tuple[str, ...]) -> None:
    (trap,) = warned(TORCH_TORCHRUN, TWO, *launcher, "train.py")
    assert trap.startswith(f"{' '.join(launcher)} starts processes of its own, and would do so in each of 2 slots")
    assert warned(TORCH_TORCHRUN, TWO._replace(per_node=True), *launcher, "train.py") == []


def test_accelerate_launch_wants_equal_shares() -> None:
    layout = Layout(slots=6, shares=(1, 2, 3), per_node=True)
    (trap,) = warned(ACCELERATE, layout, "accelerate", "launch", "train.py")
    assert "here there are 1, 2 and 3" in trap
    assert warned(ACCELERATE, layout._replace(shares=(3, 3)), "accelerate", "launch", "train.py") == []


def test_accelerate_launch_on_cpus_of_several_nodes_is_told() -> None:
    layout = Layout(slots=4, shares=(2, 2), per_node=True)
    (trap,) = warned(ACCELERATE, layout, "accelerate", "launch", "--cpu", "train.py")
    assert "train apart without a word" in trap


def test_accelerate_launch_that_is_not_told_of_other_nodes_is_told_of_where_it_is_one_process_a_node() -> None:
    layout = Layout(slots=2, shares=(1, 1), per_node=True)
    (trap,) = warned(ACCELERATE, layout, "accelerate", "launch", "train.py")
    assert trap.startswith("accelerate launch will let 2 nodes train apart without a word: ")
    assert warned(ACCELERATE, layout, "accelerate", "launch", "--multi-gpu", "train.py") == []


def test_deepspeed_without_a_hostfile_knows_one_node_only() -> None:
    layout = Layout(slots=4, shares=(2, 2), per_node=True)
    (trap,) = warned("import deepspeed", layout, "deepspeed", "train.py")
    assert "2 nodes will train apart" in trap
    assert warned("import deepspeed", layout, "deepspeed", "--hostfile", "hosts", "train.py") == []


def test_horovodrun_in_every_slot_is_told() -> None:
    (trap,) = warned(HOROVOD_TORCH, TWO, "horovodrun", "-np", "2", "python", "train.py")
    assert "leave it out" in trap
    assert warned(HOROVOD_TORCH, Layout(slots=2, shares=(2,), per_node=True), "horovodrun", "python", "train.py") == []


# Traps that Lightning sets


def test_a_lightning_trainer_without_a_strategy_is_told() -> None:
    assert warned(lightning()) == [
        "train.py, line 9: Trainer without a strategy trains alone, so 2 copies will train apart: "
        'give it strategy="ddp", devices=2, num_nodes=1.'
    ]


@pytest.mark.parametrize(
    "arguments", ["accelerator='cpu'", "devices=1", "devices='auto'", "devices=[0]", "num_nodes=1", "strategy='auto'"]
)
def test_a_trainer_that_comes_down_to_one_device_is_told(arguments: str) -> None:
    (trap,) = warned(lightning(arguments))
    assert "trains alone" in trap


@pytest.mark.parametrize(
    "arguments",
    [
        "strategy='ddp', devices=2",
        "strategy='ddp', devices=1, num_nodes=2",
        "devices=2",
        "devices=args.devices",
        "strategy=args.strategy, devices=args.devices",
        "**vars(args)",
        "accelerator='tpu'",
        "accelerator=args.accelerator",
    ],
)
def test_a_trainer_that_fits_or_may_fit_raises_no_alarm(arguments: str) -> None:
    assert warned(lightning(arguments)) == []


def test_a_trainer_takes_all_gpus_that_it_sees() -> None:
    assert warned(lightning(), TWO._replace(gpus_seen=2)) == []
    assert warned(lightning("devices=-1"), TWO._replace(gpus_seen=2)) == []
    assert len(warned(lightning("accelerator='cpu'"), TWO._replace(gpus_seen=2))) == 1


def test_lightning_in_unequal_shares_needs_each_slot_as_a_node() -> None:
    (trap,) = warned(lightning("strategy='ddp', devices=3"), THREE)
    assert "--slot-as-node" in trap
    assert "devices=1, num_nodes=3" in trap
    assert (
        warned(
            lightning("strategy='ddp', devices=1, num_nodes=3"),
            THREE._replace(sections={LightningOptions: LightningOptions(slot_as_node=True)}),
        )
        == []
    )


def test_lightning_that_asks_for_another_number_of_processes_is_told() -> None:
    (trap,) = warned(
        lightning("strategy='ddp', devices=4"), Layout(slots=4, shares=(2, 2))._replace(slots=6, shares=(3, 3))
    )
    assert "devices × num_nodes = 4, but there will be 6 processes: give it devices=3, num_nodes=2" in trap


@pytest.mark.parametrize("name", ["pytorch_lightning", "lightning.pytorch", "lightning"])
def test_lightning_is_known_under_all_its_names(name: str) -> None:
    assert len(warned(f"from {name} import Trainer as T\nT(max_epochs=1).fit(model)\n")) == 1


def test_a_trainer_of_somebody_else_is_none_of_lightnings() -> None:
    assert warned("import lightning\nfrom mine import Trainer\nTrainer().fit(model)\n") == []


# Traps: what the shim mends


def test_keras_three_fit_without_the_shim_is_told() -> None:
    (trap,) = warned(MULTI_WORKER_KERAS, BARE)
    assert "leave out --no-shim" in trap
    assert "TF_USE_LEGACY_KERAS=1" in trap
    assert warned(MULTI_WORKER_LOOP, BARE) == []


@pytest.mark.parametrize("text", [MULTI_WORKER_KERAS, PARAMETER_SERVER_KERAS])
def test_with_the_legacy_keras_there_is_no_trap(text: str) -> None:
    assert warned(text, BARE, environ={"TF_USE_LEGACY_KERAS": "1"}) == []
    assert warned("import os\nos.environ['TF_USE_LEGACY_KERAS'] = 'True'\n" + text, BARE) == []
    legacy = "import tf_keras\n" + text.replace("tf.keras", "tf_keras")
    assert warned(legacy, BARE) == []


def test_keras_three_fit_with_parameter_servers_is_told_even_with_the_shim() -> None:
    (trap,) = warned(PARAMETER_SERVER_KERAS)
    assert "cannot train with model.fit under ParameterServerStrategy" in trap
    assert "ClusterCoordinator" in trap


def test_jax_without_arguments_and_without_the_shim_is_told() -> None:
    (trap,) = warned(JAX_TOGETHER, BARE)
    assert "jax.distributed.initialize() does not find the number of processes" in trap
    assert trap.startswith("train.py, line ")


@pytest.mark.parametrize("arguments", ["address, 2, 0", "num_processes=2, process_id=0", "**settings"])
def test_jax_with_arguments_needs_no_shim(arguments: str) -> None:
    assert warned(JAX_TOGETHER.replace("initialize()", f"initialize({arguments})"), BARE) == []


def test_mpi4py_without_the_shim_is_told() -> None:
    (trap,) = warned(MPI4PY, BARE)
    assert "python -m mpi4py" in trap
    assert warned(MPI4PY, BARE, "mpirun", "python", "-m", "mpi4py", "train.py") == []
    assert warned(MPI4PY + "\ncomm.Abort(1)\n", BARE) == []


@pytest.mark.parametrize(
    "text", [TORCH_ALONE, TORCH_SPAWN, KERAS_ALONE, MIRRORED, FLAX, lightning(), PARAMETER_SERVER_KERAS, MPI4PY]
)
def test_every_trap_is_one_sentence_with_a_way_out(text: str) -> None:
    (trap,) = warned(text, BARE)
    assert trap.endswith(".")
    assert not dedent(trap).count("\n")
    assert ": " in trap


def test_a_script_that_reads_tf_config_gets_one_even_when_it_is_alone() -> None:
    reads = detect({"train.py": "import os, json\nimport tensorflow as tf\njson.loads(os.environ['TF_CONFIG'])\n"})
    sets = detect({"train.py": "import os\nimport tensorflow as tf\nos.environ['TF_CONFIG'] = '{}'\n"})
    assert joins(reads)
    assert not joins(sets)
