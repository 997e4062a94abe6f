"""`pumasi run --on k8s` as a user sees it, on a real cluster with 5, 3 and 2 GPUs."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
from pathlib import Path

import pytest

from pumasi.pools.kubernetes.manifests import WORK
from tests.cluster import breaking
from tests.cluster.objects import SLEEPER, claim, gpus, on, pod, python
from tests.cluster.place import Place, kubeconfig_of, make_volume
from tests.cluster.subject import GPU, Kubernetes, Namespace, Refused
from tests.harness import Workplace, wait_for

pytestmark = pytest.mark.own

TABLE = """
import json, os
print(json.dumps([os.environ["PUMASI_NODE"], int(os.environ["PUMASI_RANK"]), int(os.environ["PUMASI_WORLD_SIZE"])]))
"""
WAIT = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def place(workplace: Workplace, shared_namespace: Namespace) -> Place:
    return Place(workplace, shared_namespace)


@pytest.fixture
def own_place(workplace: Workplace, namespace: Namespace) -> Place:
    """Where the test is alone with what it makes."""
    return Place(workplace, namespace)


# ---- what runs, and where


def test_one_process_runs_as_an_ordinary_user_in_a_pod_without_a_token(place: Place) -> None:
    place.script("""
        import os
        print(os.getuid(), os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount"), open(__file__).name)
        print([name for name in os.environ if "BOOT" in name or "SECRET" in name])
    """)
    done = place.train("train.py")
    assert done.stdout.splitlines()[0].startswith(f"1000 False {WORK}/train.py")
    assert done.stdout.splitlines()[1] == "[]"
    spec = place.pod_of(place.last()["id"])["spec"]
    assert "volumes" not in spec
    assert spec["automountServiceAccountToken"] is False


def test_six_gpus_are_five_here_and_one_there_with_the_chief_where_there_is_one(own_place: Place) -> None:
    """The second time too, right after the first: what has just ended holds nothing."""
    own_place.script(TABLE)
    for _ in range(2):
        done = own_place.train("--gpus", "6", "--no-wait", "train.py")
        rows = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines()]
        assert sorted(rows, key=lambda row: row[1]) == [
            ["node-1", 0, 6],
            *(["node-0", rank, 6] for rank in range(1, 6)),
        ]
    limits = {
        each["spec"]["nodeName"]: each["spec"]["containers"][0]["resources"]["limits"][GPU] for each in own_place.pods()
    }
    assert limits == {"node-0": "5", "node-1": "1"}


def test_the_exit_code_of_a_gang_is_that_of_its_outcome(place: Place) -> None:
    place.script("import os, sys; sys.exit(3 if os.environ['PUMASI_RANK'] == '1' else 0)")
    done = place.run("--slots", "2", "--max-per-node", "1", "train.py")
    assert done.returncode == 1
    assert place.outcome()["code"] == 3


# ---- code


def test_modules_beside_the_script_travel_and_what_git_ignores_does_not(place: Place) -> None:
    place.script("GREETING = 'from a module'", "beside.py")
    (place.folder / ".gitignore").write_text("*.secret\nout/\n")
    (place.folder / "key.secret").write_text("no")
    (place.folder / "out").mkdir()
    (place.folder / "out" / "model").write_text("no")
    place.script("import beside, os; print(beside.GREETING, sorted(set(os.listdir('.')) - {'__pycache__'}))")
    assert place.train("train.py").stdout == "from a module ['.gitignore', 'beside.py', 'train.py']\n"


def test_larger_code_travels_in_a_volume(place: Place) -> None:
    data = os.urandom(2_200_000)
    (place.folder / "data.bin").write_bytes(data)
    place.script("import hashlib; print(hashlib.sha256(open('data.bin', 'rb').read()).hexdigest())")
    assert place.train("train.py").stdout.strip() == hashlib.sha256(data).hexdigest()
    volumes = place.pod_of(place.last()["id"])["spec"]["volumes"]
    assert [volume["name"] for volume in volumes] == ["code"]


def test_code_that_is_too_large_is_refused_before_anything_is_made(own_place: Place) -> None:
    own_place.script("print('never')")
    (own_place.folder / "data.bin").write_bytes(os.urandom(4_000_000))
    done = own_place.run("train.py")
    assert done.returncode == 2
    assert "data.bin" in done.stderr
    assert own_place.names("jobs,configmaps,pods") == []


def test_credentials_stay_here_and_the_code_is_nothing_that_viewers_can_read(place: Place) -> None:
    place.script("import os; print(sorted(os.listdir('.')))")
    (place.folder / ".env").write_text("TOKEN=s3cret")
    (place.folder / "users").symlink_to("/etc/passwd")
    done = place.train("train.py")
    assert done.stdout == "['train.py']\n"
    assert "look like credentials: .env. " in done.stderr
    assert "lead out of the folder: users. " in done.stderr
    run = place.last()["id"]
    assert "configMap" not in json.dumps(place.pod_of(run)["spec"])
    assert f"secret/{run}-code" in place.names("secrets")
    place.namespace.kubectl("create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer")
    assert place.namespace.get("configmap", run, "--as=viewer")
    with pytest.raises(Refused, match="cannot get"):
        place.namespace.kubectl("get", "secret", f"{run}-code", "--as=viewer")


# ---- what can be asked for


def test_variables_come_from_flags_and_secrets(place: Place) -> None:
    place.namespace.kubectl("create", "secret", "generic", "hub", "--from-literal=token=s3cret", "--from-literal=A=b")
    place.script("import os; print([os.environ.get(name) for name in ('LR', 'TOKEN', 'A', 'token')])")
    words = ("--env", "LR=0.1", "--env-from-secret", "hub", "--env-from-secret", "TOKEN=hub/token")
    assert place.train(*words, "train.py").stdout == "['0.1', 's3cret', 'b', 's3cret']\n"


def test_a_volume_is_mounted_can_be_written_and_holds_the_checkpoints(own_place: Place) -> None:
    make_volume(own_place.namespace, "data")
    own_place.script("""
        import os
        folder = os.environ["PUMASI_CHECKPOINT_DIR"]
        print(folder.startswith("/data/pumasi/"))
        open(os.path.join(folder, "model"), "w").write("weights")
        print(os.listdir(folder), os.access("/data", os.W_OK))
    """)
    done = own_place.train("--mount", "data:/data", "train.py")
    assert done.stdout == "True\n['model'] True\n"
    cluster = own_place.namespace.cluster
    cluster.kubectl("label", "namespace", own_place.namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    for line in [line for line in done.stderr.splitlines() if line.startswith("  kubectl ")]:
        *words, last = shlex.split(line)[1:]
        fetched = own_place.folder / "fetched"
        cluster.kubectl(*words, str(fetched) if last.endswith("-checkpoints") else last)
    assert (fetched / "model").read_text() == "weights"
    own_place.script("import os; print(os.access('/data', os.W_OK), os.listdir('/data'))")
    assert own_place.train("--mount", "data:/data:ro", "train.py").stdout == "False ['pumasi']\n"


def test_resources_labels_selectors_and_changes_stand_in_the_pod(place: Place, kubernetes: Kubernetes) -> None:
    place.script("print('here')")
    with breaking.tainted(kubernetes, "node-2", "only=me:NoSchedule"):
        place.train(
            *("--memory", "64Mi", "--cpus", "0.05", "--label", "team=vision", "--annotation", "example.com/note=a b"),
            *("--node-selector", "kubernetes.io/hostname=node-2", "--toleration", "only=me:NoSchedule"),
            *("--set", "spec.hostname=renamed"),
            *("--priority-class", "system-cluster-critical", "--slots", "2", "train.py"),
        )
    made = place.pod_of(place.last()["id"])
    container = made["spec"]["containers"][0]
    assert made["spec"]["nodeName"] == "node-2"
    assert made["spec"]["priorityClassName"] == "system-cluster-critical"
    assert made["spec"]["hostname"] == "renamed"
    assert made["metadata"]["labels"]["team"] == "vision"
    assert made["metadata"]["annotations"]["example.com/note"] == "a b"
    assert container["resources"] == {
        "requests": {"memory": "128Mi", "cpu": "100m"},
        "limits": {"memory": "128Mi"},
    }


def test_a_namespace_with_the_strictest_pod_security_takes_our_pods(own_place: Place, kubernetes: Kubernetes) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    kubernetes.kubectl("label", "namespace", own_place.namespace.name, label)
    own_place.namespace.create(claim("data"))
    own_place.script("import getpass, os; print(getpass.getuser(), os.access(os.environ['HOME'], os.W_OK))")
    done = own_place.train("--slots", "2", "--max-per-node", "1", "train.py")
    assert sorted(done.stdout.splitlines()) == ["[0] pumasi True", "[1] pumasi True"]
    own_place.train("--mount", "data:/data", "train.py")


# ---- waiting


def test_two_runs_for_the_last_gpus_run_one_after_the_other(own_place: Place) -> None:
    """However their race went: the one that lost it learns who holds what it needs."""
    own_place.script(WAIT)
    racers = [own_place.start("--gpus", "8", "--name", "racer", "--grace", "1", "train.py") for _ in range(2)]
    own_place.wait_for_output("ready", 8)
    loser = id_of_one_that_waits(own_place, "racer", "for 8 GPUs (2 free): 8 in use by racer-")
    (winner,) = {pod["metadata"]["labels"]["pumasi.dev/run"] for pod in own_place.pods(living=True)}
    assert winner != loser
    assert own_place.pumasi("stop", winner).returncode == 0
    own_place.wait_for_output("ready", 16)
    assert {pod["metadata"]["labels"]["pumasi.dev/run"] for pod in own_place.pods(living=True)} == {loser}
    assert own_place.pumasi("stop", loser).returncode == 0
    ends = [process.communicate(timeout=120) for process in racers]
    assert [process.returncode for process in racers] == [5, 5], ends


def test_of_two_that_wait_the_older_runs_first_whatever_its_namespace(place: Place, own_place: Place) -> None:
    """Both say who holds what they need, and the younger one that another is before it."""
    own_place.script(WAIT)
    own_place.script("print('done')", "short.py")
    holder = own_place.start("--gpus", "8", "--name", "holder", "--grace", "1", "train.py")
    own_place.wait_for_output("ready", 8)
    older = place.start("--gpus", "8", "--name", "older", "short.py")
    older_id = id_of_one_that_waits(place, "older")
    younger = own_place.start("--gpus", "8", "--name", "younger", "short.py")
    younger_id = id_of_one_that_waits(own_place, "younger")
    assert own_place.pumasi("stop", "holder").returncode == 0
    ends = [process.communicate(timeout=120) for process in (holder, older, younger)]
    assert [holder.returncode, older.returncode, younger.returncode] == [5, 0, 0], ends
    (_, first_said), (_, second_said) = ends[1:]
    assert f"waiting for 8 GPUs (2 free): 8 in use by {own_place.namespace.name}/holder-" in first_said
    assert "waiting for 8 GPUs (2 free): 8 in use by holder-" in second_said
    assert "; 1 run before this one." in second_said
    first = place.namespace.get("configmap", older_id)["metadata"]
    second = own_place.namespace.get("configmap", younger_id)["metadata"]
    assert float(first["annotations"]["pumasi.dev/started"]) < float(second["annotations"]["pumasi.dev/started"])
    anchors = (place.namespace.get("job", older_id), own_place.namespace.get("job", younger_id))
    assert not any("pumasi.dev/waiting" in each["metadata"]["labels"] for each in anchors)


def id_of_one_that_waits(place: Place, name: str, saying: str = '"waiting"') -> str:
    """When it has found no room."""

    def waiting() -> str:
        anchors = place.namespace.get("jobs", "-l", "pumasi.dev/waiting=yes")["items"]
        records = place.namespace.get("configmaps", "-l", "pumasi.dev/kind=record")["items"]
        told = {each["metadata"]["name"]: each["data"]["events.json"] for each in records}
        waits = [each["metadata"]["name"] for each in anchors if each["metadata"]["name"].startswith(name)]
        return next((run for run in waits if saying in told.get(run, "")), "")

    return str(wait_for(waiting, f"{name} to wait"))


def test_a_run_that_waits_holds_nothing_and_says_what_for(own_place: Place) -> None:
    own_place.namespace.create(pod("holder", python(SLEEPER, resources=gpus(4)), **on("node-0")))
    own_place.namespace.wait_for_phase("holder", "Running")
    own_place.script("print('at last')")
    process = own_place.start("--gpus", "7", "train.py")
    assert process.stderr is not None
    said = wait_for(process.stderr.readline, "what it says")
    while "waiting" not in said:
        said = process.stderr.readline()
    assert "7" in said
    assert "6" in said
    assert own_place.pods() == []
    own_place.namespace.kubectl("delete", "pod", "holder", "--grace-period=1")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("at last") == 7


def test_who_does_not_want_to_wait_is_told_at_once(own_place: Place) -> None:
    own_place.namespace.create(pod("holder", python(SLEEPER, resources=gpus(5)), **on("node-0")))
    own_place.namespace.wait_for_phase("holder", "Running")
    own_place.script("print('never')")
    done = own_place.run("--gpus", "6", "--no-wait", "train.py")
    assert done.returncode == 1
    assert "5" in done.stderr
    assert own_place.pods() == []


def test_what_never_fits_says_what_is_missing(own_place: Place) -> None:
    own_place.script("print('never')")
    done = own_place.run("--gpus", "11", "train.py")
    assert done.returncode == 2
    assert "11 slots do not fit: 10 are free on 3 nodes, so 1 is missing" in done.stderr
    wait_for(lambda: own_place.names("jobs,configmaps,pods") == [], "the run's objects to go")


# ---- ends


def test_two_interrupts_end_it_within_its_grace_and_leave_nothing_that_runs(own_place: Place) -> None:
    own_place.script("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT)
    process = own_place.start("--gpus", "6", "--grace", "5", "train.py")
    own_place.wait_for_output("ready", 6)
    process.send_signal(signal.SIGINT)
    own_place.wait_until_ending()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    own_place.wait_until_free()
    wait_for(lambda: not own_place.namespace.living_containers(), "the last container to end")


def test_an_interrupt_while_it_starts_leaves_nothing(own_place: Place) -> None:
    own_place.script(WAIT)
    process = own_place.start("--gpus", "6", "train.py")
    wait_for(lambda: own_place.pods(), "the first pod")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    own_place.wait_until_free()


def test_everything_is_owned_by_the_run_and_goes_with_its_job(own_place: Place) -> None:
    own_place.script(WAIT)
    process = own_place.start("--gpus", "6", "train.py")
    own_place.wait_for_output("ready", 6)
    run = own_place.last()["id"]
    kinds = "jobs,configmaps,secrets,services,pods"
    made = sorted(name.partition("/")[0] for name in own_place.names(kinds))
    assert made == ["configmap", "job.batch", "pod", "pod", "secret", "secret"]
    own_place.namespace.kubectl("delete", "job", run)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert f"{run} was lost after" in err
    assert "Somebody deleted it in the cluster." in err
    wait_for(lambda: not own_place.names(kinds), "the end of all that it owned")


def test_pods_that_have_ended_are_kept_for_their_logs(own_place: Place) -> None:
    own_place.script("print('kept')")
    own_place.train("--gpus", "6", "train.py")
    wait_for(lambda: not own_place.pods(living=True), "the cluster to see that they have ended")
    assert [each["status"]["phase"] for each in own_place.pods()] == ["Succeeded", "Succeeded"]
    logs = "".join(own_place.namespace.logs(each["metadata"]["name"]) for each in own_place.pods())
    assert logs.count("|kept") == 6


def test_all_lines_of_all_ranks_are_in_the_log_once_and_in_order(place: Place) -> None:
    place.script("for number in range(20_000): print('line', number)")
    place.train("--slots", "3", "--max-per-node", "2", "--name", "many", "train.py")
    run = place.last()["id"]
    for rank in range(3):
        logs = place.pumasi("logs", run, "--rank", str(rank)).stdout
        assert logs == "".join(f"line {number}\n" for number in range(20_000))


# ---- with few rights


def test_who_may_not_see_the_nodes_gets_one_slot_a_pod_all_or_nothing(own_place: Place, tmp_path: Path) -> None:
    namespace = own_place.namespace
    namespace.kubectl("create", "serviceaccount", "user")
    namespace.kubectl(
        *("create", "rolebinding", "user", "--clusterrole=edit", f"--serviceaccount={namespace.name}:user")
    )
    own_place.environ["KUBECONFIG"] = str(kubeconfig_of(namespace, "user", tmp_path))
    own_place.script("print('hello')")
    done = own_place.train("--gpus", "6", "train.py")
    assert done.stdout.count("hello") == 6
    assert done.stderr.count("You may not list the nodes and pods of this cluster") == 1
    assert len(own_place.pods()) == 6

    done = own_place.run("--gpus", "11", "--no-wait", "train.py")
    assert done.returncode == 1
    assert "too little nvidia.com/gpu free" in done.stderr
    assert [each for each in own_place.pods() if each["status"]["phase"] != "Succeeded"] == []
