from __future__ import annotations

import json

import pytest

from tests.cluster.objects import (
    SLEEPER,
    claim,
    gpus,
    headless_service,
    on,
    pod,
    python,
    service,
    volume_of,
)
from tests.cluster.subject import GPU, Kubernetes, Namespace, Refused
from tests.harness import wait_for

# Greets every peer by name, and stays until every peer has greeted it.
GREETER = """
import json, os, socket, threading, time

own, node, count = int(os.environ["JOB_COMPLETION_INDEX"]), os.environ["NODE"], 3
server = socket.create_server(("", 9000))
greeted = threading.Semaphore(0)

def answer():
    while True:
        peer, _ = server.accept()
        with peer:
            peer.sendall(f"{own} {node}".encode())
        greeted.release()

def ask(name):
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((name, 9000), 5) as peer:
                return peer.makefile().read().split()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

threading.Thread(target=answer, daemon=True).start()
print(json.dumps([ask(f"greeters-{index}.peers") for index in range(count)]))
for _ in range(count):
    assert greeted.acquire(timeout=60)
"""


def greeters() -> dict[str, object]:
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"app": "greeters"}},
    }
    template = {
        "metadata": {"labels": {"app": "greeters"}},
        "spec": {
            "restartPolicy": "Never",
            "subdomain": "peers",
            "topologySpreadConstraints": [spread],
            "containers": [python(GREETER, env=[node])],
        },
    }
    spec = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "greeters"}, "spec": spec}


