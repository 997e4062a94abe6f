"""What a person gives (words, a picture, numbers) ─► the numbers that the model was trained on.

Training and serving share this code: a training script makes a `Text`, feeds the model with its `encode`, and saves it
beside the model. Whoever serves the model loads that file and can't encode differently. docs/serve.md has the format.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from pumasi.errors import UsageError
from pumasi.serve import png

FORMAT, VERSION = "pumasi-preprocessing", 1
SIDES = ("before", "after")
OUTPUTS = ("probabilities", "logits")
WORD = r"\w+(?:'\w+)*"
"""A word, where nothing else is said: letters and digits, with apostrophes inside of them."""
_DATA_URL = "data:image/png;base64,"
_LARGEST_ID = 2**31 - 1

Numbers = NDArray[Any]
Saved = TypeVar("Saved", bound="Preprocessing")


class BadInput(UsageError):
    """What was given can't be an input of the model."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """`labels` name what the model tells apart; without them its output is shown as numbers. `output` says what these
    are. `examples` are inputs that a page offers to try."""

    kind: ClassVar[str]
    labels: Sequence[str] = ()
    output: str = OUTPUTS[0]
    examples: Sequence[Any] = ()

    def __post_init__(self) -> None:
        for name in ("labels", "examples"):
            object.__setattr__(self, name, tuple(_sequence(name, getattr(self, name))))
        _need(all(isinstance(label, str) and label for label in self.labels), "labels", "has to be a list of words")
        _need(len(set(self.labels)) == len(self.labels), "labels", "has a word twice")
        _need(len(self.labels) != 1, "labels", "has only one word, which would always be right")
        _need(self.output in OUTPUTS, "output", f"has to be one of {', '.join(OUTPUTS)}")
        self._check()
        try:
            for example in self.examples:
                self.row(example)
        except BadInput as error:
            raise UsageError(f"One of the examples is no input of the model: {error.message}") from None

    def _check(self) -> None:
        """Raises a UsageError that names the field that makes no sense."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one input, as the model gets it; None where only the model knows."""
        raise NotImplementedError

    def row(self, value: object) -> Numbers:
        """One input, as JSON has it, for the model; a `BadInput` where it can't be one."""
        raise NotImplementedError

    def sample(self) -> Numbers | None:
        """An input to try the model with, as it gets it: an example, or else an ordinary one. Models that mask the
        padding have no answer to nothing. None where only the model knows what an input is."""
        return self.row(self.examples[0]) if self.examples else self._ordinary()

    def _ordinary(self) -> Numbers | None:
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """To `path`, which is there whole or not at all. Beside `final.keras` it is called
        `final.keras.preprocessing.json`."""
        path = Path(path)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        text = json.dumps({"format": FORMAT, "version": VERSION, "kind": self.kind, **values}, ensure_ascii=False)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unfinished.write_text(text + "\n", encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls: type[Saved], path: str | Path) -> Saved:
        """What `save` has written. Called on a kind, it has to be of that kind."""
        loaded = read(Path(path))
        if not isinstance(loaded, cls):
            raise UsageError(f"{path} is of kind {loaded.kind}, not {cls.kind}.")
        return loaded


