"""Runs the real `pumasi` command against a namespace of a cluster, as a user would."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.objects import claim
from tests.cluster.subject import Namespace
from tests.harness import Workplace, wait_for

Done = subprocess.CompletedProcess[str]


class Place:
    """A user at a desk, with a kubeconfig. Slots ask for few CPUs, so that many of them fit into a small cluster."""

    def __init__(self, workplace: Workplace, namespace: Namespace) -> None:
        self.desk = workplace
        self.namespace = namespace
        self.environ = {"KUBECONFIG": str(namespace.cluster.kubeconfig), "PUMASI_CPUS": "10m"}
        self.script = workplace.script
        self.folder = workplace.folder

    def pumasi(self, *words: str) -> Done:
        return self.desk.run(*words, env=self.environ)

    def _words(self, words: Sequence[str]) -> list[str]:
        return ["run", "--on", "k8s", "--namespace", self.namespace.name, *words]

    def run(self, *words: str) -> Done:
        return self.desk.run(*self._words(words), env=self.environ)

    def train(self, *words: str) -> Done:
        """A run that must end well."""
        done = self.run(*words)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        return self.desk.start(*self._words(words), env=self.environ, **options)

    def pods(self, *, living: bool = False) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.namespace.get("pods", "-l", "pumasi.dev/kind=rank")["items"]
        return [each for each in pods if not living or each["status"]["phase"] not in ("Succeeded", "Failed")]

    def pod_of(self, run: str) -> dict[str, Any]:
        (pod,) = [each for each in self.pods() if each["metadata"]["labels"]["pumasi.dev/run"] == run]
        return pod

    def last(self) -> dict[str, Any]:
        return json.loads(self.pumasi("ps", "--json").stdout)[0]  # type: ignore[no-any-return]

    def outcome(self) -> dict[str, Any]:
        """How the last run ended."""
        return json.loads(self.pumasi("show", "--json").stdout)["outcome"]  # type: ignore[no-any-return]

    def wait_for_output(self, text: str, ranks: int = 1, seconds: float = 60) -> None:
        """Until so many lines of the last run say that."""
        logs = self.desk.home / "runs"

        def said() -> bool:
            return sum(log.read_bytes().count(text.encode()) for log in logs.glob("*/logs/*")) >= ranks

        wait_for(said, f"{ranks} lines with {text!r}", seconds)

    def wait_until_ending(self) -> None:
        wait_for(lambda: self.last()["state"] == "ending", "the beginning of the end")

    def wait_until_free(self, seconds: float = 60) -> None:
        wait_for(lambda: not self.pods(living=True), "the end of all pods", seconds)

    def names(self, kind: str) -> list[str]:
        """Of the objects that are ours."""
        selector = ("-l", "app.kubernetes.io/managed-by=pumasi")
        return self.namespace.kubectl("get", kind, *selector, "-o", "name").split()


def kubeconfig_of(namespace: Namespace, account: str, folder: Path) -> Path:
    """For whoever has that ServiceAccount's token."""
    token = namespace.kubectl("create", "token", account).strip()
    config = json.loads(namespace.cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def make_volume(namespace: Namespace, name: str, mode: str = "ReadWriteMany") -> None:
    namespace.create(claim(name, mode))
