"""Training and serving encode alike, from the same file."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.errors import UsageError
from pumasi.serve import png
from pumasi.serve.preprocessing import Array, BadInput, Image, Preprocessing, Text, read

REVIEWS = Text(
    words=("the", "film", "good", "don't"), length=5, first_id=4, start_id=1, unknown_id=2, labels=("bad", "good")
)


def test_words_become_ids() -> None:
    assert REVIEWS.encode(["The FILM!", "'good', don't", ""]).tolist() == [
        [0, 0, 1, 4, 5],
        [0, 0, 1, 6, 7],
        [0, 0, 0, 0, 1],
    ]


def test_a_text_is_cut_and_padded_on_the_side_that_training_chose() -> None:
    long, short = "the film the film good good", "film"
    assert REVIEWS.encode([long]).tolist() == [[5, 4, 5, 6, 6]]
    after = Text(words=REVIEWS.words, length=5, first_id=4, start_id=1, pad="after", cut="after")
    assert after.encode([long, short]).tolist() == [[1, 4, 5, 4, 5], [1, 5, 0, 0, 0]]


def test_words_that_training_left_out_are_unknown_or_nothing() -> None:
    rare = Text(words=("a", "b", "c"), length=3, first_id=4, unknown_id=2, largest_id=5)
    assert rare.encode(["a b c"]).tolist() == [[4, 5, 2]]
    assert rare.ids == 6
    assert Text(words=("a", "b"), length=3, unknown_id=None).encode(["a x b"]).tolist() == [[0, 2, 3]]


def test_an_encoding_agrees_with_that_of_the_imdb_reviews() -> None:
    """As keras.datasets.imdb.load_data(num_words=7) and pad_sequences(maxlen=6) make them: ids of words are their rank
    plus 3, sequences begin with 1, rarer words are 2, and what is too long loses its beginning."""
    rank = {"the": 1, "and": 2, "a": 3, "of": 4, "film": 5}
    text = Text(
        words=sorted(rank, key=lambda word: rank[word]), length=6, first_id=4, start_id=1, unknown_id=2, largest_id=6
    )
    assert text.encode(["The film and a of"]).tolist() == [[1, 4, 2, 5, 6, 2]]
    assert text.encode(["the the and and a a the"]).tolist() == [[4, 5, 5, 6, 6, 4]]


@given(
    st.lists(st.text(max_size=60), max_size=5),
    st.sampled_from(["before", "after"]),
    st.sampled_from(["before", "after"]),
)
def test_no_text_gives_an_id_that_the_model_does_not_know(texts: list[str], pad: str, cut: str) -> None:
    text = Text(
        words=("a", "b", "é", "한국"), length=7, first_id=3, start_id=1, unknown_id=2, largest_id=5, pad=pad, cut=cut
    )
    rows = text.encode(texts)
    assert rows.shape == (len(texts), 7)
    assert ((rows >= 0) & (rows < text.ids)).all()
    assert all((text.encode([each])[0] == row).all() for each, row in zip(texts, rows, strict=True))


WORDS = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=20)


@given(WORDS, st.integers(1, 50), st.none() | st.integers(0, 9), st.booleans(), st.text(max_size=100))
def test_what_is_saved_encodes_as_before(
    tmp_path_factory: pytest.TempPathFactory,
    words: list[str],
    length: int,
    unknown: int | None,
    lowercase: bool,
    sample: str,
) -> None:
    path = tmp_path_factory.mktemp("saved") / "m.keras.preprocessing.json"
    text = Text(words=tuple(words), length=length, unknown_id=unknown, lowercase=lowercase, examples=(sample,))
    text.save(path)
    loaded = Text.load(path)
    assert loaded == text
    assert (loaded.encode([sample]) == text.encode([sample])).all()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is no preprocessing"),
        ({"version": 2}, "another version"),
        ({"kind": "sound"}, "kind has to be one of text, image, array"),
        ({"kind": ["text"]}, "kind has to be one of"),
        ({"colour": 1}, "text has no field colour"),
        ({"length": 0}, "length has to be a whole number from 1 on"),
        ({"length": True}, "length has to be"),
        ({"words": "abc"}, "words has to be a list"),
        ({"words": ["a", "a"]}, "words has a word twice"),
        ({"words": [1]}, "words has to be a list of words"),
        ({"start_id": -1}, "start_id has to be"),
        ({"padding_id": None}, "padding_id has to be"),
        ({"pad": "left"}, "pad has to be one of before, after"),
        ({"pattern": "("}, "pattern is no regular expression"),
        ({"labels": ["x"]}, "labels has only one word"),
        ({"labels": ["x", "x"]}, "labels has a word twice"),
        ({"output": "odds"}, "output has to be one of"),
        ({"examples": [5]}, "One of the examples is no input"),
    ],
)
def test_a_file_that_makes_no_sense_is_a_sentence_about_its_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "p.json"
    REVIEWS.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message


@pytest.mark.parametrize("text", ["", "[", "[]", "null", '{"a": 1}', "[" * 100_000, "\x00"])
def test_a_file_that_is_something_else_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        read(path)
    with pytest.raises(UsageError, match="There is no file"):
        read(tmp_path / "missing.json")


def test_the_kind_that_is_asked_for_has_to_be_the_one_that_is_there(tmp_path: Path) -> None:
    Array(size=(3,)).save(tmp_path / "p.json")
    assert Preprocessing.load(tmp_path / "p.json") == Array(size=(3,))
    with pytest.raises(UsageError, match="is of kind array, not text"):
        Text.load(tmp_path / "p.json")


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "1,2,3",
        {},
        [],
        [[]],
        [1, 2],
        [1, 2, 3, 4],
        [[1, 2, 3]],
        [1, [2], 3],
        [1, 2, "3"],
        [1, 2, None],
        [True, True, True],
        [1, 2, float("nan")],
        [1, 2, float("inf")],
        [1, 2, 1e39],
        [1, 2, 10**400],
        [1, 2, -1],
        [1, 2, 9],
        [1, 2, 0.5],
    ],
)
def test_what_is_no_input_is_refused(value: object) -> None:
    with pytest.raises(BadInput):
        Array(size=(3,), ids=9).row(value)


def test_lengths_may_vary_where_the_model_lets_them() -> None:
    assert Array(size=(None, 2)).row([[1, 2]] * 7).shape == (7, 2)
    with pytest.raises(BadInput, match="has to be any × 2"):
        Array(size=(None, 2)).row([1, 2])


DIGITS = Image(size=(4, 4, 1), scale=0.5, offset=-1.0)


def test_pixels_are_scaled_as_in_the_training() -> None:
    flat = np.arange(16.0).reshape(4, 4)
    assert DIGITS.row(flat.tolist()).tolist() == (flat.reshape(4, 4, 1) * 0.5 - 1).tolist()
    for wrong in (
        [[1, 2]],
        [[256] * 4] * 4,
        [[-1] * 4] * 4,
        "http://x",
        "data:image/png;base64,%%%",
        None,
        [[[1, 2, 3]] * 4] * 4,
    ):
        with pytest.raises(BadInput):
            DIGITS.row(wrong)


def filtered(pixels: np.ndarray[Any, Any], filters: list[int]) -> bytes:
    """By the words of the PNG specification, pixel by pixel."""
    height, width, channels = pixels.shape
    old = np.zeros((height + 1, width + 1, channels), int)
    old[1:, 1:] = pixels
    raw = bytearray()
    for y in range(height):
        raw.append(filters[y])
        for x in range(width):
            for c in range(channels):
                a, b, d = int(old[y + 1, x, c]), int(old[y, x + 1, c]), int(old[y, x, c])
                p = a + b - d
                nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - d), 2, d))[2]
                raw.append((int(pixels[y, x, c]) - (0, a, b, (a + b) // 2, nearest)[filters[y]]) & 255)
    return bytes(raw)


def made(pixels: np.ndarray[Any, Any], raw: bytes, **changes: int) -> bytes:
    height, width, channels = pixels.shape
    fields = {
        "width": width,
        "height": height,
        "depth": 8,
        "colour": {1: 0, 2: 4, 3: 2, 4: 6}[channels],
        "interlace": 0,
    }
    fields.update(changes)
    header = struct.pack(
        ">IIBBBBB", *(fields[name] for name in ("width", "height", "depth", "colour")), 0, 0, fields["interlace"]
    )
    chunks = ((b"IHDR", header), (b"tEXt", b"a"), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


@given(st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(0, 4), min_size=1, max_size=7), st.randoms())
def test_every_filter_of_png_is_undone(channels: int, width: int, filters: list[int], dice: Any) -> None:
    pixels = np.array([dice.randrange(256) for _ in range(len(filters) * width * channels)], np.uint8)
    pixels = pixels.reshape(len(filters), width, channels)
    assert (png.decode(made(pixels, filtered(pixels, filters))) == pixels).all()


@given(st.binary(max_size=200), st.integers(0, 60))
def test_a_damaged_png_is_the_same_picture_or_an_error(noise: bytes, place: int) -> None:
    pixels = np.full((3, 3, 1), 7, np.uint8)
    whole = made(pixels, filtered(pixels, [0, 0, 0]))
    for data in (noise, whole[:8] + noise, whole[:place], whole[:place] + noise + whole[place:]):
        with suppress(ValueError):
            assert (png.decode(data) == pixels).all()


def test_a_png_that_unpacks_to_more_than_it_says_costs_nothing() -> None:
    pixels = np.zeros((2, 2, 1), np.uint8)
    bomb = made(pixels, bytes(50_000_000))
    with pytest.raises(ValueError, match="not as many pixels"):
        png.decode(bomb)
    for changes, message in (({"width": 2**31}, "pixels"), ({"depth": 16}, "8 bits"), ({"interlace": 1}, "interlaced")):
        with pytest.raises(ValueError, match=message):
            png.decode(made(pixels, filtered(pixels, [0, 0]), **changes))


def test_a_picture_of_any_size_and_colour_becomes_one_of_the_models() -> None:
    halves = np.zeros((8, 8, 4), np.uint8)
    halves[:, :4] = (255, 255, 255, 255)
    fitted = DIGITS.pixels_of_png(made(halves, filtered(halves, [4] * 8)))
    assert fitted[:, :, 0].tolist() == [[255, 255, 0, 0]] * 4
    red = np.full((3, 5, 3), (255, 0, 0), np.uint8)
    colour = Image(size=(2, 2, 3)).pixels_of_png(png.encode(red))
    assert colour.tolist() == [[[255, 0, 0]] * 2] * 2
    assert Image(size=(2, 2)).pixels_of_png(png.encode(red)).tolist() == [[76, 76]] * 2


@pytest.mark.parametrize(("height", "width"), [(1, 1024 * 1024), (1024 * 1024, 1), (4097, 1)])
def test_a_small_file_can_not_ask_for_endless_work(height: int, width: int) -> None:
    pixels = np.zeros((height, width, 1), np.uint8)
    with pytest.raises(ValueError, match="a side can have 4,096 at most"):
        png.decode(png.encode(pixels))
