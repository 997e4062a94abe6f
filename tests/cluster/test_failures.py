"""What goes wrong on a real cluster: one sentence that says who, where, why and what to do; an exit code; nothing left
that holds a GPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from subprocess import Popen

import pytest

from pumasi.errors import DoesNotFit
from tests.cluster import breaking
from tests.cluster.objects import SLEEPER, gpus, on, pod, python
from tests.cluster.place import Done, Place, kubeconfig_of
from tests.cluster.subject import Kubernetes, Namespace
from tests.harness import Workplace, wait_for

pytestmark = pytest.mark.own

WAIT = "import time; print('ready', flush=True); time.sleep(600)"
AGAIN = """
import os, sys, time
print("ready", os.environ["PUMASI_ATTEMPT"], os.environ["PUMASI_NODE"], flush=True)
time.sleep(600 if os.environ["PUMASI_ATTEMPT"] == "0" else 0)
"""
FAILED, LOST, STOPPED, TROUBLE = 1, 3, 5, 7


@pytest.fixture
def place(workplace: Workplace, namespace: Namespace) -> Place:
    return Place(workplace, namespace)


def assert_told(place: Place, done: Done, code: int, sentence: str) -> None:
    """The sentence is the run's last word, and the only one of its kind; and everything is free again."""
    assert done.returncode == code, done.stderr
    found = re.findall(sentence, done.stderr)
    assert len(found) == 1, done.stderr
    place.wait_until_free()


def finish(process: Popen[str], seconds: float = 120) -> Done:
    out, err = process.communicate(timeout=seconds)
    return Done(process.args, process.returncode, out, err)


def next_line(process: Popen[str]) -> str:
    """Of what pumasi itself says."""
    assert process.stderr is not None
    return process.stderr.readline()


# ---- what can't start


def test_an_image_that_cannot_be_pulled(place: Place) -> None:
    place.script("print('never')")
    done = place.run("--gpus", "6", "--image", "example.invalid/nothing:1", "train.py")
    told = r"The image example\.invalid/nothing:1 can't be pulled: .*\n  Check the image's name"
    assert_told(place, done, FAILED, told)


def test_an_image_without_the_python_that_is_asked_for(place: Place) -> None:
    place.script("print('never')")
    done = place.run("--gpus", "6", "--python", "/no/such/python", "train.py")
    assert_told(place, done, FAILED, r"The image python:3\.12-slim has no /no/such/python\.\n  --python is the place")


def test_a_volume_claim_that_does_not_exist(place: Place) -> None:
    place.script("print('never')")
    done = place.run("--gpus", "6", "--mount", "nothing:/data", "train.py")
    assert_told(place, done, FAILED, r'persistentvolumeclaim "nothing" not found')
    assert f"-n {place.namespace.name} get pvc" in done.stderr


def test_a_secret_that_does_not_exist(place: Place) -> None:
    place.script("print('never')")
    done = place.run("--gpus", "6", "--env-from-secret", "nothing", "train.py")
    assert_told(place, done, FAILED, r'secret "nothing" not found')


