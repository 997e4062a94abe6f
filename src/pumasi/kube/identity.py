"""Who we are to a cluster, and by what we know that it is the right one."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from pumasi.errors import ClusterTrouble
from pumasi.kube.config import Connection
from pumasi.kube.http import basic

_EXEC_SECONDS = 60.0


class Key:
    """Who we are. A token is asked for again when the cluster does not take it any more: files are renewed, programs
    make new ones."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._token = connection.token
        self._lock = asyncio.Lock()

    @property
    def renewable(self) -> bool:
        return not self._connection.password and bool(self._connection.token_file or self._connection.helper)

    async def sign(self) -> tuple[Mapping[str, str], bool]:
        """The header, and whether it was made just now."""
        if self._connection.password:
            return {"Authorization": basic(*self._connection.password)}, False
        if self._token or not self.renewable:
            return self._header(), False
        return await self.renew({}), True

    async def renew(self, refused: Mapping[str, str]) -> Mapping[str, str]:
        """Of many that were refused together, one asks."""
        async with self._lock:
            if self._header() == refused:
                self._token = await self._ask()
        return self._header()

    def _header(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    async def _ask(self) -> str:
        if file := self._connection.token_file:
            try:
                return file.read_text().strip()
            except OSError as error:
                raise ClusterTrouble(f"The token file of the kubeconfig can't be read: {error}.") from None
        assert self._connection.helper is not None
        return await asyncio.to_thread(_run_helper, self._connection.helper)


def _run_helper(helper: Mapping[str, Any]) -> str:
    """A credential plugin, by the rules of client.authentication.k8s.io."""

    asked = {"apiVersion": helper["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = {entry["name"]: entry["value"] for entry in helper.get("env") or ()}
    environ = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    command = [helper["command"], *(helper.get("args") or ())]
    try:
        result = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_EXEC_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterTrouble(
            f"The program that the kubeconfig asks for a token does not run: {error}.", helper.get("installHint") or ""
        ) from None
    try:
        return str(json.loads(result.stdout)["status"]["token"])
    except (ValueError, KeyError, TypeError):
        said = (result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}")[-500:]
        raise ClusterTrouble(
            f"{helper['command']}, which the kubeconfig asks for a token, gives none: {said}"
        ) from None


def trust(connection: Connection) -> ssl.SSLContext:

    try:
        context = ssl.create_default_context(cadata=connection.authority or None)
        if connection.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if connection.certificate:
            # The ssl module takes a certificate of ours from files only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{connection.certificate}\n{connection.key}\n")
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise ClusterTrouble(f"A certificate in the kubeconfig is of no use: {error}.") from None
    return context
