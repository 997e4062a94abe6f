"""The GPUs of this machine, as their drivers' own tools tell them: nvidia-smi and rocm-smi.

No driver library is loaded: a broken driver must not take Pumasi down with it. Asking and reading are apart, so that
answers recorded on machines that we do not have can be tested. Whatever a tool says instead of a list ("No devices were
found", a driver mismatch) means that there is no GPU to use; `pumasi doctor` tells why (`complaint`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Ask = Callable[[Sequence[str]], str]
"""A command line to what it prints; empty where the program is missing, fails or does not answer in time."""

_NVIDIA_FIELDS = "index,uuid,name,memory.total,memory.used,mig.mode.current"
_NVIDIA_FIELDS_BEFORE_MIG = "index,uuid,name,memory.total,memory.used"
_TIMEOUT = 5.0
_MEBIBYTE = 1024 * 1024


class Gpu(NamedTuple):
    """One GPU, or one MIG instance of it (number "0:1"). Memory in MiB, None where the driver does not say, as on
    machines whose GPU shares the memory of the CPU."""

    vendor: str
    number: str
    uuid: str
    name: str
    memory_total: int | None
    memory_used: int | None
    busy: bool

    @property
    def handle(self) -> str:
        """How CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES names it: CUDA counts in another order than nvidia-smi does,
        so by UUID; HIP knows indices only."""
        return self.uuid if self.vendor == "nvidia" else self.number


def ask(command: Sequence[str], timeout: float = _TIMEOUT) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode(errors="replace") if answer.returncode == 0 else ""


def list_gpus(environ: Mapping[str, str], run: Ask = ask) -> list[Gpu]:
    """The GPUs that a program started with `environ` may use, busy ones too."""
    nvidia = _ask_nvidia(run)
    if nvidia:
        return visible(nvidia, environ.get("CUDA_VISIBLE_DEVICES"))
    amd = _ask_amd(run)
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        amd = visible(amd, environ.get(variable))
    return amd if "HIP_VISIBLE_DEVICES" in environ else visible(amd, environ.get("CUDA_VISIBLE_DEVICES"))


def complaint(timeout: float = _TIMEOUT) -> str:
    """What nvidia-smi says in place of a list of GPUs; empty where it is not installed or all is well."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi does not answer within {timeout:g} seconds"
    except OSError:
        return ""
    said = (answer.stdout or answer.stderr).decode(errors="replace").strip()
    return "" if said.startswith("GPU ") else " ".join(said.split())


def visible(gpus: Sequence[Gpu], allowed: str | None) -> list[Gpu]:
    """What a *_VISIBLE_DEVICES variable leaves, in its order: indices, or UUIDs shortened at will. As CUDA does, the
    first entry that names no GPU ends the list (-1 hides all); a MIG instance can't be named by an index."""
    if allowed is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for entry in allowed.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:
            break
        chosen.append(gpu)
    return chosen


def _named(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isdigit():
        return next((gpu for gpu in gpus if gpu.number == entry), None)
    matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _ask_nvidia(run: Ask) -> list[Gpu]:
    query = ["nvidia-smi", "--format=csv,noheader,nounits"]
    table = run([*query, f"--query-gpu={_NVIDIA_FIELDS}"]) or run([*query, f"--query-gpu={_NVIDIA_FIELDS_BEFORE_MIG}"])
    if not parse_nvidia(table, "", ""):
        return []
    listing = run(["nvidia-smi", "-L"]) if "Enabled" in table else ""
    return parse_nvidia(table, run([*query, "--query-compute-apps=gpu_uuid,pid"]), listing)


def parse_nvidia(table: str, processes: str, listing: str) -> list[Gpu]:
    """`table` and `processes` are CSV answers of nvidia-smi; `listing` is `nvidia-smi -L`, for the MIG instances.
    Where a process names the whole GPU, every instance of it counts as busy: better to wait than to trample."""
    busy = {line.split(",")[0].strip() for line in processes.splitlines()}
    gpus: list[Gpu] = []
    for line in table.splitlines():
        index, uuid, name, total, used, *mig = [field.strip() for field in line.split(",")] + [""] * 4
        if not index.isdigit() or not name:
            continue
        if mig[0] == "Enabled":
            gpus += _instances(listing, index, name, busy if uuid not in busy else None)
        else:
            gpus.append(Gpu("nvidia", index, uuid, name, _number(total), _number(used), uuid in busy))
    return gpus


_GPU_LINE = re.compile(r"GPU (\d+): ")
_INSTANCE_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")
_PROFILE_MEMORY = re.compile(r"\.(\d+)gb")


def _instances(listing: str, gpu: str, name: str, busy: set[str] | None) -> list[Gpu]:
    """The MIG instances of one GPU; all of them busy where `busy` is None."""
    found = []
    current = ""
    for line in listing.splitlines():
        if head := _GPU_LINE.match(line):
            current = head[1]
        elif current == gpu and (instance := _INSTANCE_LINE.match(line)):
            profile, number, uuid = instance.groups()
            size = _PROFILE_MEMORY.search(profile)
            memory = int(size[1]) * 1024 if size else None
            taken = busy is None or uuid in busy
            found.append(Gpu("nvidia", f"{gpu}:{number}", uuid, f"{name} MIG {profile}", memory, None, taken))
    return found


def _number(field: str) -> int | None:
    """A count of MiB, or None for "[N/A]", "[Not Supported]" and whatever else drivers put there."""
    return int(field) if field.isdigit() else None


def _ask_amd(run: Ask) -> list[Gpu]:
    cards = run(["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--json"])
    return parse_amd(cards, run(["rocm-smi", "--showpidgpus"])) if cards else []


def parse_amd(cards: str, processes: str) -> list[Gpu]:
    """`cards` is an answer of rocm-smi in JSON; `processes` lists which process uses which cards, in words."""
    import json

    try:
        # Warnings may stand before the JSON.
        answer = json.loads(cards[cards.index("{") :])
    except ValueError:
        return []
    busy = _busy_cards(processes)
    return [
        _amd_gpu(key[len("card") :], fields, busy)
        for key, fields in answer.items()
        if key.startswith("card") and key[len("card") :].isdigit()
    ]


def _amd_gpu(index: str, fields: Mapping[str, str], busy: set[str]) -> Gpu:
    unique = fields.get("Unique ID", "N/A")
    uuid = "GPU-" + unique.removeprefix("0x") if unique.startswith("0x") else ""
    name = fields.get("Card Series") or fields.get("Device Name") or fields.get("Card series") or "AMD GPU"
    total, used = (fields.get(f"VRAM Total {which}", "") for which in ("Memory (B)", "Used Memory (B)"))
    return Gpu("amd", index, uuid, name, _mebibytes(total), _mebibytes(used), index in busy)


def _mebibytes(field: str) -> int | None:
    return int(field) // _MEBIBYTE if field.isdigit() else None


_CARDS_OF_PROCESS = re.compile(r"PID \d+ is using \d+ DRM device\(s\):?\s*((?:\d+\s+)*)")


def _busy_cards(processes: str) -> set[str]:
    return {card for cards in _CARDS_OF_PROCESS.findall(processes + "\n") for card in cards.split()}