def test_pod_security_that_does_not_take_the_pods(place: Place, kubernetes: Kubernetes) -> None:
    kubernetes.kubectl("label", "namespace", place.namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    place.script("print('never')")
    done = place.run("--gpus", "6", "--as-image-user", "train.py")
    assert_told(
        place, done, FAILED, r"The cluster does not take the pods: .*violates PodSecurity.*\n  Without --as-image-user"
    )


def test_a_quota_that_can_never_be_met(place: Place) -> None:
    """Each of its two pods could be, but not both."""
    place.namespace.kubectl("create", "quota", "few", "--hard=requests.nvidia.com/gpu=5,pods=1")
    place.script("print('never')")
    done = place.run("--gpus", "6", "train.py")
    asked, given = "pods=2, requests.nvidia.com/gpu=6 in all", "pods=1, requests.nvidia.com/gpu=5"
    sentence = f"The quota few does not allow it: requested {asked}, limited to {given}"
    assert_told(place, done, DoesNotFit.exit_code, rf"{sentence}\.\n  Ask for less, or have the quota raised")
    wait_for(lambda: not place.names("jobs,configmaps,secrets,services,pods"), "nothing to be left")


def test_a_quota_that_others_use_up_is_waited_for(place: Place) -> None:
    place.namespace.kubectl("create", "quota", "few", "--hard=requests.nvidia.com/gpu=6")
    place.namespace.create(pod("other", python(SLEEPER, resources=gpus(1)), **on("node-2")))
    place.namespace.wait_for_phase("other", "Running")
    place.script("print('at last')")
    process = place.start("--gpus", "6", "train.py")
    wait_for(lambda: "waiting: The quota few" in next_line(process), "it to wait")
    place.wait_until_free()
    place.namespace.kubectl("delete", "pod", "other", "--grace-period=1")
    done = finish(process)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("at last") == 6
    assert place.names("services") == []


def test_a_user_who_may_create_no_pods(place: Place, tmp_path: Path) -> None:
    namespace = place.namespace
    namespace.kubectl("create", "serviceaccount", "user")
    namespace.kubectl(
        *("create", "role", "some", "--verb=*", "--resource=configmaps,jobs.batch,secrets,services"),
    )
    namespace.kubectl("create", "role", "see", "--verb=get,list,watch", "--resource=pods")
    for role in ("some", "see"):
        account = f"--serviceaccount={namespace.name}:user"
        namespace.kubectl("create", "rolebinding", role, f"--role={role}", account)
    place.environ["KUBECONFIG"] = str(kubeconfig_of(namespace, "user", tmp_path))
    place.script("print('never')")
    done = place.run("--gpus", "2", "train.py")
    assert_told(place, done, FAILED, r"The cluster does not take the pods: .*cannot create resource \"pods\"")


def test_a_user_who_may_do_nothing(place: Place, tmp_path: Path) -> None:
    place.namespace.kubectl("create", "serviceaccount", "user")
    place.environ["KUBECONFIG"] = str(kubeconfig_of(place.namespace, "user", tmp_path))
    place.script("print('never')")
    done = place.run("train.py")
    assert_told(place, done, TROUBLE, r"The cluster does not allow it: .*cannot create resource \"jobs\"")
    assert place.names("jobs,configmaps") == []


def test_a_pod_that_never_comes(place: Place) -> None:
    """What it wants to mount is not there: Kubernetes tries again for ever."""
    place.script("print('never')")
    volume = 'spec.volumes[+]={"name": "no", "configMap": {"name": "nothing"}}'
    mount = 'spec.containers[0].volumeMounts[+]={"name": "no", "mountPath": "/no"}'
    done = place.run("--gpus", "6", "--start-timeout", "20s", "--set", volume, "--set", mount, "train.py")
    sentence = r'The gang was not whole in time: the pod on node-1 did not start: .*configmap "nothing" not found'
    assert_told(place, done, LOST, sentence + r"\.\n  --start-timeout gives it more time")


@pytest.mark.parametrize(
    "change",
    ["spec.volumes[7].name=x", "metadata.name=x", "spec.restartPolicy=Always", "spec.nodeName=node-9"],
)
def test_a_change_that_fits_no_pod_is_told_before_anything_is_made(place: Place, change: str) -> None:
    place.script("print('never')")
    done = place.run("--set", change, "train.py")
    assert done.returncode == 2
    assert f"--set {change}" in done.stderr
    assert place.names("jobs,configmaps,pods") == []
    assert place.pumasi("ps", "--json").stdout.strip() == "[]"


# ---- what ends while it runs


def test_a_rank_that_fails(place: Place) -> None:
    place.script("""
        import os, sys, time
        print("ready", flush=True)
        if os.environ["PUMASI_RANK"] == "3":
            sys.exit("the loss is NaN")
        time.sleep(600)
    """)
    done = place.run("--gpus", "6", "train.py")
    assert_told(
        place, done, FAILED, r"Rank 3 on node-0 failed first, with exit code 1\.\n(  \| .*\n)*  \| the loss is NaN"
    )


def test_memory_that_runs_out(place: Place) -> None:
    place.script("""
        import os, time
        eaten = []
        while os.environ["PUMASI_RANK"] == "1":
            eaten.append(bytearray(8 << 20))
        time.sleep(600)
    """)
    done = place.run("--slots", "2", "--max-per-node", "1", "--memory", "64Mi", "train.py")
    assert_told(
        place, done, LOST, r"memory ran out\.\n(?:  \|.*\n)*  Each slot may use 64Mi: raise it, as in --memory 128Mi"
    )


@pytest.mark.parametrize("node", ["node-0", "node-1"], ids=["member", "chief"])
def test_an_agent_that_is_killed(place: Place, node: str) -> None:
    place.script(WAIT)
    process = place.start("--gpus", "6", "train.py")
    place.wait_for_output("ready", 6)
    os.kill(agent_in(place, pod_on(place, node)), signal.SIGKILL)
    assert_told(place, finish(process), LOST, rf"Node {node} was lost: its agent was killed\.\n  --restarts N")


def agent_in(place: Place, pod: str) -> int:
    """The container's first process."""
    (pid,) = [pid for pid in place.namespace.processes(pod) if _number_inside(pid) == "1"]
    return pid


def _number_inside(pid: int) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    return status.partition("NSpid:")[2].splitlines()[0].split()[-1]


def pod_on(place: Place, node: str) -> str:
    (name,) = [each["metadata"]["name"] for each in place.pods(living=True) if each["spec"]["nodeName"] == node]
    return str(name)


def node_beside(place: Place, chief: str) -> str:
    """One that the gang uses too."""
    return next(str(each["spec"]["nodeName"]) for each in place.pods(living=True) if each["spec"]["nodeName"] != chief)


# ---- what is nobody's failure


def test_an_evicted_gang_starts_again_though_no_restarts_were_asked_for(place: Place) -> None:
    place.script(AGAIN)
    process = place.start("--gpus", "6", "train.py")
    place.wait_for_output("ready 0", 6)
    breaking.evict(place.namespace, pod_on(place, "node-0"))
    done = finish(process)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("starting again (attempt 1): The pod on node-0 was evicted") == 1
    assert done.stdout.count("ready 1") == 6


def test_a_gang_on_a_drained_node_starts_again_elsewhere(place: Place, kubernetes: Kubernetes) -> None:
    place.script(AGAIN)
    process = place.start("--gpus", "3", "train.py")
    place.wait_for_output("ready 0 node-1", 3)
    with breaking.drained(kubernetes, "node-1"):
        done = finish(process)
    assert done.returncode == 0, done.stderr
    assert "starting again (attempt 1): The pod on node-1 was evicted" in done.stderr
    assert done.stdout.count("ready 1 node-0") == 3


def start_two_a_node(place: Place, silence: str) -> subprocess.Popen[str]:
    place.script(AGAIN)
    process = place.start("--gpus", "4", "--max-per-node", "2", "--silence", silence, "train.py")
    place.wait_for_output("ready 0", 4)
    return process


def test_a_gang_whose_node_is_lost_starts_again_without_it(place: Place, kubernetes: Kubernetes) -> None:
    process = start_two_a_node(place, silence="5")
    lost = node_beside(place, "node-1")
    with breaking.powered_off(kubernetes, lost):
        done = finish(process, 200)
        assert done.returncode == 0, done.stderr
        assert f"starting again (attempt 1): The pod on {lost} was lost: its node does not answer" in done.stderr
        second = [line for line in done.stdout.splitlines() if "ready 1" in line]
        assert len(second) == 4
        assert not [line for line in second if lost in line]
        wait_for(lambda: not place.pods(living=True), "the cluster to see that all have ended")


def test_a_single_pod_whose_node_is_lost_starts_again_elsewhere_soon(place: Place, kubernetes: Kubernetes) -> None:
    """The cluster takes up to 20 s to see that the node is gone, and 30 more to take the pod away by itself."""
    place.script(AGAIN)
    process = place.start("--gpus", "4", "--silence", "3", "train.py")
    place.wait_for_output("ready 0 node-0", 4)
    with breaking.powered_off(kubernetes, "node-0"):
        done = finish(process)
    assert done.returncode == 0, done.stderr
    assert "node-0 does not answer (NotReady); in 3 s the run starts again elsewhere." in done.stderr
    assert "starting again (attempt 1): The pod on node-0 was lost: its node does not answer" in done.stderr
    assert len(re.findall("ready 1 node-[12]", done.stdout)) == 4


def test_a_gang_whose_node_restarts_starts_again_free_of_charge(place: Place, kubernetes: Kubernetes) -> None:
    process = start_two_a_node(place, silence="30")
    node = node_beside(place, "node-1")
    with breaking.powered_off(kubernetes, node):
        pass
    done = finish(process, 200)
    assert done.returncode == 0, done.stderr
    assert f"starting again (attempt 1): The pod on {node} was lost: its node has restarted" in done.stderr


# ---- when the one who steers is cut off


AWAY = 60.0
COUNT = """
import time
for number in range(SECONDS * 10):
    print(number, flush=True)
    time.sleep(0.1)
"""


def test_an_api_server_that_is_away_costs_neither_the_run_nor_a_line(place: Place, kubernetes: Kubernetes) -> None:
    place.script(COUNT.replace("SECONDS", "80"))
    process = place.start("--slots", "2", "--max-per-node", "1", "train.py")
    place.wait_for_output("|20\n", 2)
    with breaking.killed(kubernetes, "control", "kube-apiserver"):
        wait_for(lambda: "can't be reached" in next_line(process), "it to notice")
        time.sleep(AWAY)
    done = finish(process)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        mine = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [str(number) for number in range(800)]


def test_a_token_that_is_not_taken_any_more_leaves_the_run_running(place: Place, tmp_path: Path) -> None:
    namespace = place.namespace
    namespace.kubectl("create", "serviceaccount", "user")
    namespace.kubectl(
        *("create", "rolebinding", "user", "--clusterrole=edit", f"--serviceaccount={namespace.name}:user")
    )
    admin = place.environ["KUBECONFIG"]
    place.environ["KUBECONFIG"] = str(kubeconfig_of(namespace, "user", tmp_path))
    place.script(WAIT)
    process = place.start("--gpus", "2", "train.py")
    place.wait_for_output("ready", 2)
    namespace.kubectl("delete", "serviceaccount", "user")
    done = finish(process, 90)
    assert done.returncode == TROUBLE, done.stderr
    assert done.stderr.count("does not know who you are") == 1
    assert "log in again" in done.stderr
    assert [each["status"]["phase"] for each in place.pods()] == ["Running", "Running"]
    place.environ["KUBECONFIG"] = admin
    namespace.kubectl("delete", "jobs", "--all")
    place.wait_until_free()


def test_a_gang_whose_terminal_was_killed_goes_on_and_ends_by_itself_when_one_fails(
    place: Place, kubernetes: Kubernetes
) -> None:
    place.script(WAIT.replace("600", "30") + "; import os, sys; os.environ['PUMASI_RANK'] == '1' and sys.exit('bad')")
    process = place.start("--gpus", "6", "train.py")
    place.wait_for_output("ready", 6)
    process.kill()
    process.communicate()
    assert len(place.pods(living=True)) == 2
    wait_for(lambda: not place.pods(living=True), "the gang to end itself", 120)
    assert [each["status"]["phase"] for each in place.pods()] == ["Failed", "Failed"]
    wait_for(lambda: not place.namespace.living_containers(), "its last container to end")
