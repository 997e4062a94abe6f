"""The working folder as an archive that travels to pods.

First a walk that only looks at names and sizes, then the files are read: so a data set or a home folder is refused
before anything of it has been read, and with everything about it in the message.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from pumasi.core.credentials import has_credentials
from pumasi.core.ignoring import GIT_FILE, OWN_FILE, VENVS, Rule, RuleFile, Rules, literally
from pumasi.errors import UsageError

LARGEST = 3 * 1024 * 1024
"""Bytes of the packed archive."""
LARGEST_UNPACKED = 256 * 1024 * 1024
"""Bytes of the files in it. What is larger and still packs so well is no code; and every pod has to unpack it."""
LARGE = 100 * 1024 * 1024
"""Bytes of the files from which on it is said that they are packed: it takes seconds."""
MOST_ENTRIES = 100_000
"""Files and folders. Beyond that, and beyond MOST_BYTES, the walk does not go on: it may be someone's home."""
MOST_BYTES = 10 * 1024**3

# The same for all files, so that the same files are the same bytes. Not 0: zip files can't hold a time before 1980,
# and some programs make such files of their own code.
_TIME = 315619200
_LEVEL = 6
_GZIP = 31
_PIECE = 1024 * 1024
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""Vanished, a link to nowhere, or now a socket."""
_SHOWN = 5
_MOSTLY = 0.9
_HARDLY = 0.01


class Code(NamedTuple):
    """A gzipped tar archive. Equal files give equal bytes, regardless of owner and times. `size` is the total size of
    the files; `notes` are sentences about what was left out."""

    packed: bytes
    files: int
    size: int
    notes: tuple[str, ...] = ()


class _Entry(NamedTuple):
    """A file, a folder (no size) or a link. `path` begins below the working folder. `wanted`: somebody asks for it by
    name, so it travels whatever it holds."""

    path: str
    size: int | None
    link: str = ""
    wanted: bool = False


LeaveOut = Callable[[os.stat_result, bytes], bool]
"""Whether a file stays here, by what it is and how it begins."""


def pack(
    folder: Path,
    must: Sequence[str] = (),
    leave_out: LeaveOut = lambda status, head: False,
    stays: Collection[Path] = (),
    say: Callable[[str], None] = lambda text: None,
    made: Mapping[str, str] = {},
) -> Code:
    """`must` are files that have to be in it, what `stays` gets there in another way, and what is `made`, paths and
    texts, is not in the folder and is added. A folder that git ignores as a whole is packed all the same: who works in
    it wants it. `say` is called before work that takes long."""
    try:
        folder = folder.absolute()
        if not folder.is_dir():
            raise UsageError(f"There is no folder {_shown(str(folder))}.", "Check the name of the working folder.")
        needed = _Needed(folder, must)
        named = {os.path.join(os.path.realpath(path.parent), path.name) for path in stays}  # noqa: PTH118
        walk = _Walk(os.path.realpath(folder), needed, named | {os.path.realpath(path) for path in stays})
        walk.run()
        if walk.size > LARGEST_UNPACKED:
            raise _too_large(walk, f"more than {_amount(LARGEST_UNPACKED)}")
        if walk.size > LARGE:
            say(_about_size(walk))
        return _pack(walk, needed, _Archive(leave_out), made)
    except OSError as error:
        raise _unreadable([(str(error.filename or folder), error)]) from None


def _pack(walk: _Walk, needed: _Needed, archive: _Archive, made: Mapping[str, str]) -> Code:
    unreadable = list(walk.unreadable)
    for entry in sorted(walk.entries, key=lambda each: each.path):
        try:
            archive.add(walk.root, entry)
        except OSError as error:
            unreadable.append((entry.path, error))
        if archive.full:
            raise _too_large(walk, f"packed more than {_amount(LARGEST)}")
    if unreadable:
        raise _unreadable(unreadable)
    for path, text in sorted(made.items()):
        archive.add_text(path, text)
    packed = archive.close()
    if archive.full:
        raise _too_large(walk, f"packed more than {_amount(LARGEST)}")
    needed.check(archive.names)
    return Code(packed, archive.files, archive.size, tuple(_notes(walk, archive)))


def _notes(walk: _Walk, archive: _Archive) -> Iterator[str]:
    if secrets := sorted([*walk.secrets, *archive.secrets]):
        yield (
            f"Left out, because they look like credentials: {_some(secrets)}. "
            f"A line such as !{_shown(literally(secrets[0]))} in {OWN_FILE} takes one along."
        )
    if walk.outside:
        yield (
            f"Left out, because they are links that lead out of the folder: {_some(sorted(walk.outside))}. "
            "Copy what the run needs into the folder, or mount a volume: --mount CLAIM:/path"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(_shown, names[:_SHOWN])) + more


class _Needed:
    """The files that have to be there: by every path at which a rule could leave them out, and where they lie."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.by_path: dict[str, str] = {}
        self._places: dict[str, str] = {}
        for name in names:
            self._look_at(folder / name, name)
            said = _below(str(folder), os.path.normpath(folder / name))
            real = _below(os.path.realpath(folder), os.path.realpath(folder / name))
            if not said and not real:
                raise UsageError(
                    f"{_shown(name)} is not in {_shown(str(folder))}, the folder that travels to the pods.",
                    "Move it there, or start from a folder that holds both.",
                )
            self._places[name] = real or said
            for parts in (said.split("/"), real.split("/")):
                self.by_path |= {"/".join(parts[:count]): name for count in range(1, len(parts) + 1)}

    def _look_at(self, path: Path, name: str) -> None:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            if error.errno not in _GONE:
                raise _unreadable([(name, error)]) from None
            raise UsageError(f"There is no file {_shown(name)}.", "Check the name and the folder.") from None
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UsageError(f"{_shown(name)} is no file, so it can't travel to the pods.", "Check the name.")

    def check(self, names: set[str]) -> None:
        for name, place in self._places.items():
            if place not in names:
                raise UsageError(f"{_shown(name)} vanished while the folder was packed.", "Try again.")

    def complain(self, path: str, is_folder: bool, rule: Rule) -> NoReturn:
        """The way out must win over the rule, so it stands in the rule's folder, or in this one if that is further up;
        and it names the folder if it is that which is left out."""
        beside, _, file = rule.file.rpartition("/")
        place = beside if file in (GIT_FILE, OWN_FILE) and not rule.file.startswith("../") else ""
        own = f"{place}/{OWN_FILE}" if place else OWN_FILE
        line = "!" + literally(path.removeprefix(f"{place}/")) + ("/" if is_folder else "")
        by = f"by line {rule.line} of {rule.file} ({rule.text})" if rule.file else f"because {rule.text} always is"
        by = f"because it looks like credentials ({rule.text})" if rule.secret else by
        raise UsageError(
            _shown(f"{self.by_path[path]} is left out {by}; the pods would not have it."),
            _shown(f"A line {line} at the end of {own} takes it along."),
        )


