"""What --set changes in an object: PATH=VALUE.

spec.dnsPolicy=None                              names, with dots between them
metadata.annotations["a.b/c"]=x                  a name that has dots itself
spec.containers[0].securityContext.privileged=true
spec.containers[name=main].image=IMAGE           the item of a list that has this name
spec.tolerations[+]={"operator": "Exists"}       a new item at its end; JSON is JSON
spec.securityContext=null                        null removes
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.errors import SpecError
from pumasi.pools.kubernetes.notation import said

_ROOTS = ("spec", "metadata")
_NAME = re.compile(r"""[^.\[\]=\s"']+""")
_QUOTED = re.compile(r"""\[?(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\]?""")
_INDEX = re.compile(r"\[([0-9]{1,6})\]")
_PICK = re.compile(r"\[([^\[\]=\"']+)=([^\[\]]*)\]")
_BRACKET = re.compile(r"\[([^\[\]=\"']+)\]")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?")
_GROUPS_OF_TEXT = frozenset(("labels", "annotations", "nodeSelector", "matchLabels"))


class Item(NamedTuple):
    """A step into a list: to item `at`, to the one whose `key` is `value`, or, with neither, to a new one."""

    at: int | None = None
    key: str = ""
    value: str = ""

    def __str__(self) -> str:
        if self.at is not None:
            return f"[{self.at}]"
        return f"[{self.key}={self.value}]" if self.key else "[+]"


NEW = Item()
Step = str | Item


class Patch(NamedTuple):
    """A value of None removes what is there."""

    text: str
    path: tuple[Step, ...]
    value: Any


def parse_patch(text: str) -> Patch:
    path, position = _read_path(text)
    if not text.startswith("=", position):
        raise SpecError(f'{said(text)} has no "=" after its path', "give PATH=VALUE")
    if path[0] not in _ROOTS or len(path) == 1:
        raise SpecError(f"{said(text)} names no field of a pod", "start the path with spec or metadata, and go on")
    written = text[position + 1 :]
    is_text = _takes_text(path) and written != "null" and not written.startswith('"')
    value = written if is_text else _read_value(written)
    if value is None and path[-1] == NEW:
        raise SpecError(f"{said(text)} would remove what is not there yet", "say which item: [0] or [name=main]")
    return Patch(text, path, value)


def _read_path(text: str) -> tuple[tuple[Step, ...], int]:
    """The steps, and where they end."""
    steps: list[Step] = []
    position = 0
    while position < len(text) and text[position] != "=":
        if text[position] == "." and steps:
            position += 1
            if text.startswith("[", position):
                raise _broken(text, position)
        elif steps and text[position] != "[":
            raise _broken(text, position)
        step, position = _read_step(text, position)
        steps.append(step)
    if not steps:
        raise SpecError(f"{said(text)} has no path", "give PATH=VALUE")
    return tuple(steps), position


def _read_step(text: str, position: int) -> tuple[Step, int]:
    if text.startswith("[+]", position):
        return NEW, position + 3
    for form in (_INDEX, _PICK, _QUOTED, _BRACKET, _NAME):
        match = form.match(text, position)
        if match and _is_whole(form, match[0]):
            return _step(form, match), match.end()
    raise _broken(text, position)


def _is_whole(form: re.Pattern[str], text: str) -> bool:
    """A quoted name has both brackets or none."""
    return form is not _QUOTED or text.startswith("[") == text.endswith("]")


def _step(form: re.Pattern[str], match: re.Match[str]) -> Step:
    if form is _INDEX:
        return Item(at=int(match[1]))
    if form is _PICK:
        return Item(key=match[1].strip(), value=match[2].strip().strip("\"'"))
    if form is _QUOTED:
        return re.sub(r"\\(.)", r"\1", match[1]) if match[1] is not None else match[2]
    return match[1] if form is _BRACKET else match[0]


def _broken(text: str, position: int) -> SpecError:
    where = f"at {said(text[position : position + 12])}" if position < len(text) else "at its end"
    right = 'give names with dots between them, items as [0], [name=main] or [+], and names with dots as ["a.b/c"]'
    return SpecError(f"the path of {said(text)} can't be read {where}", right)


def _takes_text(path: Sequence[Step]) -> bool:
    """Kubernetes takes nothing but text for labels and their like, and for the value of a variable: 1 is "1" there."""
    return path[-1] == "value" or (len(path) > 1 and path[-2] in _GROUPS_OF_TEXT)


def _read_value(text: str) -> Any:
    if text[:1] in ("{", "[", '"'):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            right = 'close what is open, and put names and texts in "double quotes"'
            raise SpecError(f"{said(text)} is not JSON", right) from None
    return json.loads(text) if _SCALAR.fullmatch(text) else text


def apply(patches: Iterable[Patch], document: Mapping[str, Any]) -> dict[str, Any]:
    """A new object, with the changes made in their order. SpecError where one leads nowhere."""
    made = copy.deepcopy(dict(document))
    for patch in patches:
        if patch.value is None:
            _remove(patch, made)
        else:
            _set(patch, made)
    return made


def _set(patch: Patch, document: dict[str, Any]) -> None:
    place: Any = document
    for depth, step in enumerate(patch.path):
        position = _position(patch, depth, place)
        if position is None and isinstance(step, Item) and step != NEW:
            raise _missing(patch, depth, place)
        following = patch.path[depth + 1 : depth + 2]
        if not following:
            _put(place, step, copy.deepcopy(patch.value), position)
        elif position is None:
            inner: Any = [] if isinstance(following[0], Item) else {}
            _put(place, step, inner)
            place = inner
        else:
            place = place[position]


def _put(place: Any, step: Step, value: Any, position: str | int | None = None) -> None:
    if step == NEW:
        place.append(value)
    else:
        place[step if position is None else position] = value


def _remove(patch: Patch, document: dict[str, Any]) -> None:
    """What is not there need not be removed."""
    place: Any = document
    for depth in range(len(patch.path)):
        position = _position(patch, depth, place)
        if position is None:
            return
        if depth == len(patch.path) - 1:
            del place[position]
        else:
            place = place[position]


def _position(patch: Patch, depth: int, place: Any) -> str | int | None:
    """Where in `place` the step at `depth` leads; None where there is nothing yet."""
    step = patch.path[depth]
    if isinstance(step, str):
        if not isinstance(place, dict):
            what = "a list; say which item: [0], [name=main] or [+]" if isinstance(place, list) else "no group of names"
            raise SpecError(f"--set {patch.text}: {_written(patch.path[:depth])} is {what}")
        return step if step in place else None
    if not isinstance(place, list):
        raise SpecError(f"--set {patch.text}: {_written(patch.path[:depth])} is no list, so {step} leads nowhere")
    if step.at is not None:
        return step.at if step.at < len(place) else None
    return next((number for number, item in enumerate(place) if _is_it(item, step)), None)


def _is_it(item: Any, step: Item) -> bool:
    return step != NEW and isinstance(item, dict) and str(item.get(step.key)) == step.value


def _missing(patch: Patch, depth: int, place: Sequence[Any]) -> SpecError:
    count = f"{len(place)} item" + ("" if len(place) == 1 else "s")
    where = _written(patch.path[:depth])
    return SpecError(f"--set {patch.text}: {where} has {count}, but no {patch.path[depth]}", "[+] appends one.")


def _written(path: Sequence[Step]) -> str:
    return "".join(str(step) if isinstance(step, Item) else f".{step}" for step in path).lstrip(".")
