"""Container images as tar archives in Docker's form, small enough to be made on the spot."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

HOST_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def pause(program: Path) -> bytes:
    """What holds a pod's namespaces."""
    return _layer({"pause": program.read_bytes()}, {})


def host() -> bytes:
    """No program of its own: containers see those of the machine that the cluster runs on."""
    return _layer({name: text.encode() for name, text in HOST_FILES.items()}, {"tmp": 0o1777, "root": 0o755})


def archive(name: str, layer: bytes, entrypoint: list[str], path: str, architecture: str) -> bytes:
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": [f"PATH={path}"], "Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    return _layer(files, {})


def _layer(files: dict[str, bytes], folders: dict[str, int]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in folders.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