class _Walk:
    """Everything in a folder that no rule leaves out."""

    def __init__(self, root: str, needed: _Needed, stays: Collection[str] = ()) -> None:
        self.root = root
        self._stays = stays
        self.entries: list[_Entry] = []
        self.size = 0
        self.secrets: list[str] = []
        """What looks like credentials by its name, and is left out."""
        self.outside: list[str] = []
        """Links that lead out of the folder, which are left out too."""
        self._needed = needed
        self.unreadable: list[tuple[str, OSError]] = []
        self._prefix, self._rules_above = _rules_above(root)

    def run(self) -> None:
        waiting = [("", self._rules_above)]
        while waiting:
            folder, above = waiting.pop()
            try:
                waiting += self._folders_in(folder, above)
            except OSError as error:
                if error.errno not in _GONE:
                    place = str(error.filename or folder)
                    self.unreadable.append((_below(self.root, place) or place, error))

    def _in_tree(self, path: str) -> str:
        return f"{self._prefix}/{path}".strip("/")

    def _folders_in(self, folder: str, above: Rules) -> Iterator[tuple[str, Rules]]:
        """Each with the rules that hold around it."""
        with os.scandir(f"{self.root}/{folder}") as found:
            rules = above.within(self._in_tree(folder), _rule_files(self.root, f"{self.root}/{folder}"))
            for each in found:
                path = f"{folder}/{each.name}" if folder else each.name
                is_folder = each.is_dir(follow_symlinks=False)
                if each.path in self._stays:
                    continue
                if rule := rules.leaving_out(self._in_tree(path), is_folder, is_venv=_is_venv(each)):
                    if path in self._needed.by_path:
                        self._needed.complain(path, is_folder, rule)
                    self.secrets += [path + "/" * is_folder] if rule.secret else []
                elif is_folder:
                    self._add(_Entry(path, None))
                    yield path, rules
                else:
                    self._look_at(path, each, rules)

    def _look_at(self, path: str, found: os.DirEntry[str], rules: Rules) -> None:
        try:
            if found.is_symlink():
                self._add_link(path, found.path)
            elif stat.S_ISREG((status := found.stat(follow_symlinks=False)).st_mode):
                wanted = path in self._needed.by_path or rules.are_asking_for(self._in_tree(path))
                self._add(_Entry(path, status.st_size, wanted=wanted))
        except OSError as error:
            if error.errno not in _GONE:
                self.unreadable.append((path, error))

    def _add_link(self, path: str, place: str) -> None:
        """It points straight to where it ends, so that no link on the way matters. One that leads out of the folder is
        not followed: what is there was not meant to travel."""
        mode = Path(place).stat().st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            return
        real = os.path.realpath(place)
        if real == self.root or _below(self.root, real):
            self._add(_Entry(path, 0, os.path.relpath(real, Path(place).parent)))
        elif path in self._needed.by_path:
            raise UsageError(
                _shown(f"{self._needed.by_path[path]} does not travel: {path} is a link out of the folder, to {real}."),
                "Copy it into the folder, or start from a folder that holds both.",
            )
        else:
            self.outside.append(path)

    def _add(self, entry: _Entry) -> None:
        self.entries.append(entry)
        self.size += entry.size or 0
        if len(self.entries) > MOST_ENTRIES:
            raise _endless(self, f"more than {MOST_ENTRIES:,} files and folders", by_count=True)
        if self.size > MOST_BYTES:
            raise _endless(self, f"more than {_amount(MOST_BYTES)}", by_count=False)


