"""A manager inside the cluster: a Job whose pod runs this very package, which travels there as the user's code does.

It needs an image with Python and nothing else: what it imports there is the standard library and our own modules.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumasi.kube import manifests
from pumasi.kube.manifests import FOLDER, KIND, PIECE, PYTHON, RUN, Object, Owner
from pumasi.kube.rights import NAME

OLDEST_PYTHON = (3, 10)
TRIES = 20
"""How often its pod is started again when it fails; being evicted does not count."""
_PARTS = ("agent", "core", "data", "kube", "models", "pools", "store")
_MODULES = ("__init__", "errors", "inside", "manager", "recorder", "report", "steps")
_LEFT_OUT = frozenset(
    f"{name}.py"
    for name in (
        *("core/ignoring", "kube/documents", "kube/rendering"),
        *("pools/gpus", "pools/local", "pools/rehearsal"),
    )
)
"""What is for the user's side only, and may need more than the standard library."""
_BOOT = (
    "import base64,io,os,sys,zipfile;"
    f"sys.version_info>={OLDEST_PYTHON} or sys.exit('The manager needs Python {'.'.join(map(str, OLDEST_PYTHON))}.');"
    "names=sorted(name for name in os.environ if name.startswith('PUMASI_BOOT_'));"
    "packed=base64.b64decode(''.join(os.environ.pop(name) for name in names));"
    f"zipfile.ZipFile(io.BytesIO(packed)).extractall('{FOLDER}/package');"
    f"sys.path.insert(0,'{FOLDER}/package');"
    "from pumasi.inside import main;"
    "sys.exit(main(sys.argv[1]))"
)


def package() -> bytes:
    """The modules that a manager needs, the same bytes for the same sources."""
    source = Path(__file__).parent.parent
    files = [path for part in _PARTS for path in sorted((source / part).rglob("*.py"))]
    files += [source / f"{name}.py" for name in _MODULES]
    files = [path for path in files if path.relative_to(source).as_posix() not in _LEFT_OUT]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in files:
            entry = zipfile.ZipInfo(f"pumasi/{path.relative_to(source).as_posix()}")
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def package_map(run: str, owner: Owner) -> Object:
    text = manifests.encoded(package())
    starts = range(0, len(text), PIECE)
    pieces = {f"piece{number:02}": text[start : start + PIECE] for number, start in enumerate(starts)}
    labels = manifests.labels(run, "package")
    metadata = {"name": f"{run}-package", "labels": labels, "ownerReferences": [owner.reference]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": pieces}


def manager_job(run: str, owner: Owner, image: str, pieces: Mapping[str, Any], tolerations: list[Object]) -> Object:
    """Its pod may be evicted, and lost with its node: the Job starts another one, which adopts the run."""
    labels = manifests.labels(run, "manager")
    source = f"{run}-package"
    env: list[Object] = [
        {"name": f"PUMASI_BOOT_{key}", "valueFrom": {"configMapKeyRef": {"name": source, "key": key}}} for key in pieces
    ]
    env.append({"name": "HOME", "value": f"{FOLDER}/home"})
    container = {
        "name": "manager",
        "image": image,
        "command": [PYTHON, "-c", _BOOT, run],
        "env": env,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": manifests.restricted_container(),
    }
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 20,
        "enableServiceLinks": False,
        "tolerations": [*tolerations, *manifests.brief_patience()],
        "securityContext": manifests.restricted_pod(),
        "containers": [container],
    }
    evictions = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    spec = {
        "backoffLimit": TRIES,
        "podFailurePolicy": {"rules": [evictions]},
        "template": {"metadata": {"labels": {RUN: run, KIND: "manager"}}, "spec": pod},
    }
    metadata = {"name": f"{run}-manager", "labels": labels, "ownerReferences": [owner.reference]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
