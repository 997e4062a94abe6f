"""A cluster, and where in it, as --on and the flags beside it name them."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """By the context of the kubeconfig, and a namespace; empty ones are the kubeconfig's own. `everywhere`: all
    namespaces are meant."""

    context: str = ""
    namespace: str = ""
    everywhere: bool = False

    @property
    def on(self) -> str:
        return f"k8s:{self.context}" if self.context else "k8s"

    @property
    def words(self) -> str:
        """The options that lead there."""
        return f"--on {self.on} --namespace {self.namespace}" if self.namespace else f"--on {self.on}"
