"""Lines for kubectl that a user copies: they lead to the cluster and the namespace that they are about. Pure."""

from __future__ import annotations

import shlex


def kubectl(context: str, namespace: str = "") -> str:
    """How such a line begins. An empty context, or namespace, is left to the kubeconfig."""
    where = [*(["--context", context] if context else []), *(["-n", namespace] if namespace else [])]
    return shlex.join(["kubectl", *where])