def _is_venv(found: os.DirEntry[str]) -> bool:
    return found.name in VENVS and os.access(f"{found.path}/pyvenv.cfg", os.F_OK)


class _Archive:
    def __init__(self, leave_out: LeaveOut) -> None:
        self.names: set[str] = set()
        self.files = 0
        self.size = 0
        self.secrets: list[str] = []
        """What looks like credentials by its content, and is left out."""
        self._leave_out = leave_out
        self._stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._packed = bytearray()

    @property
    def full(self) -> bool:
        return len(self._packed) > LARGEST

    def add(self, root: str, entry: _Entry) -> None:
        if entry.link:
            self._write(_header(entry.path, tarfile.SYMTYPE, 0o777, link=entry.link))
        elif entry.size is None:
            self._write(_header(entry.path, tarfile.DIRTYPE, 0o755))
        else:
            file = _open(f"{root}/{entry.path}", os.O_NOFOLLOW)
            if file is None:
                return
            with file:
                if not self._add_file(entry, file):
                    return
        self.names.add(entry.path)
        self.files += entry.size is not None

    def _add_file(self, entry: _Entry, file: BinaryIO) -> bool:
        """The size stands before the content. So a file of one piece is as large as what was read of it, and a larger
        one is read as far as it went at first, however much is being added to it."""
        status = os.fstat(file.fileno())
        piece = file.read(_PIECE)
        if self._leave_out(status, piece):
            return False
        if not entry.wanted and has_credentials(entry.path, piece):
            self.secrets.append(entry.path)
            return False
        size = len(piece) if len(piece) < _PIECE else max(status.st_size, _PIECE)
        self._write(_header(entry.path, tarfile.REGTYPE, 0o755 if status.st_mode & 0o100 else 0o644, size=size))
        self._write(piece)
        left = size - len(piece)
        while left and not self.full:
            piece = file.read(min(left, _PIECE))
            if not piece:
                raise UsageError(f"{_shown(entry.path)} became shorter while it was read.", "Try again.")
            self._write(piece)
            left -= len(piece)
        self._write(bytes(-size % tarfile.BLOCKSIZE))
        self.size += size
        return True

    def add_text(self, path: str, text: str) -> None:
        data = text.encode()
        self._write(_header(path, tarfile.REGTYPE, 0o644, size=len(data)))
        self._write(data + bytes(-len(data) % tarfile.BLOCKSIZE))

    def _write(self, data: bytes) -> None:
        self._packed += self._stream.compress(data)

    def close(self) -> bytes:
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._packed += self._stream.flush()
        return bytes(self._packed)


