"""An agent in a pod: its configuration and the user's code are in the environment, or in files."""

from __future__ import annotations

import base64
import contextlib
import json
import os

from pumasi.agent.config import objection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pumasi.agent.links import Message


def pod() -> Message:
    """What a pod was given, out of the way of the user's program: its environment is to be its own."""
    import zlib

    config: Message = json.loads(zlib.decompress(base64.b64decode(os.environ.pop("PUMASI_BOOT_CONFIG"))))
    if objection(config):
        return config
    if "each" in config:
        # All pods of a Job are given the same, and a number.
        config.update(config.pop("each")[int(os.environ["JOB_COMPLETION_INDEX"])])
    config["secret"] = os.environ.pop("PUMASI_BOOT_SECRET", "")
    config["address"] = os.environ.pop("PUMASI_BOOT_ADDRESS", "")
    node = os.environ.pop("PUMASI_BOOT_NODE", "")
    for rank in config["ranks"]:
        # Who made the pod may not know where the scheduler puts it.
        rank["env"]["PUMASI_NODE"] = node or rank["env"]["PUMASI_NODE"]
    os.makedirs(config["cwd"], exist_ok=True)
    with contextlib.suppress(OSError):
        os.makedirs(os.environ.get("HOME") or "/", exist_ok=True)
    unpack(packed_code(), config["cwd"])
    return config


def packed_code() -> bytes:
    """The user's files: in pieces in the environment, or, where they are too large for that, in files."""
    import glob

    pieces = sorted(name for name in os.environ if name.startswith("PUMASI_BOOT_CODE_"))
    text = "".join(os.environ.pop(name) for name in pieces)
    packed = base64.b64decode(text)
    for path in sorted(glob.glob("/pumasi/code/*")):
        with open(path, "rb") as file:
            packed += file.read()
    return packed


def unpack(packed: bytes, folder: str) -> None:
    if packed:
        import io
        import tarfile

        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            # The user's own files, packed by us; a filter is there to keep newer Pythons from warning.
            options = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
            archive.extractall(folder, **options)  # type: ignore[arg-type]  # noqa: S202
