"""Makes folders of parts: what `pumasi data` does, as functions."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pumasi.data import formats, manifest
from pumasi.data.files import Tick, copy_file, counting, digest, fingerprint, sync_one, total_bytes
from pumasi.data.formats.base import DEFAULT_KEY, Source, damaged
from pumasi.data.formats.folder import KEY as FOLDER_KEY
from pumasi.data.manifest import Manifest, Part, PartSet, check
from pumasi.data.partition import LARGEST_SEED, order, shares
from pumasi.data.rearranging import rearranged
from pumasi.data.workshop import Workshop, workshop
from pumasi.errors import SystemTrouble, UsageError

Name = str | os.PathLike[str]
MOST_PARTS = 1_000_000
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _silent(what: str, done: int, total: int) -> None:
    pass


def split(
    file: Name,
    n: int,
    to: Name | None = None,
    *,
    seed: int | None = None,
    stratify: str | None = None,
    force: bool = False,
    progress: Tick = _silent,
) -> PartSet:
    """Each row in one of `n` parts, whose sizes differ by at most one. With a `seed` the rows are shuffled. `stratify`
    says where the classes are that are to be spread evenly; an empty text: where they usually are."""
    path = Path(file)
    suffix = formats.suffix_of(path)
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"A seed is a whole number from 0 to {LARGEST_SEED}; {seed} is none.", "Take 1, say.")
    key = (DEFAULT_KEY if suffix else FOLDER_KEY) if stratify == "" else stratify
    folder = _beside(path, f"-{n}") if to is None else Path(to)
    return _make(path, folder, "split", n, seed, key, force, progress)


def copy(file: Name, n: int, to: Name | None = None, *, force: bool = False, progress: Tick = _silent) -> PartSet:
    """`n` parts that are the whole each: files of their own, no links."""
    path = Path(file)
    formats.suffix_of(path)
    folder = _beside(path, f"-{n}-copies") if to is None else Path(to)
    return _make(path, folder, "copy", n, None, None, force, progress)


def _beside(path: Path, ending: str) -> Path:
    named = path.resolve() if path.name in ("", "..") else path
    return named.with_name((named.name if named.is_dir() else named.stem) + ending)


def _make(
    path: Path, folder: Path, mode: str, n: int, seed: int | None, stratify: str | None, force: bool, tick: Tick
) -> PartSet:
    if not 1 <= n <= MOST_PARTS:
        raise UsageError(f"{n:,} parts make no sense.", f"Take 1 to {MOST_PARTS:,}: -n 5, say.")
    with _translated(folder):
        _check_place(path, folder)
        before = fingerprint(path)
        source = digest(path, counting(tick, "reading", total_bytes(path)))
        wanted = Manifest(path.absolute().name, source, mode, n, seed, stratify)
        if there := _already_there(folder, wanted, force, tick):
            return there
        with workshop(Path(os.path.realpath(folder)), lambda: tick("waiting for another pumasi", 0, 1)) as shop:
            # Another one may have made it while this one waited.
            if there := _already_there(folder, wanted, force, tick):
                return there
            parts = _write(path, wanted, shop, tick)
            if fingerprint(path) != before:
                raise _changed(path)
            manifest.write(shop.new, wanted._replace(parts=parts))
            shop.finish()
    return PartSet(folder, parts, made=True)


def _changed(path: Path) -> UsageError:
    return damaged(path, "has changed while it was read", "Try again when nobody writes to it.")


def _check_place(path: Path, folder: Path) -> None:
    target, source = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {folder.parent}.", f"Make it first: mkdir -p {folder.parent}")
    if target == source or source in target.parents:
        raise UsageError(f"{folder} lies in {path}, which is to be read.", "Name a folder elsewhere with --to.")
    if target.is_mount():
        raise UsageError(f"{folder} is a file system of its own.", f"Name a folder in it: --to {folder / path.stem}")


def _already_there(folder: Path, wanted: Manifest, force: bool, tick: Tick) -> PartSet | None:
    """None where the parts are to be made. An empty folder is as good as none."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    found = manifest.read(folder)
    if found is None:
        raise UsageError(
            f"{folder} is there already, and was not made by 'pumasi data': it stays as it is.",
            "Name another folder with --to.",
        )
    try:
        if differences := found.differences(wanted):
            raise UsageError(
                f"{folder} is there already, and is something else: {'; '.join(differences)}.",
                "Name another folder with --to, or replace it with --force.",
            )
        return check(folder, tick)
    except UsageError:
        if force:
            return None
        raise