def test_an_indexed_job_spread_over_the_nodes_finds_its_peers_by_name(namespace: Namespace) -> None:
    namespace.create(headless_service("peers", {"app": "greeters"}), greeters())
    namespace.kubectl("wait", "--for=condition=Complete", "job/greeters", "--timeout=120s", seconds=130)
    pods = namespace.get("pods", "-l", "app=greeters")["items"]
    where = {int(each["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]): each for each in pods}
    expected = [[str(index), where[index]["spec"]["nodeName"]] for index in range(3)]
    for each in pods:
        assert json.loads(namespace.logs(each["metadata"]["name"])) == expected
    assert len({node for _, node in expected}) == min(3, len(namespace.cluster.open_nodes()))


def test_a_pod_that_wants_more_gpus_than_a_node_has_stays_pending_and_is_told_why(namespace: Namespace) -> None:
    namespace.create(pod("greedy", python(SLEEPER, resources=gpus(1000))))

    def reasons() -> list[str]:
        conditions = namespace.pod("greedy")["status"].get("conditions", [])
        return [each["message"] for each in conditions if each.get("reason") == "Unschedulable"]

    [message] = wait_for(reasons, "the scheduler's refusal")
    assert f"Insufficient {GPU}" in message
    assert namespace.phase("greedy") == "Pending"


@pytest.mark.own
def test_gpus_are_taken_by_a_pod_and_given_back_when_it_ends(namespace: Namespace) -> None:
    namespace.create(pod("first", python(SLEEPER, resources=gpus(5))))
    namespace.wait_for_phase("first", "Running")
    namespace.create(pod("second", python("print('my turn')", resources=gpus(5))))
    wait_for(lambda: namespace.get("events", "--field-selector=reason=FailedScheduling")["items"], "a refusal")
    assert namespace.phase("second") == "Pending"
    namespace.kubectl("delete", "pod", "first")
    namespace.wait_for_phase("second", "Succeeded")


def test_a_claim_is_bound_and_keeps_what_any_user_has_written(namespace: Namespace) -> None:
    namespace.create(claim("shelf"))
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    writer = python("open('/data/note', 'w').write('kept')", **mount, securityContext={"runAsUser": 1000})
    namespace.create(pod("writer", writer, **volume_of("shelf")))
    namespace.wait_for_phase("writer", "Succeeded")
    assert namespace.get("pvc", "shelf")["status"]["phase"] == "Bound"
    namespace.kubectl("delete", "pod", "writer")
    namespace.create(pod("reader", python("print(open('/data/note').read())", **mount), **volume_of("shelf")))
    namespace.wait_for_phase("reader", "Succeeded")
    assert namespace.logs("reader") == "kept\n"


# Says what the API answers to this pod's own token.
ASKER = """
import json, os, ssl, urllib.error, urllib.request

account = "/var/run/secrets/kubernetes.io/serviceaccount"
token, namespace = open(f"{account}/token").read(), open(f"{account}/namespace").read()
trust = ssl.create_default_context(cafile=f"{account}/ca.crt")

def ask(path, token=token):
    server = f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/{path}"
    request = urllib.request.Request(server, headers={"Authorization": f"Bearer {token}"})
    try:
        return urllib.request.urlopen(request, context=trust, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code

print(json.dumps([ask("pods"), ask("secrets"), ask("pods", token="wrong")]))
"""


def test_a_pod_reaches_the_api_with_its_token_and_is_refused_what_its_role_does_not_allow(namespace: Namespace) -> None:
    namespace.kubectl("create", "serviceaccount", "reader")
    namespace.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    account = f"--serviceaccount={namespace.name}:reader"
    namespace.kubectl("create", "rolebinding", "reader", "--role=reader", account)
    namespace.create(pod("asker", python(ASKER), serviceAccountName="reader"))
    namespace.wait_for_phase("asker", "Succeeded", "Failed")
    assert json.loads(namespace.logs("asker")) == [200, 403, 401]


def test_a_service_is_reached_from_its_own_node_and_from_another(namespace: Namespace, kubernetes: Kubernetes) -> None:
    nodes = kubernetes.open_nodes()[:2]
    server = pod(
        "web", python("import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"), **on(nodes[0])
    )
    server["metadata"]["labels"] = {"app": "web"}
    namespace.create(server, service("web", {"app": "web"}, 8000))
    namespace.wait_for_phase("web", "Running")
    address = namespace.get("service", "web")["spec"]["clusterIP"]
    client = f"""
    import time, urllib.request
    for _ in range(100):
        try:
            print(urllib.request.urlopen("http://{address}:8000/", timeout=2).status)
            break
        except OSError:
            time.sleep(0.2)
    """
    for index, node in enumerate(nodes):
        namespace.create(pod(f"client-{index}", python(client), **on(node)))
        namespace.wait_for_phase(f"client-{index}", "Succeeded")
        assert namespace.logs(f"client-{index}") == "200\n"


def test_a_container_that_takes_more_memory_than_its_limit_is_killed_for_it(namespace: Namespace) -> None:
    hungry = python("block = bytearray(512 << 20)", resources={"limits": {"memory": "64Mi"}})
    namespace.create(pod("hungry", hungry))
    namespace.wait_for_phase("hungry", "Failed")
    [container] = namespace.pod("hungry")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "OOMKilled"
    assert container["state"]["terminated"]["exitCode"] == 137


def test_an_image_that_does_not_exist_is_told_as_such(namespace: Namespace) -> None:
    namespace.create(pod("imageless", {"name": "main", "image": "localhost:9/no/such:image"}))

    def waiting() -> str:
        [container] = namespace.pod("imageless")["status"].get("containerStatuses") or [{}]
        return str(container.get("state", {}).get("waiting", {}).get("reason", ""))

    wait_for(lambda: waiting() in ("ErrImagePull", "ImagePullBackOff"), "the image to be refused")


def test_commands_run_inside_a_pod_and_files_of_the_restricted_user_stay_its_own(namespace: Namespace) -> None:
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 4321,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    namespace.cluster.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    namespace.create(pod("modest", python(SLEEPER, securityContext=restricted)))
    namespace.wait_for_phase("modest", "Running")
    answer = namespace.kubectl("exec", "modest", "--", "python3", "-c", "import os; print(os.getuid())")
    assert answer == "4321\n"


@pytest.mark.own
def test_a_kubelet_is_refused_what_belongs_to_another_node(namespace: Namespace, kubernetes: Kubernetes) -> None:
    assert kubernetes.own
    keys = kubernetes.own.folder / "keys"
    node = Kubernetes(keys / "system-node-node-1.kubeconfig", kubernetes.kubectl_program, kubernetes.own)
    assert node.node("node-1")
    for refused in (("label", "node", "node-0", "a=b"), ("get", "secrets", "-n", namespace.name)):
        with pytest.raises(Refused, match=r"forbidden|not allowed"):
            node.kubectl(*refused)
