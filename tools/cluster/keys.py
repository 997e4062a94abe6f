"""Certificates, tokens and kubeconfigs: each part of the cluster has the name and the rights that it has elsewhere."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from pathlib import Path

from tools.cluster.errors import ClusterError

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650")


def make(folder: Path, server: str, addresses: list[str], users: dict[str, str]) -> None:
    """`users` maps each user to its group. Every one of them gets a token and NAME.kubeconfig."""
    folder.mkdir(mode=0o700)
    authority = ("-CA", "ca.crt", "-CAkey", "ca.key")
    names = [*(f"IP:{address}" for address in addresses), "DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default"]
    names += ["DNS:kubernetes.default.svc", "DNS:kubernetes.default.svc.cluster.local"]
    _openssl(folder, "req", "-x509", *CURVE, *_files("ca"), "-subj", "/CN=pumasi-test-cluster")
    extras = ("-addext", f"subjectAltName={','.join(names)}")
    _openssl(folder, "req", "-x509", *CURVE, *authority, *_files("server"), "-subj", "/CN=kube-apiserver", *extras)
    subject = "/O=system:masters/CN=kube-apiserver-kubelet-client"
    extras = ("-addext", "extendedKeyUsage=clientAuth")
    _openssl(folder, "req", "-x509", *CURVE, *authority, *_files("kubelet-client"), "-subj", subject, *extras)
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


def _files(name: str) -> tuple[str, ...]:
    return ("-keyout", f"{name}.key", "-out", f"{name}.crt")


def _openssl(folder: Path, *arguments: str) -> None:
    result = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if result.returncode:
        raise ClusterError(f"openssl {arguments[0]} failed: {result.stderr.strip()[-500:]}")