def _write(path: Path, wanted: Manifest, shop: Workshop, tick: Tick) -> tuple[Part, ...]:
    suffix = formats.suffix_of(path)
    _need_numpy()
    source = formats.opener(suffix)(path, wanted.stratify, shop.scratch, tick)
    targets = [shop.new / f"{part}{suffix}" for part in range(wanted.n)]
    if wanted.mode == "copy":
        rows = [source.rows] * wanted.n
        _copy(path, source, targets, tick)
    else:
        if source.rows < wanted.n:
            raise UsageError(
                f"{path} has {source.rows:,} rows: too few for {wanted.n:,} parts.",
                f"Take -n {source.rows} at most, or 'pumasi data copy'." if source.rows else "Is it the right file?",
            )
        rows = shares(source.rows, wanted.n)
        _split(path, source, wanted, targets, rows, shop.scratch / "spool", tick)
    if path.is_dir():
        # A million files would take an hour one by one.
        os.sync()
    else:
        for target in targets:
            sync_one(target)
    count = counting(tick, "checking", sum(map(total_bytes, targets)))
    return tuple(
        Part(target.name, its_rows, *digest(target, count)) for target, its_rows in zip(targets, rows, strict=True)
    )


def _need_numpy() -> None:
    if find_spec("numpy") is None:
        raise SystemTrouble("'pumasi data' needs the package numpy.", "Install it: pip install numpy")


def _copy(path: Path, source: Source, targets: list[Path], tick: Tick) -> None:
    # Read once as rows, since a damaged file is not worth copying.
    count = counting(tick, "reading", source.rows * len(source.streams))
    for stream in source.streams:
        for chunk in stream.chunks():
            count(len(chunk))
    count = counting(tick, "writing", source.rows * len(targets) if path.is_dir() else total_bytes(path) * len(targets))
    for target in targets:
        if path.is_dir():
            (stream,) = source.streams
            stream.write(target, _counted(stream.chunks(), count), source.rows)
        else:
            copy_file(path, target, count)


def _split(
    path: Path, source: Source, wanted: Manifest, targets: list[Path], rows: list[int], spool: Path, tick: Tick
) -> None:
    arrangement = order(source.rows, wanted.n, wanted.seed, source.classes)
    count = counting(tick, "writing", source.rows * len(source.streams))
    for stream in source.streams:
        chunks = stream.chunks() if arrangement is None else rearranged(stream, arrangement, spool, tick)
        left = _Rows(path, chunks)
        for target, share in zip(targets, rows, strict=True):
            stream.write(target, _counted(left.take(share), count), share)
        left.finish()


class _Rows:
    """Chunks from which any number of rows can be taken. At the end none may be left: only then has the stream seen
    that the file ends where it should."""

    def __init__(self, path: Path, chunks: Iterator[Any]) -> None:
        self._path = path
        self._chunks = chunks
        self._chunk: Any = ()

    def take(self, rows: int) -> Iterator[Any]:
        while rows:
            if not len(self._chunk):
                self._chunk = next(self._chunks, None)
                if self._chunk is None:
                    raise _changed(self._path)
            taken, self._chunk = self._chunk[:rows], self._chunk[rows:]
            rows -= len(taken)
            yield taken

    def finish(self) -> None:
        if len(self._chunk) or next(self._chunks, None) is not None:
            raise _changed(self._path)


def _counted(chunks: Iterable[Any], count: Any) -> Iterator[Any]:
    for chunk in chunks:
        yield chunk
        count(len(chunk))


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise SystemTrouble(
                f"The disk is full: the parts do not fit beside {folder}. Nothing of them was kept.",
                "Make room, or name a folder on another disk with --to.",
            ) from None
        where = f": {error.filename}" if error.filename else ""
        raise SystemTrouble(f"{folder} can't be made: {error.strerror or error}{where}.") from None
