"""The notation in which one asks a Kubernetes cluster for something: quantities, names, tolerations, mounts, Secrets.

Every function takes what a user wrote. A mistake in it is a SpecError: its message says what is wrong, its hint what
would be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from pathlib import PurePosixPath
from typing import NamedTuple

from pumasi.errors import SpecError

OWN_DOMAIN = "pumasi.dev"
OWN_FOLDER = "/tmp/pumasi"
"""Where the agent keeps its things in a pod."""
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MOST_CORES = 10_000
LEAST_BYTES, MOST_BYTES = 2**20, 2**50
VOLUME_BYTES = 10 * 2**30
VOLUME_PATH = "/volume"
"""Where a pod finds the volume that --volume names."""

_LONGEST_SHOWN = 60
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("kMGTPE", start=1)}
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,20})?"
_CORES = re.compile(rf"({_NUMBER})(m?)")
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_NAME = re.compile(rf"{_DNS_LABEL.pattern}(\.{_DNS_LABEL.pattern})*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_HOST = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:)|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"(?:{_HOST})?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@\w+:[0-9a-fA-F]{{32,}})?", re.ASCII)


def said(value: object) -> str:
    """In quotes, and not too long for a sentence."""
    if isinstance(value, (int, float)) and abs(value) < MOST_BYTES:
        return str(value)
    if not isinstance(value, str):
        return "this value"
    return f'"{value[:_LONGEST_SHOWN]}{"…" * (len(value) > _LONGEST_SHOWN)}"'


def cores(value: object) -> float:
    """CPUs from 2, 0.5, "2", "0.5" or "500m". Kubernetes counts in thousandths and rounds up; so does this."""
    match = _CORES.fullmatch(_plain(value))
    if not match:
        raise SpecError(f"{said(value)} is no number of CPUs", "give CPUs or thousandths of one")
    amount = Decimal(match[1]) / (1000 if match[2] else 1)
    if not 0 < amount <= MOST_CORES:
        raise SpecError(f"{match[0]} is no number of CPUs that a slot can have", f"give from 1m to {MOST_CORES}")
    return float(amount.quantize(Decimal("0.001"), ROUND_CEILING))


def size(value: object) -> int:
    """Bytes from 8589934592, "8Gi", "500M" or "1.5G"."""
    match = _SIZE.fullmatch(_plain(value))
    factor = {"": 1, **_DECIMAL, **_BINARY}.get(match[2]) if match else None
    if not match or not factor:
        meant = _meant(match[1], match[2]) if match else ""
        right = f"{meant}give bytes, or a unit: k, M, G and T are powers of 1000, Ki, Mi, Gi and Ti of 1024"
        raise SpecError(f"{said(value)} is no amount of memory", right)
    amount = int((Decimal(match[1]) * factor).to_integral_value(ROUND_CEILING))
    if not LEAST_BYTES <= amount <= MOST_BYTES:
        # Whoever writes 8 means 8 gigabytes, not 8 bytes.
        raise SpecError(f"{match[0]} is no amount of memory that a slot can live with", "give from 1Mi to 1Pi")
    return amount


def _meant(number: str, unit: str) -> str:
    """For 8g, 8GB and 8gib. To Kubernetes 500m is half a byte, which nobody means."""
    pairs = zip(_DECIMAL, _BINARY, strict=True)
    near = next((pair for pair in pairs if pair[0].upper() == unit[0].upper()), None)
    return f"did you mean {number}{near[0]} or {number}{near[1]}? Else " if near else ""


def _plain(value: object) -> str:
    """A number or text as text; whatever else there may be as nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return ""
    # Python writes 0.0000001 as 1e-07, and refuses to write a number of many thousand digits at all.
    if isinstance(value, str) or abs(value) > MOST_BYTES or value != value:
        return value.strip() if isinstance(value, str) else ""
    return str(value) if isinstance(value, int) else format(Decimal(str(value)), "f")


