"""Certificates, tokens and kubeconfigs: each part of the cluster has the name and the rights that it has elsewhere."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from pathlib import Path

from tools.common import ToolError

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650")
# What strict readers of certificates ask for, and no system-wide default adds to.
SETTINGS = """
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""


def make(folder: Path, server: str, addresses: list[str], users: dict[str, str]) -> None:
    """`users` maps each user to its group. Every one of them gets a token and NAME.kubeconfig."""
    folder.mkdir(mode=0o700)
    names = [*(f"IP:{address}" for address in addresses), "DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default"]
    names += ["DNS:kubernetes.default.svc", "DNS:kubernetes.default.svc.cluster.local"]
    (folder / "settings").write_text(SETTINGS.format(names=",".join(names)))
    _certify(folder, "ca", "/CN=pumasi-test-cluster")
    _certify(folder, "server", "/CN=kube-apiserver")
    _certify(folder, "kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    _openssl(folder, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "accounts.key")
    _openssl(folder, "pkey", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
    authority_data = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    tokens = {user: secrets.token_hex(24) for user in users}
    rows = [f'{tokens[user]},{user},{user},"{group}"\n' for user, group in users.items()]
    write_secret(folder / "tokens.csv", "".join(rows))
    for user, token in tokens.items():
        write_secret(kubeconfig_of(folder, user), json.dumps(kubeconfig(server, authority_data, user, token), indent=1))


def kubeconfig_of(folder: Path, user: str) -> Path:
    return folder / f"{user.replace(':', '-')}.kubeconfig"


def kubeconfig(server: str, authority_data: str, user: str, token: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": authority_data}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
        "current-context": "c",
    }


def write_secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _certify(folder: Path, name: str, subject: str) -> None:
    signer = ("-extensions", "ca") if name == "ca" else ("-extensions", "leaf", "-CA", "ca.crt", "-CAkey", "ca.key")
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    _openssl(folder, "req", "-x509", "-config", "settings", *NEW_KEY, *signer, *files, "-subj", subject)


def _openssl(folder: Path, *arguments: str) -> None:
    result = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    if result.returncode:
        raise ToolError(f"openssl {arguments[0]} failed (version 3 is needed): {result.stderr.strip()[-500:]}")