@dataclass(frozen=True, kw_only=True)
class Text(Preprocessing):
    """The first of `words` has the id `first_id`, the next one more, and so on. A word that is not among them, or has
    an id beyond `largest_id`, is `unknown_id`; where that is None, it is left out. With a `start_id` every text begins
    with it. A text that is too long is cut, one that is too short is padded: before what is kept, or after it."""

    kind: ClassVar[str] = "text"
    words: Sequence[str]
    length: int
    first_id: int = 2
    padding_id: int = 0
    unknown_id: int | None = 1
    start_id: int | None = None
    largest_id: int | None = None
    pattern: str = WORD
    lowercase: bool = True
    pad: str = "before"
    cut: str = "before"

    def _check(self) -> None:
        object.__setattr__(self, "words", tuple(_sequence("words", self.words)))
        _need(all(isinstance(word, str) for word in self.words), "words", "has to be a list of words")
        _need(len(set(self.words)) == len(self.words), "words", "has a word twice")
        _need(_is_whole(self.length, least=1), "length", "has to be a whole number from 1 on")
        for name in ("first_id", "padding_id", "unknown_id", "start_id", "largest_id"):
            value = getattr(self, name)
            optional = name in ("unknown_id", "start_id", "largest_id")
            _need((optional and value is None) or _is_whole(value), name, "has to be a whole number from 0 on")
        _need(isinstance(self.lowercase, bool), "lowercase", "has to be true or false")
        for name in ("pad", "cut"):
            _need(getattr(self, name) in SIDES, name, f"has to be one of {', '.join(SIDES)}")
        try:
            re.compile(self.pattern)
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise UsageError(f"pattern is no regular expression: {error}.") from None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def ids(self) -> int:
        """More than the largest id that `encode` can give."""
        special = [self.padding_id, self.unknown_id or 0, self.start_id or 0]
        return max([*special, *self._ids.values()]) + 1

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        last = _LARGEST_ID if self.largest_id is None else self.largest_id
        return {word: number for number, word in enumerate(self.words, self.first_id) if number <= last}

    def encode(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """A row of `length` ids for each text."""
        rows = np.full((len(texts), self.length), self.padding_id, np.int32)
        for row, text in zip(rows, texts, strict=True):
            ids = self._encode(text)
            ids = ids[-self.length :] if self.cut == "before" else ids[: self.length]
            if ids:
                row[slice(-len(ids), None) if self.pad == "before" else slice(len(ids))] = ids
        return rows

    def _ordinary(self) -> Numbers:
        return self.row(" ".join(self.words[: self.length]))

    def _encode(self, text: str) -> list[int]:
        found = (match[0] for match in re.finditer(self.pattern, text.lower() if self.lowercase else text))
        ids = [self._ids.get(word, self.unknown_id) for word in found]
        start = [] if self.start_id is None else [self.start_id]
        return start + [number for number in ids if number is not None]

    def row(self, value: object) -> Numbers:
        if not isinstance(value, str):
            raise BadInput("The input has to be a text.", 'Write {"input": "a text"}.')
        row: Numbers = self.encode([value])[0]
        return row


@dataclass(frozen=True, kw_only=True)
class Image(Preprocessing):
    """Height, width and, where the model wants them, channels: 1 is grey, 3 are red, green, blue. The model gets pixels
    from 0 to 255, times `scale`, plus `offset`. `background` is behind what is transparent, and of an empty canvas."""

    kind: ClassVar[str] = "image"
    size: tuple[int, ...]
    scale: float = 1 / 255
    offset: float = 0.0
    background: int = 0

    def _check(self) -> None:
        object.__setattr__(self, "size", tuple(_sequence("size", self.size)))
        right = len(self.size) in (2, 3) and all(_is_whole(each, least=1) for each in self.size)
        _need(right and max(self.size[:2]) <= png.MOST_PIXELS, "size", "has to be [height, width] or with channels")
        _need(self.channels in (1, 3), "size", "can have 1 or 3 channels")
        for name in ("scale", "offset"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and bool(np.isfinite(value))
            _need(is_number, name, "has to be a number")
        _need(_is_whole(self.background) and self.background <= 255, "background", "has to be from 0 to 255")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    @property
    def channels(self) -> int:
        return self.size[2] if len(self.size) == 3 else 1

    def encode(self, pixels: Sequence[Numbers]) -> NDArray[np.float32]:
        """Pictures whose pixels are as `size` says."""
        return (np.stack([np.reshape(each, self.size) for each in pixels]) * self.scale + self.offset).astype(
            np.float32
        )

    def _ordinary(self) -> Numbers:
        row: Numbers = self.encode([np.full(self.size, self.background)])[0]
        return row

    def pixels(self, value: object) -> Numbers:
        """The pixels of a picture as JSON has it: a PNG as a data URL, of any size, or the pixels themselves."""
        if isinstance(value, str):
            return self.pixels_of_png(_decoded(value))
        numbers = _numbers(value)
        if numbers.shape not in (self.size, self.size[:2]) or (numbers.shape != self.size and self.channels != 1):
            raise BadInput(f"The picture has the shape {_shown(numbers.shape)}; it has to be {_shown(self.size)}.")
        if numbers.min() < 0 or numbers.max() > 255:
            raise BadInput("Pixels have to be from 0 to 255.", "They are scaled here, as they were for the training.")
        return numbers.reshape(self.size)

    def pixels_of_png(self, data: bytes) -> Numbers:
        try:
            decoded = png.decode(data)
        except ValueError as error:
            raise BadInput(f"The picture can't be read: {error}.", "Send a PNG with 8 bits a channel.") from None
        height, width = self.size[:2]
        fitted = png.fitted(decoded, height, width, self.channels, self.background)
        return fitted.reshape(self.size)

    def row(self, value: object) -> Numbers:
        row: Numbers = self.encode([self.pixels(value)])[0]
        return row


@dataclass(frozen=True, kw_only=True)
class Array(Preprocessing):
    """Numbers as they are. Without a `size` every shape will do that the model takes. With `ids` they have to be whole
    numbers below that."""

    kind: ClassVar[str] = "array"
    size: tuple[int | None, ...] | None = None
    ids: int | None = None

    def _check(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", tuple(_sequence("size", self.size)))
            right = all(each is None or _is_whole(each, least=1) for each in self.size)
            _need(right, "size", "has to be a list of whole numbers; null where any length will do")
        _need(self.ids is None or _is_whole(self.ids, least=1), "ids", "has to be a whole number from 1 on")

    @property
    def shape(self) -> tuple[int, ...] | None:
        known = [each for each in self.size or () if each is not None]
        return tuple(known) if self.size is not None and len(known) == len(self.size) else None

    def _ordinary(self) -> Numbers | None:
        """Ones: 0 is what embeddings mask, if they mask anything."""
        return None if self.shape is None else np.full(self.shape, 0 if self.ids == 1 else 1)

    def row(self, value: object) -> Numbers:
        numbers = _numbers(value)
        if self.size is not None and not _fits(numbers.shape, self.size):
            raise BadInput(f"The input has the shape {_shown(numbers.shape)}; it has to be {_shown(self.size)}.")
        if self.ids is not None and (numbers.min() < 0 or numbers.max() >= self.ids or (numbers % 1).any()):
            raise BadInput(f"The numbers have to be ids: whole, from 0 to {self.ids - 1}.")
        return numbers


_KINDS: Mapping[str, type[Preprocessing]] = {kind.kind: kind for kind in (Text, Image, Array)}


def read(path: Path) -> Preprocessing:
    """The preprocessing that `path` describes; a UsageError says what is wrong with it, and where."""
    try:
        said = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.", "A training script makes it: Text(…).save(…).") from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}.") from None
    if not isinstance(said, dict) or said.pop("format", None) != FORMAT:
        raise UsageError(f'{path} is no preprocessing: it has no "format": "{FORMAT}".', "See docs/serve.md.")
    if said.pop("version", None) != VERSION:
        raise UsageError(f"{path} was written by another version of Pumasi.", f"This one reads version {VERSION}.")
    try:
        return _made(said)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None


def _made(said: dict[str, Any]) -> Preprocessing:
    word = said.pop("kind", None)
    kind = _KINDS.get(word) if isinstance(word, str) else None
    if kind is None:
        raise UsageError(f"kind has to be one of {', '.join(_KINDS)}.")
    known = {field.name: field for field in fields(kind)}
    strange = [name for name in said if name not in known]
    if strange:
        raise UsageError(f"{kind.kind} has no field {strange[0]}.", f"It has {', '.join(known)}.")
    absent = [name for name, field in known.items() if field.default is MISSING and name not in said]
    if absent:
        raise UsageError(f"{kind.kind} needs the field {absent[0]}.")
    return kind(**said)


def _need(right: bool, field: str, what: str) -> None:
    if not right:
        raise UsageError(f"{field} {what}.")


def _sequence(field: str, value: object) -> Sequence[Any]:
    _need(isinstance(value, (list, tuple)), field, "has to be a list")
    assert isinstance(value, (list, tuple))
    return value


def _is_whole(value: object, *, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST_ID


def _numbers(value: object) -> Numbers:
    """A list, or lists in lists, of finite numbers."""
    if not isinstance(value, list):
        raise BadInput("The input has to be a list of numbers, or of lists.", 'Write {"input": [1, 2, 3]}.')
    try:
        numbers = np.asarray(value)
    except (ValueError, OverflowError):
        raise BadInput("The lists in the input are not equally long.") from None
    if numbers.dtype.kind not in "iuf":
        raise BadInput("The input has something in it that is no number.")
    if not numbers.size:
        raise BadInput("The input is empty.")
    with np.errstate(over="ignore"):
        if not np.isfinite(numbers.astype(np.float32)).all():
            raise BadInput("The input has a number in it that is not finite.", "As float32, which models calculate in.")
    return numbers


def _fits(shape: tuple[int, ...], size: tuple[int | None, ...]) -> bool:
    return len(shape) == len(size) and all(need in (None, has) for has, need in zip(shape, size, strict=True))


def _shown(shape: Sequence[int | None]) -> str:
    return " × ".join("any" if each is None else str(each) for each in shape) or "of a single number"


def _decoded(url: str) -> bytes:
    if not url.startswith(_DATA_URL):
        raise BadInput("A picture as text has to be a PNG as a data URL.", f"It begins with {_DATA_URL}")
    try:
        return base64.b64decode(url[len(_DATA_URL) :], validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("The picture's base64 is damaged.") from None
