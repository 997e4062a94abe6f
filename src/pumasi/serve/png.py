"""PNG with 8 bits a channel, decoded and encoded with zlib and numpy. A ValueError says what is wrong with a file."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_PIXELS = 1024 * 1024
MOST_SIDE = 4096
"""Pixels of one side: what it takes to decode and to fit a picture goes with its sides, too."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""By the type of colour: grey, RGB, grey with alpha, RGB with alpha."""
_GREY = (0.299, 0.587, 0.114)
"""How bright red, green and blue are to the eye (ITU-R BT.601)."""

Pixels = NDArray[Any]


def decode(data: bytes) -> Pixels:
    """Height × width × channels, from 0 to 255."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("it is no PNG")
    chunks = _chunks(data)
    name, header = next(chunks, (b"", b""))
    if name != b"IHDR" or len(header) != 13:
        raise ValueError("it has no header")
    width, height, depth, colour, compression, filtering, interlace = struct.unpack(">IIBBBBB", header)
    if depth != 8 or colour not in _CHANNELS:
        raise ValueError("it has a palette, or not 8 bits a channel")
    if (compression, filtering, interlace) != (0, 0, 0):
        raise ValueError("it is interlaced" if interlace else "it is compressed in an unknown way")
    if not 0 < width * height <= MOST_PIXELS:
        raise ValueError(f"it has {width} × {height} pixels, and {MOST_PIXELS:,} at most are taken")
    if max(width, height) > MOST_SIDE:
        raise ValueError(f"it has {width} × {height} pixels, and a side can have {MOST_SIDE:,} at most")
    line = 1 + width * _CHANNELS[colour]
    packed = b"".join(body for name, body in chunks if name == b"IDAT")
    raw = _unpacked(packed, height * line)
    lines = np.frombuffer(raw, np.uint8).reshape(height, line)
    return _unfiltered(lines[:, 0], lines[:, 1:].reshape(height, width, -1))


def _chunks(data: bytes) -> Any:
    place = len(_SIGNATURE)
    while place < len(data):
        if len(data) < place + 12:
            raise ValueError("it is cut off")
        length = int.from_bytes(data[place : place + 4], "big")
        end = place + 8 + length
        if len(data) < end + 4:
            raise ValueError("it is cut off")
        if zlib.crc32(data[place + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise ValueError("it is damaged")
        yield data[place + 4 : place + 8], data[place + 8 : end]
        place = end + 4


def _unpacked(packed: bytes, size: int) -> bytes:
    """Never more than `size`, whatever the file would unpack to."""
    try:
        raw = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error:
        raise ValueError("it is damaged") from None
    if len(raw) != size:
        raise ValueError("it has not as many pixels as it says")
    return raw


def _unfiltered(filters: Pixels, values: Pixels) -> Pixels:
    """A pixel depends on those to its left, above, and above to the left: so all of one diagonal are found at once."""
    if filters.max() > 4:
        raise ValueError("it is filtered in an unknown way")
    height, width, channels = values.shape
    found = np.zeros((height + 1, width + 1, channels), np.int16)
    for diagonal in range(height + width - 1):
        y = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        x = diagonal - y
        left, up, corner = found[y + 1, x], found[y, x + 1], found[y, x]
        by_filter = (np.zeros_like(left), left, up, (left + up) // 2, _paeth(left, up, corner))
        guess = np.choose(filters[y][:, None], by_filter)
        found[y + 1, x + 1] = (values[y, x] + guess) & 255
    return found[1:, 1:].astype(np.uint8)


def _paeth(left: Pixels, up: Pixels, corner: Pixels) -> Pixels:
    estimate = left + up - corner
    far_left, far_up, far_corner = abs(estimate - left), abs(estimate - up), abs(estimate - corner)
    nearer = np.where(far_up <= far_corner, up, corner)
    return np.where((far_left <= far_up) & (far_left <= far_corner), left, nearer)


def fitted(pixels: Pixels, height: int, width: int, channels: int, background: int) -> Pixels:
    """`pixels` at another size, each the mean of the area that it covers, with 1 or 3 channels and nothing
    transparent."""
    values = pixels.astype(np.float64)
    if pixels.shape[2] in (2, 4):
        alpha = values[:, :, -1:] / 255
        values = values[:, :, :-1] * alpha + background * (1 - alpha)
    if values.shape[2] == 3 and channels == 1:
        values = values @ np.array(_GREY)[:, None]
    values = np.repeat(values, channels // values.shape[2], axis=2)
    rows, columns = _shares(pixels.shape[0], height), _shares(pixels.shape[1], width)
    mixed: Pixels = np.einsum("hH,HWc,wW->hwc", rows, values, columns, optimize=True)
    return np.clip(np.rint(mixed), 0, 255)


def _shares(old: int, new: int) -> Pixels:
    """How much each of `old` pixels counts for each of `new` ones in the same length."""
    starts, here = np.arange(new)[:, None] * old / new, np.arange(old)[None, :]
    overlap = np.minimum(starts + old / new, here + 1) - np.maximum(starts, here)
    shares: Pixels = np.clip(overlap, 0, None) * new / old
    return shares


def encode(pixels: Pixels) -> bytes:
    """Height × width, with 1 or 3 channels or none."""
    height, width = pixels.shape[:2]
    lines = np.rint(pixels).astype(np.uint8).reshape(height, -1)
    colour = {1: 0, 3: 2}[lines.shape[1] // width]
    raw = np.insert(lines, 0, 0, axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(raw)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
