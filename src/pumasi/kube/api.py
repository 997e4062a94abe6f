"""Talks to a cluster's API: plain objects over HTTPS. The only module that does, and that knows the HTTP library.

Whatever goes wrong comes out as a `ClusterTrouble` with a sentence.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx2

from pumasi.errors import ClusterTrouble, Forbidden
from pumasi.kube.config import Connection

PAGE = 500
"""Objects an answer: the API server need not hold a large cluster in memory for us."""
_PATIENCE = httpx2.Timeout(30.0, connect=10.0)
_EXEC_SECONDS = 60.0


class Api:
    """One cluster, for as long as `async with` lasts."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def __aenter__(self) -> Api:
        where = self.connection
        extensions = {"sni_hostname": where.server_name} if where.server_name else {}
        self._extensions = extensions
        self._client = httpx2.AsyncClient(
            base_url=where.server,
            verify=_trust(where),
            auth=httpx2.BasicAuth(*where.password) if where.password else _Bearer(where),
            timeout=_PATIENCE,
            proxy=where.proxy or None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        """All objects of a kind, as one moment saw them: `/api/v1/nodes`."""
        items: list[dict[str, Any]] = []
        query = {**query, "limit": str(PAGE)}
        while True:
            answer = await self._get(path, query)
            items += answer["items"]
            follow = answer["metadata"].get("continue")
            if not follow:
                return items
            query["continue"] = follow

    async def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        try:
            response = await self._client.get(path, params=query, extensions=self._extensions)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        if response.is_success:
            answer: dict[str, Any] = response.json()
            return answer
        raise self._refused(response)

    def _unreachable(self, error: httpx2.HTTPError) -> ClusterTrouble:
        why = str(error) or type(error).__name__
        return ClusterTrouble(
            f"The cluster at {self.connection.server} can't be reached: {why}.",
            "Is the address in the kubeconfig right, and a VPN needed? `kubectl get namespaces` would tell the same.",
        )

    def _refused(self, response: httpx2.Response) -> ClusterTrouble:
        try:
            said = str(response.json()["message"])
        except (ValueError, KeyError, TypeError):
            said = f"status {response.status_code}"
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            return ClusterTrouble(
                f"The cluster at {self.connection.server} does not know who you are: {said}.",
                "The token or certificate in the kubeconfig has expired, or belongs to another cluster: log in again.",
            )
        if response.status_code == httpx2.codes.FORBIDDEN:
            return Forbidden(f"The cluster does not allow it: {said}.")
        return ClusterTrouble(f"The cluster at {self.connection.server} answers: {said}.")


class _Bearer(httpx2.Auth):
    """The token, asked for again when the cluster does not take it any more: files are renewed, programs make new
    ones."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._token = connection.token

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        fresh = False
        if not self._token:
            fresh, self._token = True, await self._ask()
        self._sign(request)
        response = yield request
        if response.status_code == httpx2.codes.UNAUTHORIZED and not fresh and self._renewable:
            self._token = await self._ask()
            self._sign(request)
            yield request

    @property
    def _renewable(self) -> bool:
        return bool(self._connection.token_file or self._connection.helper)

    def _sign(self, request: httpx2.Request) -> None:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"

    async def _ask(self) -> str:
        if file := self._connection.token_file:
            try:
                return file.read_text().strip()
            except OSError as error:
                raise ClusterTrouble(f"The token file of the kubeconfig can't be read: {error}.") from None
        if helper := self._connection.helper:
            return await asyncio.to_thread(_run_helper, helper)
        return ""


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


def _trust(connection: Connection) -> ssl.SSLContext:
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
