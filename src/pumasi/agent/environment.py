"""The environment of a rank: the agent's own, and over it what `core` has prepared, with hosts and ports filled in."""

from __future__ import annotations

import os

from pumasi.agent.network import interface_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from pumasi.agent.links import Message

    Values = Mapping[str, Mapping[str, object]]

PLACEHOLDER = r"\{(host|port|file):([a-z0-9]+)\}"
GENTLE = ("OMP_NUM_THREADS",)
"""Set only where the user has not set it."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def fill(text: str, values: Values) -> str:
    """Hosts, ports and files for their placeholders; what is none of ours stays as it is."""
    if "{" not in text:
        return text
    import re

    return re.sub(PLACEHOLDER, lambda found: str(values[found.group(1)].get(found.group(2), found.group())), text)


def environment(config: Message, wanted: Mapping[str, str], values: Values, address: str) -> dict[str, str]:
    env = dict(os.environ)
    for name, value in wanted.items():
        if name not in GENTLE or name not in os.environ:
            env[name] = fill(value, values)
    env["PUMASI_GANG"] = config["gang"]
    env["PUMASI_DIR"] = config["dir"]
    if "shim/sitecustomize.py" in config["files"]:
        shim = os.path.join(config["dir"], "shim")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [shim, env.get("PYTHONPATH")]))
        env["PUMASI_SHIM_FALLBACK"] = os.path.join(config["dir"], "fallback")
    interface = interface_of(address) if config["total"] > 1 else None
    if interface:
        env.setdefault("GLOO_SOCKET_IFNAME", interface)
    add_proxies(env)
    return env


def add_proxies(env: dict[str, str]) -> None:
    """The peers are added to what the user excludes from a proxy, if there is one: JAX warns of such variables."""
    for name in ("no_proxy", "NO_PROXY"):
        mine, peers = os.environ.get(name), env.pop(name, None)
        if peers and peers != mine and any(key.lower() in PROXIES for key in os.environ):
            env[name] = ",".join(filter(None, [mine, peers]))
        elif mine is not None:
            env[name] = mine
