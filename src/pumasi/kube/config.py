"""Where a cluster is and who we are there: kubeconfig files as kubectl reads them, or the service account of a pod.

Several files in KUBECONFIG are merged: of two entries of one name the first counts.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pumasi.errors import ClusterTrouble, UsageError
from pumasi.kube.kubectl import kubectl

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Connection(NamedTuple):
    """`authority`, `certificate` and `key` are PEM texts; empty where there is none. `helper` is the part of the
    kubeconfig that names a program which knows the token. `named` is the context if it was asked for by its name."""

    context: str
    server: str
    namespace: str
    authority: str = ""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    token_file: Path | None = None
    password: tuple[str, str] | None = None
    helper: Mapping[str, Any] | None = None
    named: str = ""

    def kubectl(self, namespace: str = "") -> str:
        """The beginning of a line that leads to the same cluster."""
        return kubectl(self.named, namespace)


def connect(context: str, environ: Mapping[str, str]) -> Connection:
    """`context` as in k8s:CONTEXT; empty is the current one. Inside a pod without a kubeconfig it is the pod's own."""
    files = [file for file in kubeconfig_files(environ) if file.is_file()]
    if files:
        return choose(context, [(file, read(file)) for file in files])
    if "KUBERNETES_SERVICE_HOST" in environ and (ACCOUNT / "token").is_file():
        return of_pod(environ)
    looked = " and ".join(str(file) for file in kubeconfig_files(environ))
    raise ClusterTrouble(
        f"There is no kubeconfig: {looked} does not exist.",
        "Set KUBECONFIG to the file that kubectl uses for your cluster.",
    )


def kubeconfig_files(environ: Mapping[str, str]) -> list[Path]:
    named = [Path(part) for part in environ.get("KUBECONFIG", "").split(":") if part]
    return named or [Path(environ.get("HOME", "/")) / ".kube" / "config"]


def read(file: Path) -> Mapping[str, Any]:
    try:
        content = _parse(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ClusterTrouble(f"The kubeconfig {file} can't be read: {error}") from None
    if content is not None and not isinstance(content, dict):
        raise ClusterTrouble(f"{file} is no kubeconfig.", "Set KUBECONFIG to the file that kubectl uses.")
    return content or {}


@functools.lru_cache(maxsize=8)
def _parse(text: bytes) -> Any:
    """Read more than once by most commands. libyaml is ten times as fast as Python, where PyYAML has it."""
    import yaml

    try:
        return yaml.load(text.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def choose(context: str, files: Iterable[tuple[Path, Mapping[str, Any]]]) -> Connection:
    entries: dict[str, dict[str, tuple[Path, Mapping[str, Any]]]] = {"contexts": {}, "clusters": {}, "users": {}}
    current = ""
    for file, content in files:
        current = current or content.get("current-context") or ""
        for kind, known in entries.items():
            for entry in content.get(kind) or ():
                known.setdefault(entry["name"], (file, entry.get(kind[:-1]) or {}))
    name = context or current
    if name not in entries["contexts"]:
        known_contexts = ", ".join(sorted(entries["contexts"])) or "none"
        which = f"has no context '{name}'" if name else "names no current context"
        raise UsageError(f"The kubeconfig {which}.", f"It has: {known_contexts}. Choose one with --on k8s:CONTEXT.")
    _, chosen = entries["contexts"][name]
    if chosen.get("cluster") not in entries["clusters"]:
        raise ClusterTrouble(
            f"The context '{name}' of the kubeconfig names the cluster '{chosen.get('cluster')}', which is not in it."
        )
    cluster_file, cluster = entries["clusters"][chosen["cluster"]]
    user_file, user = entries["users"].get(chosen.get("user", ""), (cluster_file, {}))
    if "auth-provider" in user:
        raise ClusterTrouble(
            f"The user of the context '{name}' uses an auth-provider, which Kubernetes has given up.",
            "Use an exec plugin in your kubeconfig: the cloud's own tool writes one.",
        )
    return Connection(
        context=name,
        server=cluster["server"].rstrip("/"),
        namespace=chosen.get("namespace") or "default",
        authority=_text(cluster_file, cluster, "certificate-authority"),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name", ""),
        proxy=cluster.get("proxy-url", ""),
        certificate=_text(user_file, user, "client-certificate"),
        key=_text(user_file, user, "client-key"),
        token=user.get("token", ""),
        token_file=user_file.parent / user["tokenFile"] if user.get("tokenFile") else None,
        password=(user["username"], user.get("password", "")) if user.get("username") else None,
        helper=user.get("exec"),
        named=context,
    )


def of_pod(environ: Mapping[str, str]) -> Connection:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Connection(
        context="",
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(ACCOUNT / "namespace").read_text(),
        authority=(ACCOUNT / "ca.crt").read_text(),
        token_file=ACCOUNT / "token",
    )


def _text(file: Path, entry: Mapping[str, Any], name: str) -> str:
    """`NAME-data` has it in base64, `NAME` names a file beside the kubeconfig."""
    try:
        if data := entry.get(f"{name}-data"):
            return base64.b64decode(data, validate=True).decode()
        if path := entry.get(name):
            return (file.parent / Path(path).expanduser()).read_text()
    except (OSError, binascii.Error, UnicodeDecodeError) as error:
        raise ClusterTrouble(f"'{name}' in the kubeconfig {file} can't be read: {error}") from None
    return ""
