from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import socket
import subprocess
import tarfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from pumasi.errors import UsageError
from pumasi.program import workdir as code
from pumasi.program.workdir import Code, pack
from tests.faults.test_agent_faults import find_python

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git to compare with")
WHERE = "--mount CLAIM:/path"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "train.py").write_text("print('hi')\n")
    return made


def put(folder: Path, name: str, content: str | bytes = "") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def put_large(folder: Path, name: str, size: int) -> None:
    """Costs no space, and must not be read."""
    put(folder, name)
    os.truncate(folder / name, size)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def members(packed: Code) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed.packed)) as archive:
        return {each.name: each for each in archive.getmembers()}


def files(packed: Code) -> set[str]:
    return {name for name, each in members(packed).items() if not each.isdir()}


def content(packed: Code, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(packed.packed)) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


def complaint(folder: Path, *must: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        pack(folder, must)
    assert caught.value.message.isprintable()
    assert caught.value.hint
    return caught.value


def test_everything_is_in_it_with_its_content(folder: Path) -> None:
    put(folder, "net/layers.py", "x = 1\n")
    (folder / "empty").mkdir()
    packed = pack(folder, ["train.py"])
    assert set(members(packed)) == {"train.py", "net", "net/layers.py", "empty"}
    assert content(packed, "net/layers.py") == b"x = 1\n"
    assert (packed.files, packed.size) == (2, 18)


def test_the_same_files_are_the_same_bytes_whoever_has_them(folder: Path, tmp_path: Path) -> None:
    put(folder, "run.sh", "true\n")
    (folder / "run.sh").chmod(0o700)
    (folder / "train.py").chmod(0o600)
    first = pack(folder)
    other = tmp_path / "elsewhere"
    for name in ("train.py", "run.sh"):
        put(other, name, (folder / name).read_bytes())
        os.utime(other / name, (1, 1))
    (other / "run.sh").chmod(0o755)
    assert pack(other) == first
    (other / "train.py").write_text("print('ho')\n")
    assert pack(other) != first


def test_nothing_in_it_tells_who_made_it(folder: Path) -> None:
    put(folder, "run.sh", "true\n")
    (folder / "run.sh").chmod(0o777)
    os.chown(folder / "train.py", os.getuid(), os.getgid())
    found = members(pack(folder))
    assert {each.mode for each in found.values()} == {0o755, 0o644}
    assert {(each.uid, each.gid, each.uname, each.gname) for each in found.values()} == {(0, 0, "", "")}
    assert len({each.mtime for each in found.values()}) == 1


def test_a_file_name_that_is_not_utf_8_survives(folder: Path) -> None:
    names = ("caf\udce9.py", "그림.py", "x" * 200 + ".py", "y" * 90 + "\udcff" * 90)
    for name in names:
        put(folder, name, "1")
    assert files(pack(folder)) == {"train.py", *names}


def test_what_gets_there_in_another_way_stays(folder: Path, tmp_path: Path) -> None:
    put(folder, "train.py")
    put_large(folder, "reviews.npz", 2**30)
    put(folder, "films/1.txt")
    stays = [folder / "reviews.npz", folder / "films", tmp_path / "elsewhere.npz"]
    assert files(pack(folder, ["train.py"], stays=stays)) == {"train.py"}


def test_a_link_to_what_gets_there_in_another_way_stays_too(folder: Path, tmp_path: Path) -> None:
    put(folder, "train.py")
    (tmp_path / "films").mkdir()
    (folder / "reviews").symlink_to(tmp_path / "films")
    assert files(pack(folder, ["train.py"], stays=[folder / "reviews"])) == {"train.py"}


def test_an_empty_folder_makes_an_empty_archive(tmp_path: Path) -> None:
    assert pack(tmp_path)._replace(packed=b"") == Code(b"", 0, 0)
    assert members(pack(tmp_path)) == {}


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    assert "no folder" in complaint(tmp_path / "missing").message


def test_it_can_be_read_by_gzip_and_old_pythons(folder: Path, tmp_path: Path) -> None:
    put(folder, "caf\udce9.py")
    (folder / "link").symlink_to("train.py")
    packed = pack(folder).packed
    assert gzip.decompress(packed)
    old = find_python("3.8")
    if old is None:
        pytest.skip("there is no Python 3.8 here")
    (tmp_path / "code.tgz").write_bytes(packed)
    there = tmp_path / "there"
    script = f"import tarfile; tarfile.open({str(tmp_path / 'code.tgz')!r}).extractall({str(there)!r})"
    subprocess.run([old, "-c", script], check=True)
    assert sorted(os.listdir(there)) == ["caf\udce9.py", "link", "train.py"]  # noqa: PTH208


class TestRules:
    def test_what_gitignore_names_is_left_out_and_pumasiignore_takes_it_back(self, folder: Path) -> None:
        put(folder, ".gitignore", "*.bin\nruns/\n")
        put(folder, ".pumasiignore", "!weights.bin\nnotes.md\n")
        for name in ("weights.bin", "other.bin", "runs/1/log", "notes.md"):
            put(folder, name)
        assert files(pack(folder)) == {".gitignore", ".pumasiignore", "train.py", "weights.bin"}

    def test_nothing_below_a_folder_that_is_left_out_can_be_taken_back(self, folder: Path) -> None:
        put(folder, ".gitignore", "runs/\n!runs/best\n")
        put(folder, "runs/best")
        put(folder, "runs/.pumasiignore", "!*\n")
        assert files(pack(folder)) == {".gitignore", "train.py"}

    def test_files_with_rules_hold_from_their_folder_down(self, folder: Path) -> None:
        put(folder, "a/.gitignore", "/x\n*.log\n")
        for name in ("x", "a/x", "a/b/x", "a/b/y.log", "y.log"):
            put(folder, name)
        assert files(pack(folder)) == {"train.py", "x", "a/.gitignore", "a/b/x", "y.log"}

    def test_what_nobody_wants_is_left_out_by_itself(self, folder: Path) -> None:
        put(folder, ".venv/pyvenv.cfg")
        put(folder, "venv/not_an_environment.py")
        put(folder, "a/__pycache__/x.cpython-311.pyc")
        put(folder, ".git/HEAD")
        put(folder, "node_modules/x.js")
        assert files(pack(folder)) == {"train.py", "venv/not_an_environment.py"}

    def test_a_virtual_environment_elsewhere_is_left_out_too(self, folder: Path, tmp_path: Path) -> None:
        put(tmp_path, "environment/pyvenv.cfg")
        (folder / ".venv").symlink_to(tmp_path / "environment")
        assert files(pack(folder)) == {"train.py"}

    def test_pumasiignore_takes_along_even_those(self, folder: Path) -> None:
        put(folder, "node_modules/x.js")
        put(folder, ".pumasiignore", "!node_modules\n")
        assert "node_modules/x.js" in files(pack(folder))

    def test_rules_of_the_work_tree_above_hold_here(self, tmp_path: Path, folder: Path) -> None:
        put(tmp_path, ".git/HEAD")
        put(tmp_path, ".git/info/exclude", "secret\n/project/mine\n")
        put(tmp_path, ".gitignore", "*.bin\n/project/a\n/b\n")
        for name in ("w.bin", "a", "b", "secret", "mine"):
            put(folder, name)
        assert files(pack(folder)) == {"train.py", "b"}

    def test_rules_above_the_work_tree_do_not_hold_here(self, tmp_path: Path, folder: Path) -> None:
        put(tmp_path, ".git/HEAD")
        put(tmp_path, ".gitignore", "*\n")
        put(folder, ".git/HEAD")
        assert files(pack(folder)) == {"train.py"}

    def test_a_folder_that_is_ignored_as_a_whole_is_packed_when_one_works_in_it(
        self, tmp_path: Path, folder: Path
    ) -> None:
        put(tmp_path, ".git/HEAD")
        put(tmp_path, ".gitignore", "project/\n")
        assert files(pack(folder, ["train.py"])) == {"train.py"}

    @needs_git
    def test_a_further_work_tree_knows_the_exclude_file_of_its_repository(self, tmp_path: Path) -> None:
        def git(*words: str) -> None:
            who = ("-c", "user.name=a", "-c", "user.email=a@b")
            subprocess.run(["git", "-C", str(tmp_path / "first"), *who, *words], check=True, capture_output=True)

        (tmp_path / "first").mkdir()
        git("init")
        git("commit", "--allow-empty", "-m", "x")
        git("worktree", "add", "../second")
        put(tmp_path, "first/.git/info/exclude", "secret\n")
        put(tmp_path, "second/secret")
        put(tmp_path, "second/train.py")
        assert files(pack(tmp_path / "second")) == {"train.py"}

    @pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
    def test_a_gitignore_that_is_no_file_has_no_rules(self, folder: Path, kind: str) -> None:
        put(folder, "all", "*\n")
        place = folder / ".gitignore"
        make: dict[str, Callable[[], None]] = {
            "folder": place.mkdir,
            "fifo": lambda: os.mkfifo(place),
            "link": lambda: place.symlink_to("all"),
        }
        make[kind]()
        assert {"train.py", "all"} <= files(pack(folder))

    @needs_git
    def test_git_would_list_the_same_files(self, tmp_path: Path) -> None:
        dice = random.Random(7)
        for _ in range(300):
            put(tmp_path, "/".join(dice.choice(("a", "b", "c.x", "d.y")) for _ in range(dice.randint(1, 3))) + ".f")
        for place, text in {"": "*.x\n!b/c.x\na/*\n!a/b\n", "a/b": "*\n!d*\n", "b": "/a/\n**/d.y.f\n"}.items():
            put(tmp_path, f"{place}/.gitignore".lstrip("/"), text)
        listed = subprocess.run(
            ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "--others", "--exclude-standard", "-z"],
            cwd=init(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        )
        assert files(pack(tmp_path)) == set(listed.stdout.split("\0")[:-1])


def init(folder: Path) -> Path:
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


class TestWhatMustBeThere:
    def test_a_rule_that_leaves_the_script_out_is_named_with_a_way_out_that_works(self, folder: Path) -> None:
        put(folder, ".gitignore", "# mine\n\n*.py\n")
        error = complaint(folder, "train.py")
        assert error.message.startswith("train.py is left out by line 3 of .gitignore (*.py);")
        follow(folder, error.hint)
        assert "train.py" in files(pack(folder, ["./train.py"]))

    def test_so_is_one_that_leaves_its_folder_out(self, folder: Path) -> None:
        put(folder, "deep/.gitignore", "my*/\n")
        put(folder, "deep/my [code]/train.py")
        error = complaint(folder, "deep/my [code]/train.py")
        assert "deep/my [code]/train.py is left out by line 1 of deep/.gitignore (my*/);" in error.message
        follow(folder, error.hint)
        assert pack(folder, ["deep/my [code]/train.py"])

    def test_so_is_one_further_up(self, tmp_path: Path, folder: Path) -> None:
        put(tmp_path, ".git/HEAD")
        put(tmp_path, ".git/info/exclude", "train.py\n")
        error = complaint(folder, "train.py")
        assert "by line 1 of ../.git/info/exclude (train.py)" in error.message
        follow(folder, error.hint)
        put(tmp_path, ".gitignore", "/project/train.py")
        assert pack(folder, [str(folder / "train.py")])

    def test_so_is_what_always_holds(self, folder: Path) -> None:
        put(folder, "node_modules/train.py")
        error = complaint(folder, "node_modules/train.py")
        assert "because node_modules always is" in error.message
        follow(folder, error.hint)
        assert pack(folder, ["node_modules/train.py"])

    def test_a_script_behind_a_link_needs_the_link_and_the_file(self, folder: Path) -> None:
        put(folder, "v2/go.py")
        (folder / "latest").symlink_to("v2")
        assert {"latest", "v2/go.py"} <= files(pack(folder, ["latest/go.py"]))
        put(folder, ".gitignore", "/v2\n")
        assert "(/v2)" in complaint(folder, "latest/go.py").message
        put(folder, ".gitignore", "/latest\n")
        assert "(/latest)" in complaint(folder, "latest/go.py").message

    def test_a_script_outside_of_the_folder_can_not_travel(self, tmp_path: Path, folder: Path) -> None:
        put(tmp_path, "other.py")
        assert "../other.py is not in" in complaint(folder, "../other.py").message

    def test_a_folder_is_the_same_by_any_of_its_names(self, tmp_path: Path, folder: Path) -> None:
        (tmp_path / "alias").symlink_to(folder)
        assert pack(tmp_path / "alias", [str(folder / "train.py"), str(tmp_path / "alias/train.py")]) == pack(folder)

    def test_a_script_that_is_missing_or_no_file_is_said_to_be_so(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        assert "no file missing.py" in complaint(folder, "missing.py").message
        assert "pipe is no file" in complaint(folder, "pipe").message


def follow(folder: Path, hint: str) -> None:
    """What the hint says."""
    match = re.fullmatch(r"A line (.*) at the end of (\S+) takes it along\.", hint)
    assert match, hint
    put(folder, match[2], match[1] + "\n")


class TestLinks:
    def test_inside_they_stay_links_and_are_relative(self, folder: Path) -> None:
        put(folder, "a/b/c.py")
        (folder / "a/absolute").symlink_to(folder / "train.py")
        (folder / "a/roundabout").symlink_to("../../project/a/b")
        (folder / "a/b/top").symlink_to(folder)
        (folder / "chain").symlink_to("a/absolute")
        found = members(pack(folder))
        links = {name: each.linkname for name, each in found.items() if each.issym()}
        assert links == {"a/absolute": "../train.py", "a/roundabout": "b", "a/b/top": "../..", "chain": "train.py"}

    def test_one_that_leads_out_of_the_folder_is_left_out_and_named(self, tmp_path: Path, folder: Path) -> None:
        put(tmp_path, "common.py", "x = 1\n")
        (tmp_path / "data").mkdir()
        (folder / "common.py").symlink_to("../common.py")
        (folder / "data").symlink_to(tmp_path / "data")
        (folder / "users").symlink_to("/etc/passwd")
        packed = pack(folder, ["train.py"])
        assert files(packed) == {"train.py"}
        (note,) = packed.notes
        assert note.startswith(
            "Left out, because they are links that lead out of the folder: common.py, data, users. Copy"
        )
        assert WHERE in note

    def test_what_is_ignored_anyway_is_not_named(self, tmp_path: Path, folder: Path) -> None:
        (tmp_path / "data").mkdir()
        (folder / "data").symlink_to(tmp_path / "data")
        put(folder, ".pumasiignore", "/data\n")
        assert pack(folder).notes == ()

    def test_a_file_that_becomes_one_meanwhile_is_left_out(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def replace(path: str) -> None:
            Path(path).unlink()
            Path(path).symlink_to("/etc/passwd")

        put(folder, "users")
        before(monkeypatch, ("users",), replace)
        assert files(pack(folder)) == {"train.py"}

    @pytest.mark.parametrize("script", ["go.py", "latest/go.py"])
    def test_a_script_behind_such_a_link_is_an_error(self, tmp_path: Path, folder: Path, script: str) -> None:
        put(tmp_path, "other/go.py")
        (folder / "go.py").symlink_to("../other/go.py")
        (folder / "latest").symlink_to("../other")
        error = complaint(folder, script)
        assert error.message.startswith(f"{script} does not travel: ")
        assert f"is a link out of the folder, to {tmp_path / 'other'}" in error.message

    def test_those_to_nowhere_are_left_out(self, folder: Path) -> None:
        (folder / "dangling").symlink_to("missing")
        (folder / "through").symlink_to("train.py/x")
        assert files(pack(folder)) == {"train.py"}

    def test_loops_end(self, folder: Path) -> None:
        (folder / "a").symlink_to("b")
        (folder / "b").symlink_to("a")
        (folder / "self").symlink_to(".")
        assert files(pack(folder)) == {"train.py", "self"}


class TestWhatCanNotTravel:
    def test_sockets_fifos_and_links_to_devices_are_left_out(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(folder / "fifo")
        (folder / "null").symlink_to("/dev/null")
        (folder / "pipe").symlink_to("fifo")
        monkeypatch.chdir(folder)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            assert files(pack(folder)) == {"train.py"}

    def test_files_that_can_not_be_read_are_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("a.key", "b.key"):
            put(folder, name)
        forbid(monkeypatch, "a.key", "b.key")
        assert "a.key, b.key can't be read: Permission denied." in complaint(folder).message

    def test_so_are_folders(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(folder, "private/key")
        scandir = os.scandir

        def refuse(path: str) -> object:
            if path.endswith("private"):
                raise PermissionError(13, "Permission denied", path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        assert complaint(folder).message == "private can't be read: Permission denied."
        forbid(monkeypatch, "train.py")
        assert complaint(folder).message == "private, train.py can't be read: Permission denied."

    def test_so_are_files_with_rules(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(folder, "a/.gitignore")
        forbid(monkeypatch, "a/.gitignore")
        assert "a/.gitignore can't be read" in complaint(folder).message

    def test_many_of_them_are_not_all_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = [f"{number}.key" for number in range(9)]
        for name in names:
            put(folder, name)
        forbid(monkeypatch, *names)
        assert "4.key and 4 more can't be read" in complaint(folder).message

    def test_a_name_can_not_steer_the_terminal(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(folder, "a\x1b[2J\udce9")
        forbid(monkeypatch, "a\x1b[2J\udce9")
        assert complaint(folder).message.startswith("a?[2J? can't be read")


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The tests may run as root, who may read everything."""
    before(monkeypatch, names, lambda path: deny(path))


def deny(path: str) -> None:
    raise PermissionError(13, "Permission denied", path)


def before(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], action: Callable[[str], None]) -> None:
    """Do something whenever one of these files is about to be opened."""
    original = os.open

    def opened(path: str, flags: int) -> int:
        if path.endswith(tuple(f"/{name}" for name in names)):
            action(path)
        return original(path, flags)

    monkeypatch.setattr(os, "open", opened)


class TestFilesThatChange:
    def test_one_that_vanishes_is_left_out(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(folder, "a.tmp")
        before(monkeypatch, ("a.tmp",), os.unlink)
        assert files(pack(folder)) == {"train.py"}

    def test_one_that_must_be_there_is_missed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before(monkeypatch, ("train.py",), os.unlink)
        assert "train.py vanished" in complaint(folder, "train.py").message

    def test_one_that_becomes_a_fifo_is_left_out(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def replace(path: str) -> None:
            Path(path).unlink()
            os.mkfifo(path)

        put(folder, "a.tmp")
        before(monkeypatch, ("a.tmp",), replace)
        assert files(pack(folder)) == {"train.py"}

    @pytest.mark.parametrize("text", ["", "longer than it was\n" * 100])
    def test_one_that_changes_its_size_is_packed_as_it_was_read(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        put(folder, "a.log", "line\n")
        put(folder, "z.py", "z")
        before(monkeypatch, ("a.log",), lambda path: put(folder, "a.log", text))
        packed = pack(folder)
        assert content(packed, "a.log") == text.encode()
        assert content(packed, "z.py") == b"z"
        assert packed.size == len(text) + 13

    def test_a_large_one_that_grows_meanwhile_is_cut(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        size = 3 * code._PIECE
        put(folder, "a.log", bytes(size))
        put(folder, "z.py", "z")
        while_reading(monkeypatch, lambda: os.truncate(folder / "a.log", 2 * size))
        packed = pack(folder)
        assert len(content(packed, "a.log")) == size
        assert content(packed, "z.py") == b"z"

    def test_a_large_one_that_shrinks_meanwhile_is_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(folder, "a.log", bytes(3 * code._PIECE))
        while_reading(monkeypatch, lambda: os.truncate(folder / "a.log", 5))
        assert "a.log became shorter" in complaint(folder).message


def while_reading(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    original = code._header

    def header(path: str, kind: bytes, mode: int, *, size: int = 0, link: str = "") -> bytes:
        action()
        return original(path, kind, mode, size=size, link=link)

    monkeypatch.setattr(code, "_header", header)


def pem(kind: str = "RSA ") -> str:
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{'MIIEpAIBAAKCAQEA' * 4}\n-----END {kind}PRIVATE KEY-----\n"


KUBECONFIG = """
apiVersion: v1
kind: Config
users:
- name: kim
  user:
    token: abcdef
"""


class TestCredentials:
    @pytest.mark.parametrize(
        "name",
        [
            *(".env", ".env.production", "deep/.env", ".envrc", ".ssh/config", ".aws/credentials", ".kube/config"),
            *(".config/gcloud/access_tokens.db", ".docker/config.json", ".netrc", ".pgpass", ".pypirc", ".npmrc"),
            *(".git-credentials", "server.pem", "deep/store.p12", "id_rsa", "id_ed25519", "kubeconfig"),
            *("prod.kubeconfig", "kaggle.json", ".huggingface/token"),
            *(".ENV", ".Env.local", "cert.PFX", "Store.JKS", "ID_RSA", "KUBECONFIG", ".SSH/config"),
        ],
    )
    def test_files_with_such_names_stay_here_and_are_named(self, folder: Path, name: str) -> None:
        put(folder, name, "x")
        packed = pack(folder, ["train.py"])
        assert files(packed) == {"train.py"}
        (note,) = packed.notes
        assert note.startswith("Left out, because they look like credentials: ")

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("notes.txt", pem()),
            ("deploy", pem("OPENSSH ")),
            ("server.key", pem("")),
            ("raw.key", b"\x30\x82\x04\xa4\x02\x01\x00"),
            ("RAW.KEY", b"\x30\x82\x04\xa4\x02\x01\x00"),
            ("windows.txt", "\ufeff" + pem()),
            ("fernet.key", "ZmDfcTF7_60GrrY167zsiPd67pEvs0aGOv2oasOM1Pg=\n"),
            ("locked", f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{'MIIE' * 16}\n"),
            ("robot.json", '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIE"}'),
            ("values.yaml", "tls:\n  key: |\n" + textwrap.indent(pem(), "    ")),
            ("keys.py", f'KEY = """{pem()}"""\n'),
            ("keys.json", json.dumps({"key": pem("EC ")})),
            ("locked.toml", f'key = "-----BEGIN RSA PRIVATE KEY-----\\nProc-Type: 4,ENCRYPTED\\n\\n{"MIIE" * 16}"'),
            ("go.sh", f"export AWS_SECRET_ACCESS_KEY={'aB3/' * 10}\n"),
            ("cloud.py", f'os.environ["AWS_SECRET_ACCESS_KEY"] = "{"aB3/" * 10}"\n'),
            ("cluster.yaml", KUBECONFIG),
            ("cluster.json", '{"kind": "Config", "users": [{"user": {"client-key-data": "LS0t"}}]}'),
        ],
    )
    def test_files_with_such_content_stay_here_whatever_their_name(
        self, folder: Path, name: str, text: str | bytes
    ) -> None:
        put(folder, name, text)
        packed = pack(folder)
        assert files(packed) == {"train.py"}
        assert f"look like credentials: {name}." in packed.notes[0]

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (".env.example", "TOKEN="),
            ("answers.key", "1. B\n2. C\n"),
            ("id_rsa.pub", "ssh-rsa AAAA kim@here"),
            ("environment.py", ""),
            ("keys.py", 'HEADER = "-----BEGIN PRIVATE KEY-----"\n'),
            ("README.md", "It begins with\n-----BEGIN PRIVATE KEY-----\nand so on.\n"),
            ("cloud.py", 'client(aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"])\n'),
            ("ca.crt", "-----BEGIN CERTIFICATE-----\nMIIE\n"),
            ("config.yaml", "kind: Config\nmodel: bert\ntoken: 512\n"),
            ("kubeconfig/__init__.py", ""),
            ("assets.keystore/list.txt", ""),
            ("credentials.json", '{"user": "kim"}'),
        ],
    )
    def test_what_only_resembles_them_travels(self, folder: Path, name: str, text: str) -> None:
        put(folder, name, text)
        packed = pack(folder)
        assert files(packed) == {"train.py", name}
        assert packed.notes == ()

    @pytest.mark.parametrize(("name", "text"), [("conf/.env", "A=1"), ("deploy key", pem()), (".ssh/config", "Host a")])
    def test_the_line_that_is_named_takes_one_along(self, folder: Path, name: str, text: str) -> None:
        put(folder, name, text)
        line = re.search(r"A line such as (.*) in \.pumasiignore takes one along\.", pack(folder).notes[0])
        assert line
        put(folder, ".pumasiignore", line[1])
        packed = pack(folder)
        assert name in files(packed)
        assert packed.notes == ()

    def test_what_git_ignores_anyway_is_not_named_and_git_can_not_take_one_along(self, folder: Path) -> None:
        put(folder, ".env", "A=1")
        put(folder, ".gitignore", ".env\n")
        assert pack(folder).notes == ()
        put(folder, ".gitignore", "!.env\n")
        assert ".env." in pack(folder).notes[0]

    def test_at_most_five_are_named(self, folder: Path) -> None:
        for number in range(7):
            put(folder, f"{number}.pem", "x")
        assert ": 0.pem, 1.pem, 2.pem, 3.pem, 4.pem and 2 more. " in pack(folder).notes[0]

    def test_a_script_is_never_left_out_without_a_word(self, folder: Path) -> None:
        put(folder, "train.py", f'KEY = """\n{pem()}"""\n')
        assert "train.py" in files(pack(folder, ["train.py"]))
        put(folder, ".aws/go.py")
        error = complaint(folder, ".aws/go.py")
        assert error.message.startswith(".aws/go.py is left out because it looks like credentials (.aws/)")
        follow(folder, error.hint)
        assert pack(folder, [".aws/go.py"])


class TestTooLarge:
    def test_it_says_how_large_what_is_large_and_what_to_do(self, folder: Path) -> None:
        for number in range(20):
            put(folder, f"data/part{number}", noise(300 * 1024 + number))
        put(folder, "models/old/best.bin", noise(500 * 1024))
        error = complaint(folder, "train.py")
        assert "6.3 MiB in 22 files, packed more than 3 MiB." in error.message
        assert error.message.endswith("The largest: data/ (5.9 MiB), models/old/best.bin (500 KiB).")
        assert ".pumasiignore" in error.hint
        assert "image" in error.hint
        assert WHERE in error.hint

    def test_at_most_five_are_named(self, folder: Path) -> None:
        for number in range(9):
            put(folder, f"{number}.bin", noise(1024 * 1024 * (number + 1) // 4))
        assert complaint(folder).message.count(".bin") == 5

    def test_what_packs_well_may_be_larger(self, folder: Path) -> None:
        put(folder, "numbers.csv", "0,1,2,3\n" * 1_000_000)
        assert len(pack(folder).packed) < code.LARGEST < pack(folder).size

    def test_what_is_large_is_said_before_it_is_packed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(code, "LARGE", 1024**2)
        said: list[str] = []
        put(folder, "data/zeros.bin", bytes(1024**2))
        before(monkeypatch, ("data/zeros.bin",), lambda path: said.append("reading"))
        pack(folder, say=said.append)
        assert said == [
            "Packing 1.0 MiB in 2 files, which every pod unpacks before it starts. "
            f"The largest: data/zeros.bin (1 MiB). Data belongs on a volume: {WHERE}",
            "reading",
        ]
        put(folder, ".pumasiignore", "data\n")
        pack(folder, say=said.append)
        assert len(said) == 2

    def test_a_gigabyte_of_zeros_is_refused_and_not_read(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put_large(folder, "zeros.bin", 1024**3)
        before(monkeypatch, ("zeros.bin",), deny)
        error = complaint(folder)
        assert "1.0 GiB in 2 files, more than 256 MiB. The largest: zeros.bin (1 GiB)." in error.message
        assert WHERE in error.hint

    def test_the_last_bytes_count_too(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        packed = pack(folder)
        monkeypatch.setattr(code, "LARGEST", len(packed.packed))
        assert pack(folder) == packed
        monkeypatch.setattr(code, "LARGEST", len(packed.packed) - 1)
        assert "too large" in complaint(folder).message

    def test_what_can_not_fit_is_not_read(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put_large(folder, "a.bin", 5 * 1024**3)
        before(monkeypatch, ("a.bin",), deny)
        message = complaint(folder).message
        assert "5.0 GiB in 2 files" in message
        assert "a.bin (5 GiB)" in message

    def test_reading_ends_when_the_archive_is_full(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(folder, "a.bin", noise(4 * 1024 * 1024))
        put(folder, "b.bin")
        before(monkeypatch, ("b.bin",), deny)
        assert "a.bin (4 MiB)" in complaint(folder).message

    def test_more_than_ten_gigabytes_end_the_walk(self, folder: Path) -> None:
        for number in range(12):
            put_large(folder, f"data/{number}.bin", 1024**3)
        error = complaint(folder)
        assert "holds more than 10 GiB" in error.message
        assert re.search(r"seen so far: data/ \(1\d(\.\d)? GiB\)\.", error.message)
        assert WHERE in error.hint

    def test_more_than_a_hundred_thousand_files_end_the_walk(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(code, "MOST_ENTRIES", 100)
        for number in range(200):
            put(folder, f"images/{number}.jpg")
        error = complaint(folder)
        assert "holds more than 100 files and folders" in error.message
        assert "seen so far: images/ (1" in error.message

    def test_the_whole_machine_is_refused_before_all_of_it_was_seen(self) -> None:
        assert "seen so far" in complaint(Path("/")).message

    def test_files_that_are_left_out_do_not_count(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(code, "MOST_ENTRIES", 10)
        put(folder, ".gitignore", "*.jpg\n")
        for number in range(20):
            put(folder, f"{number}.jpg")
        assert files(pack(folder)) == {"train.py", ".gitignore"}
