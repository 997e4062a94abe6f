"""A cluster in memory, and an `Api` that talks to it: what the API server keeps and answers, and what a kubelet does to
a pod that is deleted. Nothing starts by itself: tests say what happens to pods.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from pumasi.errors import Conflict, Forbidden, NotThere, Rejected, Unreachable
from pumasi.kube.api import Api
from pumasi.kube.config import Connection

Object = dict[str, Any]
NAMESPACE = "team"
_PATH = re.compile(r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?")
_TERM = re.compile(r"([^!=,]+)(!=|==|=)([^,]*)")
_MOMENT = 0.002


class Key(NamedTuple):
    kind: str
    namespace: str
    name: str


class Cluster:
    """`sentenced` is called for a pod that is asked to end, on a node that lives; by default it just does. `admit` may
    refuse what is to be made."""

    def __init__(self) -> None:
        self.things: dict[Key, Object] = {}
        self.history: list[tuple[str, str, Object]] = []
        """What a watch tells: kind of object, kind of change, object."""
        self.logs: dict[str, list[bytes]] = {}
        self.dead_nodes: set[str] = set()
        self.ahead = 0.0
        """Seconds that its clock is ahead of ours."""
        self.sentenced: Callable[[str], None] = lambda name: self.finish(name, 143)
        self.admit: Callable[[Object], None] = lambda thing: None
        self.applied: Callable[[Object], None] = lambda thing: None
        self.answer: Callable[[str, Mapping[str, str], bytes], Object] = lambda path, query, data: {}
        """What servers in pods answer, behind the cluster's proxy."""
        self._numbers = itertools.count(1)

    @property
    def now(self) -> float:
        return time.time() + self.ahead

    # ---- for tests

    def names(self, kind: str) -> list[str]:
        return sorted(key.name for key in self.things if key.kind == kind)

    def find(self, kind: str, name: str) -> Object:
        return self.things[Key(kind, NAMESPACE, name)]

    def change(self, kind: str, name: str, patch: Mapping[str, Any]) -> None:
        """As somebody else would."""
        self.patch(Key(kind, NAMESPACE, name), patch)

    def start(self, pod: str, node: str = "") -> None:
        """Its container runs, on that node or on the one that it is pinned to."""
        self.logs.setdefault(pod, [])
        self.change("pods", pod, {"spec": {"nodeName": node or _pinned(self.find("pods", pod))}})
        address = f"10.244.0.{next(self._numbers)}"
        self.set_state(pod, "Running", {"running": {"startedAt": _stamp(self.now)}}, podIP=address)

    def say(self, pod: str, *lines: bytes) -> None:
        self.logs.setdefault(pod, []).extend(lines)

    def finish(self, pod: str, code: int, message: str = "", reason: str = "") -> None:
        reason = reason or ("Error" if code else "Completed")
        terminated = {"exitCode": code, "reason": reason, **({"message": message} if message else {})}
        self.set_state(pod, "Failed" if code else "Succeeded", {"terminated": terminated})

    def set_state(self, pod: str, phase: str, state: Object, **status: Any) -> None:
        container = {"name": "main", "state": state}
        self.change("pods", pod, {"status": {"phase": phase, "containerStatuses": [container], **status}})

    # ---- what the API server does

    def create(self, kind: str, namespace: str, thing: Mapping[str, Any]) -> Object:
        self.admit(dict(thing))
        made = copy.deepcopy(dict(thing))
        key = Key(kind, namespace, made["metadata"]["name"])
        if key in self.things:
            raise _refused(Conflict, f'{kind} "{key.name}" already exists')
        number = next(self._numbers)
        made["metadata"] |= {
            "namespace": namespace,
            "uid": f"uid-{number}",
            "resourceVersion": str(number),
            "creationTimestamp": _stamp(self.now),
        }
        if kind == "services":
            made["spec"]["clusterIP"] = f"10.0.0.{number}"
        if kind == "pods":
            made["status"] = {"phase": "Pending"}
        self.things[key] = made
        self._tell(kind, "ADDED", made)
        return made

    def patch(self, key: Key, change: Mapping[str, Any]) -> Object:
        before = self._get(key)
        version = change.get("metadata", {}).get("resourceVersion")
        if version not in (None, before["metadata"]["resourceVersion"]):
            raise _refused(Conflict, f'{key.kind} "{key.name}": the object has been modified')
        made: Object = _merged(before, change)
        made["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.things[key] = made
        self._tell(key.kind, "MODIFIED", made)
        return made

    def delete(self, key: Key, grace: int | None) -> None:
        if key.kind == "pods" and grace != 0 and self._lingers(key, self._get(key)):
            return
        thing = self.things.pop(key)
        self._tell(key.kind, "DELETED", thing)
        for other in [other for other, each in self.things.items() if _is_owned(each, thing["metadata"]["uid"])]:
            if other in self.things:
                self.delete(other, None)

    def select(self, kind: str, namespace: str | None, query: Mapping[str, str]) -> list[Object]:
        return [
            thing
            for key, thing in self.things.items()
            if key.kind == kind and namespace in (None, key.namespace) and _is_chosen(thing, query)
        ]

    def log(self, namespace: str, pod: str) -> list[bytes]:
        """It stays as it is for who reads it already, when the pod is gone."""
        state = _state(self._get(Key("pods", namespace, pod)))
        if not ("running" in state or "terminated" in state):
            raise _refused(Rejected, f'container "main" in pod "{pod}" is waiting to start: ContainerCreating')
        return self.logs.setdefault(pod, [])

    def is_running(self, namespace: str, pod: str) -> bool:
        thing = self.things.get(Key("pods", namespace, pod))
        return thing is not None and "running" in _state(thing)

    def _lingers(self, key: Key, pod: Object) -> bool:
        """A pod that was given to a node is ended by its kubelet, if that lives."""
        if not pod["spec"].get("nodeName") or "terminated" in _state(pod):
            return False
        self.patch(key, {"metadata": {"deletionTimestamp": _stamp(self.now)}})
        if pod["spec"]["nodeName"] in self.dead_nodes:
            return True
        if "running" in _state(pod):
            self.sentenced(key.name)
        return False

    def _get(self, key: Key) -> Object:
        if key not in self.things:
            raise _refused(NotThere, f'{key.kind} "{key.name}" not found')
        return self.things[key]

    def _tell(self, kind: str, change: str, thing: Object) -> None:
        self.history.append((kind, change, copy.deepcopy(thing)))


class FakeApi(Api):
    """One who talks to the cluster, and the trouble that it has with that. `before` is called with verb and path of
    every request, and may raise."""

    def __init__(self, cluster: Cluster | None = None) -> None:
        super().__init__(Connection("fake", "https://fake", NAMESPACE))
        self.cluster = cluster or Cluster()
        self.unreachable = False
        self.forbidden: set[tuple[str, str]] = set()
        """Verbs and kinds: ("create", "pods"), ("get", "pods/log")."""
        self.losing: set[str] = set()
        """Verbs whose answer is lost once: the creation that is tried again finds its own object."""
        self.before: Callable[[str, str], None] = lambda verb, path: None
        self.requests: list[tuple[str, str]] = []
        self.graces: list[int | None] = []
        """Of all deletions that were asked for."""
        self.user_name = "kim"
        self.allowed: set[tuple[str, str]] = set()
        """What it is told that it may do, when it asks: ("create", "pods/proxy")."""

    def patient(self, seconds: float) -> FakeApi:
        return self

    async def __aenter__(self) -> FakeApi:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    @property
    def now(self) -> float:
        return self.cluster.now

    async def user(self) -> str:
        return self.user_name

    async def get(self, path: str, **query: str) -> Object:
        key = self._request("get", path)
        return copy.deepcopy(self.cluster._get(key))

    async def list(self, path: str, *, metadata_only: bool = False, **query: str) -> list[Object]:
        key = self._request("list", path)
        found = self.cluster.select(key.kind, key.namespace or None, query)
        return [copy.deepcopy({"metadata": each["metadata"]} if metadata_only else each) for each in found]

    async def create(self, path: str, thing: Mapping[str, Any]) -> Object:
        key = self._request("create", path)
        await asyncio.sleep(0)
        made = self.cluster.create(key.kind, key.namespace, thing)
        if "create" in self.losing:
            self.losing.remove("create")
            self.cluster.create(key.kind, key.namespace, thing)
        return copy.deepcopy(made)

    async def patch(self, path: str, change: Mapping[str, Any]) -> Object:
        key = self._request("patch", path)
        made = self.cluster.patch(key, change)
        if "patch" in self.losing:
            self.losing.remove("patch")
            made = self.cluster.patch(key, change)
        return copy.deepcopy(made)

    async def apply(self, path: str, thing: Mapping[str, Any]) -> Object:
        """What is asked for takes the place of what was asked for earlier; what only the cluster tells stays."""
        key = self._request("apply", path)
        before = self.cluster.things.get(key)
        if before is None:
            made = self.cluster.create(key.kind, key.namespace, thing)
        else:
            made = self.cluster.patch(key, {"metadata": thing["metadata"]})
            made["spec"] = copy.deepcopy(thing["spec"])
        generation = made["metadata"].get("generation", 0) + 1
        made["metadata"]["generation"] = generation
        self.cluster.applied(made)
        return copy.deepcopy(made)

    async def send(
        self,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        data: bytes,
        *,
        seconds: float,
        once: bool = False,
    ) -> Object:
        self._check("create", "pods/proxy", path)
        return self.cluster.answer(path, query, data)

    async def may(self, namespace: str, verb: str, resource: str, subresource: str = "") -> bool:
        return (verb, f"{resource}/{subresource}") in self.allowed

    async def delete(self, path: str, *, grace: int | None = None, background: bool = True) -> bool:
        self.graces.append(grace)
        key = self._request("delete", path)
        if key not in self.cluster.things:
            return False
        self.cluster.delete(key, grace)
        return True

    async def delete_all(self, path: str, *, grace: int | None = None, **query: str) -> None:
        self.graces.append(grace)
        key = self._request("delete_all", path)
        for thing in self.cluster.select(key.kind, key.namespace, query):
            self.cluster.delete(Key(key.kind, key.namespace, thing["metadata"]["name"]), grace)

    async def watch(
        self,
        path: str,
        *,
        patience: float,
        away: Callable[[str], None] = lambda sentence: None,
        metadata_only: bool = False,
        fresh: bool = False,
        **query: str,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        await self._come_back(patience, away)
        key = self._request("list", path)
        told = len(self.cluster.history)
        chosen = set()
        for thing in self.cluster.select(key.kind, key.namespace or None, query):
            chosen.add(thing["metadata"]["uid"])
            yield "ADDED", copy.deepcopy(thing)
        yield "SYNCED", {}
        self._request("watch", path)
        while True:
            await self._come_back(patience, away)
            for kind, change, thing in self.cluster.history[told:]:
                told += 1
                if kind == key.kind and key.namespace in ("", thing["metadata"]["namespace"]):
                    for event in _seen_through(query, chosen, change, thing):
                        yield event
            await asyncio.sleep(_MOMENT)

    async def log(
        self, namespace: str, pod: str, *, container: str = "", since: str = "", follow: bool = True, idle: float
    ) -> AsyncGenerator[bytes, None]:
        self._check("get", "pods/log", pod)
        # Of an init container under the names of both.
        lines = self.cluster.logs[f"{pod}/{container}"] if container else self.cluster.log(namespace, pod)
        told = 0
        while True:
            is_last = not follow or not self.cluster.is_running(namespace, pod)
            while told < len(lines):
                told += 1
                yield b"2026-11-16T10:00:00.%09dZ %s\n" % (told, lines[told - 1])
            if is_last:
                return
            await asyncio.sleep(_MOMENT)

    async def _come_back(self, patience: float, away: Callable[[str], None]) -> None:
        if not self.unreachable:
            return
        trouble = _gone()
        away(trouble.message)
        deadline = time.monotonic() + patience
        while self.unreachable:
            if time.monotonic() > deadline:
                raise trouble
            await asyncio.sleep(_MOMENT)
        away("")

    def _request(self, verb: str, path: str) -> Key:
        match = _PATH.fullmatch(path)
        assert match is not None, path
        namespace, kind, name = match.groups()
        self._check(verb, kind, path)
        return Key(kind, namespace or "", name or "")

    def _check(self, verb: str, kind: str, path: str) -> None:
        self.calls += 1
        self.requests.append((verb, path))
        if self.unreachable:
            raise _gone()
        if (verb, kind) in self.forbidden:
            raise _refused(Forbidden, f'{kind} is forbidden: User "kim" cannot {verb} resource "{kind}"')
        self.before(verb, path)


def _gone() -> Unreachable:
    return Unreachable("The cluster at https://fake can't be reached: connection refused.")


def _refused(kind: type[Any], said: str) -> Any:
    return kind(f"The cluster at https://fake answers: {said}.", said=said)


def _seen_through(query: Mapping[str, str], chosen: set[str], change: str, thing: Object) -> list[tuple[str, Object]]:
    """What is chosen no more is as good as deleted."""
    uid, is_there = thing["metadata"]["uid"], change != "DELETED" and _is_chosen(thing, query)
    if not is_there and uid not in chosen:
        return []
    kind = "DELETED" if not is_there else "MODIFIED" if uid in chosen else "ADDED"
    (chosen.add if is_there else chosen.discard)(uid)
    return [(kind, copy.deepcopy(thing))]


def _is_owned(thing: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in thing["metadata"].get("ownerReferences", ()))


def _pinned(pod: Object) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _state(pod: Object) -> Object:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    state: Object = statuses[0].get("state", {})
    return state


def _is_chosen(thing: Object, query: Mapping[str, str]) -> bool:
    labels = thing["metadata"].get("labels", {})
    chosen = [(labels.get(name, ""), *rest) for name, *rest in _terms(query.get("labelSelector", ""))]
    chosen += [(_field(thing, name), *rest) for name, *rest in _terms(query.get("fieldSelector", ""))]
    return all((has == value) is (sign != "!=") for has, sign, value in chosen)


def _terms(selector: str) -> list[tuple[str, str, str]]:
    return _TERM.findall(selector)


def _field(thing: Object, path: str) -> str:
    place: Any = thing
    for step in path.split("."):
        place = place.get(step, {})
    return place if isinstance(place, str) else ""


def _merged(before: Any, change: Any) -> Any:
    """A merge patch, as RFC 7386 has it."""
    if not isinstance(change, Mapping):
        return copy.deepcopy(change)
    made = dict(before) if isinstance(before, Mapping) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), value)
    return made


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
