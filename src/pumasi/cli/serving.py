"""pumasi serve --on k8s: a model that a cluster serves."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pumasi.cli.parsing import Arguments
from pumasi.cli.verbs.nodes import cluster
from pumasi.cli.verbs.serve import MOST, Telling, number
from pumasi.cli.view.output import columns, say, show, show_json
from pumasi.cli.view.text import age, table
from pumasi.errors import SpecError, UsageError
from pumasi.pools.kubernetes import notation
from pumasi.pools.kubernetes.manifests import PYTHON
from pumasi.pools.kubernetes.serving.deploying import Address, Asked, Cluster, deploy, objects_of, on_volume, remove
from pumasi.pools.kubernetes.serving.objects import EXPOSURES, Wish
from pumasi.pools.kubernetes.serving.served import Served, list_served, token_of
from pumasi.pools.kubernetes.volumes import Volume
from pumasi.serve.sources import check

T = TypeVar("T")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
"""What a Service may be called, and short enough for what is called after it."""


def main(arguments: Arguments, telling: Telling) -> int:
    if arguments.has("list"):
        return asyncio.run(_list(arguments, telling))
    name = _name(arguments)
    if arguments.has("token"):
        return asyncio.run(_token(arguments, name, telling))
    if arguments.has("remove"):
        return asyncio.run(_remove(arguments, name, telling))
    wish, asked, volume = _wish(arguments, name), _asked(arguments), _volume(arguments, name)
    if arguments.has("dry-run"):
        telling.close()
        return _show(wish, asked, volume)
    return asyncio.run(_deploy(arguments, wish, asked, volume, telling))


async def _deploy(arguments: Arguments, wish: Wish, asked: Asked, volume: notation.Wanted, telling: Telling) -> int:
    async with cluster(arguments.last("on") or "") as api:
        place = Cluster(api, _namespace(arguments) or api.connection.namespace, telling.say)
        found = await deploy(place, wish, asked, volume)
    telling.close()
    if arguments.has("json"):
        show_json(_described(place.namespace, wish, found))
    say(*_told(place, wish, found, _again(arguments, place.namespace, wish.name)))
    return 0


async def _remove(arguments: Arguments, name: str, telling: Telling) -> int:
    async with cluster(arguments.last("on") or "") as api:
        place = Cluster(api, _namespace(arguments) or api.connection.namespace, telling.say)
        kept = await remove(place, name)
    telling.close()
    stays = [f"The volume {claim} stays: {place.kubectl} delete pvc {claim}" for claim in kept]
    say(f"{name} is removed.", *stays)
    return 0


async def _list(arguments: Arguments, telling: Telling) -> int:
    if arguments.rest:
        raise UsageError(f"--list shows all that is served, and takes no FILE; '{arguments.rest[0]}' is too much.")
    async with cluster(arguments.last("on") or "") as api:
        place = Cluster(api, _namespace(arguments) or api.connection.namespace, telling.say)
        rows = await list_served(place)
        now = api.now
    telling.close()
    if arguments.has("json"):
        show_json([{**row._asdict(), "url": row.url or None} for row in rows])
    elif rows:
        cells = [
            (row.name, row.model, f"{row.ready}/{row.replicas}", age(now - row.created), _reached(place, row))
            for row in rows
        ]
        show(table(("name", "model", "ready", "age", "address"), cells, columns(), right=(3,)))
    else:
        say(
            f"Nothing is served in the namespace {place.namespace}.",
            "To serve a model: pumasi serve FILE --on k8s --image IMAGE",
        )
    return 0


def _reached(place: Cluster, row: Served) -> str:
    if row.url:
        return row.url
    return "none yet" if row.expose == "LoadBalancer" else _forward(place, row.name)


async def _token(arguments: Arguments, name: str, telling: Telling) -> int:
    async with cluster(arguments.last("on") or "") as api:
        place = Cluster(api, _namespace(arguments) or api.connection.namespace, telling.say)
        token = await token_of(place, name)
        row = next((row for row in await list_served(place) if row.name == name), None)
    telling.close()
    if arguments.has("json"):
        show_json({"name": name, "namespace": place.namespace, "token": token, "url": (row and row.url) or None})
        return 0
    show([token])
    sys.stdout.flush()
    if row:
        address = row.url or f"{_forward(place, name)} and then http://127.0.0.1:8000/"
        say(f"{name}: {address}?token={token}")
    return 0


def _forward(place: Cluster, name: str) -> str:
    return f"{place.kubectl} port-forward service/{name} 8000:80"


def _show(wish: Wish, asked: Asked, volume: notation.Wanted) -> int:
    """As for a volume of which one node at a time can have the use: what it can do is known only in the cluster."""
    from pumasi.kube.documents import abridged, to_yaml

    sys.stdout.write(to_yaml(map(abridged, objects_of(wish, asked, Volume(volume.name, is_shared=False)))))
    return 0


# ---- what was asked for


def _name(arguments: Arguments) -> str:
    given = arguments.last("name")
    if given is None:
        if option := next((key for key in ("token", "remove") if arguments.has(key)), ""):
            raise UsageError(f"--{option} needs the name of what is served.", "Add --name NAME.")
        path = Path(arguments.rest[0])
        if path.is_dir() and not on_volume(arguments.rest[0]):
            check(path)  # Before its name, which may be none: . or /
        stem = path.name.partition(".")[0].lower()
        given = re.sub("[^a-z0-9]+", "-", stem).strip("-")
    if not _NAME.fullmatch(given):
        right = "Write --name with at most 50 lower-case letters, digits and dashes, a letter first."
        raise UsageError(f"'{given}' can't be the name of a Service.", right)
    return given


def _wish(arguments: Arguments, name: str) -> Wish:
    image = _read(arguments, "image", notation.image)
    if image is None:
        raise UsageError("--on k8s needs an image to serve with.", "Add --image: one with numpy and the framework.")
    expose = arguments.last("expose") or EXPOSURES[0]
    if expose not in EXPOSURES:
        raise UsageError(f"--expose takes one of {', '.join(EXPOSURES)}; '{expose}' is none.")
    return Wish(
        name,
        image,
        python=arguments.last("python") or PYTHON,
        expose=expose,
        rate=number(arguments, "rate", 0, MOST),
        has_token=not arguments.has("no-token"),
        node_selector=dict(_pair(text) for text in arguments.all("node-selector")),
        tolerations=[_checked("toleration", notation.toleration, text) for text in arguments.all("toleration")],
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--node-selector takes KEY=VALUE; '{text}' is none.")
    return _checked("node-selector", notation.qualified, key), _checked("node-selector", notation.label_value, value)


def _asked(arguments: Arguments) -> Asked:
    asked = Asked(arguments.rest[0], arguments.last("vote") or "", arguments.last("preprocessing") or "")
    there = [path for path in asked if on_volume(path)]
    if there and not arguments.has("volume"):
        raise UsageError(f"{there[0]} is on a volume, but which one?", "Add --volume NAME.")
    return asked


def _volume(arguments: Arguments, name: str) -> notation.Wanted:
    return _read(arguments, "volume", notation.volume) or notation.volume(name)


def _namespace(arguments: Arguments) -> str | None:
    return _read(arguments, "namespace", notation.namespace)


def _read(arguments: Arguments, key: str, read: Callable[[str], T]) -> T | None:
    text = arguments.last(key)
    return None if text is None else _checked(key, read, text)


def _checked(key: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except SpecError as error:
        raise UsageError(f"--{key}: {error.message}.", f"{error.hint[:1].upper()}{error.hint[1:]}.") from None


# ---- what is said


def _told(place: Cluster, wish: Wish, found: Address, again: str) -> list[str]:
    query = f"/?token={found.token}" if found.token else "/"
    lines = [f"{wish.name} is served: {found.url}"]
    if not found.url:
        lines = [f"{wish.name} is served, but has no address yet: {place.kubectl} get service {wish.name}"]
        lines.append(f"Then http://ADDRESS{query}")
    elif wish.expose == "ClusterIP":
        lines = [f"{wish.name} is served, for the pods of the cluster: {found.url}"]
        lines.append(f"From here: {_forward(place, wish.name)} and then http://127.0.0.1:8000{query}")
    elif wish.expose == "NodePort":
        lines.append("The other nodes answer at the same port.")
    return [*lines, f"To remove it: {again} --remove"]


def _again(arguments: Arguments, namespace: str, name: str) -> str:
    return f"pumasi serve --on {shlex.quote(arguments.last('on') or '')} -n {namespace} --name {name}"


def _described(namespace: str, wish: Wish, found: Address) -> dict[str, Any]:
    return {
        "event": "ready",
        "url": found.url or None,
        "token": found.token or None,
        "namespace": namespace,
        "name": wish.name,
        "volume": found.volume.name,
    }