def quantity(amount: float) -> str:
    """As Kubernetes writes it: a float counts cores (2, 500m), a whole number bytes (8Gi, 500M)."""
    if isinstance(amount, float):
        # Three times 0.1 is a little more than 0.3, which is no reason to ask for 301m.
        thousandths = (Decimal(str(round(amount, 6))) * 1000).to_integral_value(ROUND_CEILING)
        return f"{thousandths}m" if thousandths % 1000 else str(int(thousandths) // 1000)
    for unit, factor in sorted({**_BINARY, **_DECIMAL}.items(), key=lambda pair: -pair[1]):
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return str(amount)


def toleration(text: str) -> dict[str, str]:
    """KEY[=VALUE][:EFFECT], as taints are written, as a toleration of Kubernetes: KEY alone tolerates it whatever its
    value, "all" everything."""
    taint, colon, effect = text.strip().partition(":")
    key, equals, value = taint.partition("=")
    if colon and effect not in EFFECTS:
        raise SpecError(f"{said(text)} has an effect that Kubernetes does not know", f"give {_listed(EFFECTS)}")
    made = {"operator": "Equal" if equals else "Exists"}
    if equals or key != "all":
        made = {"key": qualified(key), **made}
    if equals:
        made["value"] = label_value(value)
    return {**made, "effect": effect} if effect else made


class Mount(NamedTuple):
    claim: str
    path: str
    read_only: bool


def mount(text: str) -> Mount:
    """CLAIM:/path[:ro]"""
    claim, _, rest = text.partition(":")
    path, colon, mode = rest.partition(":")
    if not claim or not path or (colon and mode != "ro"):
        raise SpecError(f"{said(text)} is no volume to mount", "give CLAIM:/path, or CLAIM:/path:ro to read only")
    parts = PurePosixPath(path).parts
    if not path.startswith("/") or len(parts) < 2 or ".." in parts:
        raise SpecError(f"{said(path)} is no path in a pod", "give one that starts at / and goes on")
    if PurePosixPath(path).is_relative_to(OWN_FOLDER):
        raise SpecError(f"{said(path)} is where Pumasi keeps its own files", f"give a path outside of {OWN_FOLDER}")
    return Mount(dns_name(claim), "/" + "/".join(parts[1:]), mode == "ro")


def files_mount(mounts: Iterable[str]) -> Mount | None:
    """Where a run keeps its files: on the first volume that it can write to."""
    return next((each for each in map(mount, mounts) if not each.read_only), None)


class Wanted(NamedTuple):
    """A volume by the name of its claim, and how large it is where it has to be made."""

    name: str
    size: int


def volume(text: str) -> Wanted:
    """NAME or NAME:SIZE"""
    name, colon, much = text.partition(":")
    return Wanted(dns_name(name), size(much) if colon else VOLUME_BYTES)


class SecretUse(NamedTuple):
    """All keys of a Secret as variables, or one key as the variable of that name."""

    secret: str
    variable: str = ""
    key: str = ""


def secret_use(text: str) -> SecretUse:
    """SECRET or NAME=SECRET/KEY"""
    variable, equals, rest = text.partition("=")
    if not equals:
        return SecretUse(dns_name(text))
    secret, _, key = rest.partition("/")
    if not _VARIABLE.fullmatch(variable) or not _SECRET_KEY.fullmatch(key):
        right = "give SECRET for all its keys, or NAME=SECRET/KEY for one"
        raise SpecError(f"{said(text)} names no variable of a Secret", right)
    return SecretUse(dns_name(secret), variable, key)


def namespace(text: str) -> str:
    if len(text) > 63 or not _DNS_LABEL.fullmatch(text):
        right = "give at most 63 lower-case letters, digits and dashes"
        raise SpecError(f"{said(text)} can't name a namespace", right)
    return text


def dns_name(text: str) -> str:
    """What Secrets, claims and priority classes are called."""
    if len(text) > 253 or not _DNS_NAME.fullmatch(text):
        right = "give lower-case letters, digits, dashes and dots"
        raise SpecError(f"{said(text)} can't name an object of a cluster", right)
    return text


def qualified(text: str) -> str:
    """The key of a label, a taint or an annotation: NAME or DOMAIN/NAME."""
    domain, slash, name = text.rpartition("/")
    is_good = len(name) <= 63 and _WORD.fullmatch(name) and len(domain) <= 253
    if not is_good or (slash and not _DNS_NAME.fullmatch(domain)):
        right = "give NAME or domain.example/NAME, of at most 63 letters, digits, dashes, dots and underscores"
        raise SpecError(f"{said(text)} is no key that Kubernetes takes", right)
    return text


def own_key(text: str) -> str:
    """A key that the user may put on what Pumasi makes."""
    domain = qualified(text).rpartition("/")[0]
    if domain == OWN_DOMAIN or domain.endswith(f".{OWN_DOMAIN}"):
        raise SpecError(f"{said(text)} is in the domain that Pumasi keeps for itself", "give a key of another domain")
    return text


def label_value(text: str) -> str:
    if len(text) > 63 or not _WORD.fullmatch(text or "0"):
        right = "give at most 63 letters, digits, dashes, dots and underscores"
        raise SpecError(f"{said(text)} is no value that a label can have", right)
    return text


def resource(text: str) -> str:
    """What a cluster calls a GPU: an extended resource, which has a domain."""
    if "/" not in text:
        raise SpecError(f"{said(text)} has no domain", "give what the cluster calls a GPU")
    return qualified(text)


def image(text: str) -> str:
    if len(text) > 512 or not _IMAGE.fullmatch(text):
        right = "give [registry/]name[:tag], the name in lower case"
        raise SpecError(f"{said(text)} can't name an image", right)
    return text


def _listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