def _header(path: str, kind: bytes, mode: int, *, size: int = 0, link: str = "") -> bytes:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, size, link, _TIME
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _open(path: str, flags: int = 0) -> BinaryIO | None:
    """Nothing if there is no file, or no longer. Opening a fifo in the usual way would wait for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None


def _rules_above(root: str) -> tuple[str, Rules]:
    """Where the folder lies in its work tree of git, and the rules that come from further up."""
    top = next((place for place in (root, *map(str, Path(root).parents)) if _git_folder(place)), None)
    if top is None:
        return "", Rules()
    exclude = _rule_file(f"{_git_folder(top)}/info/exclude", root)
    rules = Rules().within("", [exclude] if exclude else [])
    prefix = _below(top, root)
    parts = prefix.split("/") if prefix else []
    for count in range(len(parts)):
        folder = "/".join(parts[:count])
        rules = rules.within(folder, _rule_files(root, f"{top}/{folder}"))
    return prefix, rules


def _git_folder(place: str) -> str:
    """What git keeps about the work tree that begins here, if one does. In a submodule, and in a further work tree of a
    repository, .git is a file that says where that is."""
    git = f"{place}/.git"
    if os.access(f"{git}/HEAD", os.F_OK):
        return git
    told = _line(git)
    if not told.startswith("gitdir:"):
        return ""
    git = str(Path(place, told.removeprefix("gitdir:").strip()))
    return str(Path(git, _line(f"{git}/commondir")))


def _line(path: str) -> str:
    try:
        file = _open(path)
    except OSError:
        return ""
    if file is None:
        return ""
    with file:
        return os.fsdecode(file.readline(_PIECE)).replace("\0", "").strip()


def _rule_files(root: str, folder: str) -> list[RuleFile]:
    # git does not follow a .gitignore that is a link.
    found = (
        _rule_file(f"{folder}/{GIT_FILE}", root, flags=os.O_NOFOLLOW),
        _rule_file(f"{folder}/{OWN_FILE}", root, own=True),
    )
    return [file for file in found if file]


def _rule_file(path: str, root: str, *, own: bool = False, flags: int = 0) -> RuleFile | None:
    file = _open(path, flags)
    if file is None:
        return None
    with file:
        return RuleFile(file.read(), os.path.relpath(path, root), own=own)


def _below(folder: str, path: str) -> str:
    """The path as seen from the folder, or nothing if it is not in it."""
    start = folder.rstrip("/") + "/"
    return path[len(start) :] if path.startswith(start) else ""


def _too_large(walk: _Walk, beyond: str) -> UsageError:
    return UsageError(
        f"The working folder is too large to travel to the pods: {_contents(walk)}, {beyond}. "
        f"The largest: {_largest(walk, by_count=False)}.",
        f"Name what the run does not need in {OWN_FILE}, put the code in the image and start it from there, or mount a "
        "volume for what is large: --mount CLAIM:/path",
    )


def _about_size(walk: _Walk) -> str:
    return (
        f"Packing {_contents(walk)}, which every pod unpacks before it starts. "
        f"The largest: {_largest(walk, by_count=False)}. Data belongs on a volume: --mount CLAIM:/path"
    )


def _contents(walk: _Walk) -> str:
    files = [entry for entry in walk.entries if entry.size is not None]
    return f"{_amount(walk.size)} in {len(files):,} files"


def _endless(walk: _Walk, what: str, *, by_count: bool) -> UsageError:
    return UsageError(
        f"{_shown(walk.root)} holds {what}, which can't travel to the pods. "
        f"Most of what was seen so far: {_largest(walk, by_count=by_count)}.",
        f"Start from the folder of your project, name what the run does not need in {OWN_FILE}, or mount a volume for "
        "what is large: --mount CLAIM:/path",
    )


def _largest(walk: _Walk, *, by_count: bool) -> str:
    folders = {entry.path for entry in walk.entries if entry.size is None}
    weights = {entry.path: 1 if by_count else entry.size or 0 for entry in walk.entries}
    names = ((_shown(path) + "/" * (path in folders), weight) for path, weight in _heaviest(weights))
    return ", ".join(f"{name} ({f'{weight:,}' if by_count else _amount(weight)})" for name, weight in names)


def _heaviest(weights: Mapping[str, int]) -> list[tuple[str, int]]:
    """The files or folders that matter: not the folder, if nearly all of it is in one thing that it holds."""
    totals: dict[str, int] = defaultdict(int)
    holds: dict[str, set[str]] = defaultdict(set)
    for path, weight in weights.items():
        totals[""] += weight
        while path:
            totals[path] += weight
            above = path.rpartition("/")[0]
            holds[above].add(path)
            path = above
    found = [(inner, totals[inner]) for inner in (_heart(path, totals, holds) for path in holds[""])]
    found.sort(key=lambda each: (-each[1], each[0]))
    return [each for each in found[:_SHOWN] if each[1] >= _HARDLY * totals[""]] or found[:1]


def _heart(path: str, totals: Mapping[str, int], holds: Mapping[str, set[str]]) -> str:
    while path in holds:
        inside = max(holds[path], key=lambda each: totals[each])
        if totals[inside] < _MOSTLY * totals[path]:
            break
        path = inside
    return path


def _unreadable(found: Sequence[tuple[str, OSError]]) -> UsageError:
    return UsageError(
        f"{_some([path for path, _ in found])} can't be read: {found[0][1].strerror}.",
        f"Check the permissions, or name what the run does not need in {OWN_FILE}.",
    )


def _amount(size: float) -> str:
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} {units[0]}" if size == int(size) else f"{size:.1f} {units[0]}"


def _shown(text: str) -> str:
    """File names can hold what a terminal can't show, or should not."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)
