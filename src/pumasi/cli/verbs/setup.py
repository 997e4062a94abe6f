"""pumasi setup: the rights that a manager needs who runs inside a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.verbs.nodes import ON, cluster
from pumasi.cli.view.output import say, show_json
from pumasi.errors import Conflict, Forbidden, NotThere, SpecError, UsageError

if TYPE_CHECKING:
    from pumasi.kube.api import Api
    from pumasi.pools.kubernetes.rights import Object

VERB = Verb(
    name="setup",
    usage=("pumasi setup [--on k8s[:CONTEXT]] [-n NAMESPACE] [options]",),
    about="""Gives a namespace what runs need that go on in the cluster without you: a ServiceAccount for their manager,
    with exactly the rights that it uses. Runs that you watch have your own rights, and need none of this.

    One right reaches beyond the namespace: to list and watch nodes, pods and Jobs, which is how Pumasi sees what is
    free and which runs wait. Who may not give that away gets the rest; slots are then placed by the cluster's
    scheduler, one a pod. Doing it twice does no harm.""",
    options=(
        ON._replace(help="the cluster: k8s (default), or k8s:CONTEXT of your kubeconfig", choices=()),
        Option(("-n", "--namespace"), "the namespace (default: that of the kubeconfig)", "NAME"),
        Option(("--print",), "print the objects as YAML, for an administrator, and make nothing"),
        Option(("--no-cluster-role",), "leave out the right to list nodes and pods"),
        Option(("--remove",), "take all of it back"),
        JSON,
    ),
    examples=(
        ("pumasi setup -n team-a", ""),
        ("pumasi setup -n team-a --print | kubectl apply -f -", "by somebody with more rights"),
        ("pumasi setup -n team-a --remove", ""),
    ),
)
_PAST = {
    "made": "is made",
    "updated": "is up to date",
    "removed": "is removed",
    "absent": "was not there",
    "kept": "stays: others use it",
}


def main(arguments: Arguments) -> int:
    import asyncio

    _check(arguments)
    if arguments.has("print"):
        return _print(_namespace(arguments), arguments)
    results = asyncio.run(_change(arguments))
    if arguments.has("json"):
        show_json(results)
        return 0
    for each in results:
        if each["result"] in _PAST:
            say(f"{each['kind']} {each['name']} {_PAST[each['result']]}.")
    if refused := [each for each in results if each["result"] == "refused"]:
        say(*_about_refused(_namespace(arguments), refused, arguments))
    return 0


def _check(arguments: Arguments) -> None:
    from pumasi.pools.kubernetes import notation

    if arguments.has("print") and arguments.has("remove"):
        raise UsageError("--print and --remove do not go together.", "Leave one of the two out.")
    if (name := arguments.last("namespace")) is not None:
        try:
            notation.namespace(name)
        except SpecError as error:
            raise UsageError(f"--namespace: {error.message}.", f"{error.hint.capitalize()}.") from None


def _namespace(arguments: Arguments) -> str:
    if given := arguments.last("namespace"):
        return given
    return cluster(_pool(arguments)).connection.namespace


def _pool(arguments: Arguments) -> str:
    return arguments.last("on") or "k8s"


def _print(namespace: str, arguments: Arguments) -> int:
    from pumasi.kube.documents import to_list, to_yaml
    from pumasi.pools.kubernetes.rights import CLUSTER_RIGHTS, RIGHTS, of_cluster, of_namespace

    wide = not arguments.has("no-cluster-role")
    objects = [*of_namespace(namespace), *(of_cluster(namespace) if wide else ())]
    if arguments.has("json"):
        show_json(to_list(objects))
        return 0
    remarks = [f"For the managers of Pumasi's runs in the namespace {namespace}. They may"]
    remarks += [f"  {right}: {right.why}" for right in RIGHTS]
    if wide:
        remarks += ["and in all namespaces", *(f"  {right}: {right.why}" for right in CLUSTER_RIGHTS)]
    sys.stdout.write(to_yaml(objects, remarks))
    return 0


async def _change(arguments: Arguments) -> list[dict[str, str]]:
    from pumasi.pools.kubernetes.rights import of_cluster, of_namespace

    namespace = _namespace(arguments)
    near = of_namespace(namespace)
    async with cluster(_pool(arguments)) as api:
        uid = "" if arguments.has("remove") else await _uid_of(api, namespace)
        far = [] if arguments.has("no-cluster-role") else of_cluster(namespace, uid)
        swept = await _sweep(api) if far else []
        if arguments.has("remove"):
            return [*swept, *await _remove(api, near, far)]
        return [*swept, *await _make(api, near, far)]


async def _sweep(api: Api) -> list[dict[str, str]]:
    """Bindings of namespaces that are gone. Those that know their namespace's uid go with it; one that was printed does
    not know it. Bindings are listed first: so none is of a namespace that was made after the namespaces were listed."""
    try:
        bindings = await _bindings(api)
        there = {each["metadata"]["name"] for each in await api.list("/api/v1/namespaces", metadata_only=True)}
        stale = [each for each in bindings if (named := _namespaces(each)) and named.isdisjoint(there)]
        return [_told(each, await _delete(api, each)) for each in stale]
    except Forbidden:
        return []


def _namespaces(binding: Mapping[str, Any]) -> set[str]:
    """Of the accounts that it is for; somebody may have put others there, which have no namespace."""
    return {each["namespace"] for each in binding.get("subjects") or () if each.get("namespace")}


async def _uid_of(api: Api, namespace: str) -> str:
    """Empty if the user may not read it. A namespace that is missing is reported when something is made in it."""
    try:
        return str((await api.get(f"/api/v1/namespaces/{namespace}"))["metadata"]["uid"])
    except (Forbidden, NotThere):
        return ""


async def _make(api: Api, near: Sequence[Object], far: Sequence[Object]) -> list[dict[str, str]]:
    return [
        *[_told(thing, await _apply(api, thing)) for thing in sorted(near, key=_is_account)],
        *[_told(thing, await _apply_if_allowed(api, thing)) for thing in far],
    ]


def _is_account(thing: Object) -> bool:
    """It comes last: it is what `run -d` looks for, and without its rights it is of no use."""
    return bool(thing["kind"] == "ServiceAccount")


async def _apply_if_allowed(api: Api, thing: Object) -> str:
    try:
        return await _apply(api, thing)
    except Forbidden:
        return "refused"


async def _apply(api: Api, thing: Object) -> str:
    from pumasi.pools.kubernetes.rights import path_of

    namespace = thing["metadata"].get("namespace", "")
    try:
        await api.create(path_of(thing, collection=True), thing)
        return "made"
    except Conflict:
        await api.patch(path_of(thing), thing)
        return "updated"
    except Forbidden as error:
        raise Forbidden(error.message, _by_an_administrator(namespace)) from None
    except NotThere as error:
        raise NotThere(error.message, f"{api.connection.kubectl()} create namespace {namespace}") from None


async def _remove(api: Api, near: Sequence[Object], far: Sequence[Object]) -> list[dict[str, str]]:
    """Last made, first removed."""
    return [
        *[_told(thing, await _delete_if_allowed(api, thing)) for thing in reversed(far)],
        *[_told(thing, await _delete(api, thing)) for thing in reversed(near)],
    ]


async def _delete_if_allowed(api: Api, thing: Object) -> str:
    """The ClusterRole stays as long as another namespace has a binding to it."""
    try:
        if thing["kind"] == "ClusterRole" and await _bindings(api):
            return "kept"
        return await _delete(api, thing)
    except Forbidden:
        return "refused"


async def _delete(api: Api, thing: Object) -> str:
    from pumasi.pools.kubernetes.rights import path_of

    return "removed" if await api.delete(path_of(thing)) else "absent"


async def _bindings(api: Api) -> list[Object]:
    from pumasi.pools.kubernetes.rights import MANAGED, NAME, RBAC

    selector = ",".join(f"{key}={value}" for key, value in MANAGED.items())
    found = await api.list(f"/apis/{RBAC}/v1/clusterrolebindings", labelSelector=selector)
    kind = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding"}  # A list leaves these two out.
    return [{**kind, **binding} for binding in found if binding["roleRef"]["name"] == NAME]


def _told(thing: Mapping[str, Any], result: str) -> dict[str, str]:
    metadata = thing["metadata"]
    where = {"namespace": metadata["namespace"]} if "namespace" in metadata else {}
    return {"kind": thing["kind"], "name": metadata["name"], **where, "result": result}


def _about_refused(namespace: str, refused: Iterable[Mapping[str, str]], arguments: Arguments) -> list[str]:
    if arguments.has("remove"):
        names = " ".join(f"{each['kind'].lower()}/{each['name']}" for each in refused)
        return [f"You may not delete what is there for all namespaces. An administrator may: kubectl delete {names}"]
    return [
        "You may not allow to list nodes and pods everywhere. Without it slots are placed by the cluster's scheduler, "
        "one a pod.",
        _by_an_administrator(namespace),
    ]


def _by_an_administrator(namespace: str) -> str:
    return f"An administrator can add what is missing: pumasi setup -n {namespace} --print | kubectl apply -f -"
