"""Our own modules in a pod whose image does not have them: a ConfigMap, handed over as environment variables, and the
command that unpacks and runs them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes.manifests import FOLDER, PIECE, Object

OLDEST_PYTHON = (3, 10)
SOURCE = Path(__file__).parents[2]


def packed(files: Iterable[Path]) -> bytes:
    """The same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in files:
            entry = zipfile.ZipInfo(f"pumasi/{path.relative_to(SOURCE).as_posix()}")
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def config_map(metadata: Object, package: bytes) -> Object:
    text = manifests.encoded(package)
    starts = range(0, len(text), PIECE)
    pieces = {f"piece{number:02}": text[start : start + PIECE] for number, start in enumerate(starts)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": pieces}


def environment(package: Object) -> list[Object]:
    """For a container that is to run what is in this ConfigMap."""
    name = package["metadata"]["name"]
    return [
        *(
            {"name": f"PUMASI_BOOT_{key}", "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}
            for key in package["data"]
        ),
        {"name": "HOME", "value": f"{FOLDER}/home"},
    ]


def boot(who: str, module: str) -> str:
    """A program for `python -c`, which calls `main` of the module with its arguments."""
    return (
        "import base64,io,os,sys,zipfile;"
        f"sys.version_info>={OLDEST_PYTHON} or sys.exit('{who} needs Python {'.'.join(map(str, OLDEST_PYTHON))}.');"
        "names=sorted(name for name in os.environ if name.startswith('PUMASI_BOOT_'));"
        "packed=base64.b64decode(''.join(os.environ.pop(name) for name in names));"
        f"zipfile.ZipFile(io.BytesIO(packed)).extractall('{FOLDER}/package');"
        f"sys.path.insert(0,'{FOLDER}/package');"
        f"from {module} import main;"
        "sys.exit(main(*sys.argv[1:]))"
    )
