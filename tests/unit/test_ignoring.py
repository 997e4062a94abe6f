"""Every verdict is held against that of git itself, on generated rules; the rest is what git does not know."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from pumasi.core.ignoring import Rule, RuleFile, Rules, literally

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git to compare with")
GIT_ALONE = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "core.excludesFile",
    "GIT_CONFIG_VALUE_0": os.devnull,
}
CASES = 1000
FOLDERS = ("a", "b", "a/a", "a/b", "a/b/ab", "ab", "ab/a", "a.b", "b/a", "b/a/b")
NAMES = (
    "a",
    "b",
    "ab",
    "aab",
    "a.b",
    ".b",
    "a b",
    "a ",
    "!a",
    "#a",
    "a]",
    "[a",
    "a-b",
    "b\\",
    "a*",
    "é",
    "A1",
    "a\udce9",
)
TOKENS = (
    *("a", "b", "ab", ".", "*", "**", "***", "?", "/", "/", "**/", "/**", "[ab]", "[!a]", "[^b]", "[a-b]", "[b-a]"),
    *("[", "]", "\\", "\\*", "\\/", "\\a", " ", "\\ ", "!", "#", "-", "[]a]", "[a-]", "[!]]", "[\\]a]", "[a\\-b]"),
    *("[[:alpha:]]", "[[:digit:][:space:]]", "[![:upper:]]", "[[:no:]]", "[[:punct:]]", "[:a]", "[[:a]", "é", "\t"),
    *("[[:", "[/]", "[!/]", "[a-\\b]", "[[-b]", "[[:alpha:]-b]", "1", "A", "a/b", "a**", "**a", "\r", "\udce9", "[^]"),
)


def git(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["git", *words], cwd=folder, env=GIT_ALONE, input=stdin, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def verdicts_of_git(root: Path, paths: Iterable[str]) -> dict[str, tuple[str, int, bool]]:
    """The file and the line that decide, and whether that leaves the path out."""
    stdin = "\0".join(paths).encode("utf-8", "surrogateescape")
    output = git(root, "check-ignore", "--verbose", "--non-matching", "--no-index", "--stdin", "-z", stdin=stdin)
    words = output.decode("utf-8", "surrogateescape").split("\0")[:-1]
    found = zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True)
    return {path: (file, int(line or 0), bool(file) and not rule.startswith("!")) for file, line, rule, path in found}


class Tree:
    """Rules by folder, asked for a path as a walk from the top would come to it."""

    def __init__(self, folders: Iterable[str], texts: dict[str, bytes], exclude: bytes = b"") -> None:
        self.folders, self.texts, self.exclude = set(folders), texts, exclude
        top = Rules().within("", [RuleFile(exclude, ".git/info/exclude")])
        self.rules = {"": top.within("", self._file("", texts))}
        for folder in sorted(self.folders):
            above = self.rules[folder.rpartition("/")[0]]
            self.rules[folder] = above.within(folder, self._file(folder, texts))

    def _file(self, folder: str, texts: dict[str, bytes]) -> list[RuleFile]:
        name = f"{folder}/.gitignore" if folder else ".gitignore"
        return [RuleFile(texts[folder], name)] if folder in texts else []

    def verdict(self, path: str) -> tuple[str, int, bool]:
        parts = path.split("/")
        rule: Rule | None = None
        for count in range(1, len(parts) + 1):
            part, folder = "/".join(parts[:count]), "/".join(parts[: count - 1])
            rule = self.rules[folder].deciding(part, part in self.folders)
            if rule and not rule.keeps:
                break
        return (rule.file, rule.line, not rule.keeps) if rule else ("", 0, False)


def random_rule(dice: random.Random) -> str:
    start = dice.choice(("", "", "", "!", "/", "!/"))
    end = dice.choice(("", "", "", "/", " ", "\r"))
    return start + "".join(dice.choice(TOKENS) for _ in range(dice.randint(1, 5))) + end


def random_text(dice: random.Random) -> bytes:
    lines = [random_rule(dice) for _ in range(dice.randint(1, 6))]
    return ("\n".join(lines) + dice.choice(("", "\n"))).encode("utf-8", "surrogateescape")


def random_path(dice: random.Random) -> str:
    return "/".join((*dice.choice(("", *FOLDERS)).split("/"), dice.choice(NAMES))).lstrip("/")


@needs_git
def test_git_agrees_on_generated_rules_in_nested_folders(tmp_path: Path) -> None:
    dice = random.Random(20)
    folders: set[str] = set()
    texts: dict[str, bytes] = {}
    paths: set[str] = set()
    for case in range(CASES):
        top = f"{case:04}"
        own = [f"{top}/{folder}" for folder in FOLDERS]
        folders.update((top, *own))
        texts[top] = random_text(dice)
        texts.update((folder, random_text(dice)) for folder in own if dice.random() < 0.15)
        paths.update((*own, *(f"{top}/{random_path(dice)}" for _ in range(20))))
    compare(tmp_path, Tree(folders, texts), paths)


@needs_git
def test_git_agrees_on_its_exclude_file_below_the_rules_of_the_folders(tmp_path: Path) -> None:
    texts = {"": b"!b\nab/\n", "a": b"!a\n/b\n", "a/b": b"!ab\n"}
    compare(tmp_path, Tree(FOLDERS, texts, exclude=b"a.b\nb\n/a/a\n!ab\n"), {*FOLDERS, "b/a/b/x", "a/b/ab/b", "ab/b"})


def compare(root: Path, tree: Tree, paths: Iterable[str]) -> None:
    git(root, "init", "--quiet")
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_bytes(tree.exclude)
    for folder in sorted(tree.folders):
        (root / folder).mkdir()
    for folder, text in tree.texts.items():
        (root / folder / ".gitignore").write_bytes(text)
    expected = verdicts_of_git(root, sorted(paths))
    wrong = [path for path, verdict in expected.items() if tree.verdict(path) != verdict]
    assert not wrong, [
        (path, expected[path], [text for folder, text in tree.texts.items() if path.startswith(folder)])
        for path in wrong[:3]
    ]
    assert sum(out for _, _, out in expected.values()) > len(expected) / 10, "too few match to prove anything"


def left_out(path: str, text: str, *, is_folder: bool = False) -> bool:
    """With `text` as the .gitignore of the topmost folder."""
    rules = Rules().within("", [RuleFile(text.encode(), ".gitignore")])
    return rules.leaving_out(path, is_folder) is not None


def with_both(text: str, own: str) -> Rules:
    files = [RuleFile(text.encode(), ".gitignore"), RuleFile(own.encode(), ".pumasiignore", own=True)]
    return Rules().within("", files)


@pytest.mark.parametrize(
    ("rule", "matches", "others"),
    [
        ("*.bin", ["w.bin", "a/b/w.bin"], ["w.bin.py"]),
        ("/w.bin", ["w.bin"], ["a/w.bin"]),
        ("a/b", ["a/b"], ["c/a/b"]),
        ("data/", [], ["data", "a/data"]),
        ("**/b", ["b", "a/b", "a/a/b"], ["ab"]),
        ("a/**", ["a/b", "a/b/c"], ["a"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/xb"]),
        ("a/*", ["a/b"], ["a/b/c"]),
        ("a?c", ["abc"], ["a/c", "aéc"]),
        ("[a-c][!x]", ["ay"], ["ax", "dy"]),
        ("a\\ ", ["a "], ["a", "a\\"]),
        ("a  ", ["a"], ["a "]),
        ("a\t", ["a\t"], ["a"]),
        ("#a", [], ["#a"]),
        ("\\#a", ["#a"], ["a"]),
        ("\\!a", ["!a"], ["a"]),
        ("", [], ["a"]),
        ("\ufeffa", ["a"], []),
        ("a\r\nb", ["a", "b"], ["a\r"]),
    ],
)
def test_a_rule_means_what_git_says_that_it_means(rule: str, matches: list[str], others: list[str]) -> None:
    assert all(left_out(path, rule) for path in matches)
    assert not any(left_out(path, rule) for path in others)


def test_a_rule_that_ends_in_a_slash_is_for_folders_only() -> None:
    assert left_out("a/data", "data/", is_folder=True)
    assert not left_out("a/data", "data/")


def test_the_later_rule_wins() -> None:
    assert not left_out("w.bin", "*.bin\n!w.bin")
    assert left_out("w.bin", "!w.bin\n*.bin")


def test_the_deeper_file_wins() -> None:
    rules = Rules().within("", [RuleFile(b"*.bin\n", ".gitignore")])
    deeper = rules.within("models", [RuleFile(b"!/w.bin", "models/.gitignore")])
    assert rules.leaving_out("models/w.bin", False) == Rule(".gitignore", 1, "*.bin")
    assert deeper.leaving_out("models/w.bin", False) is None
    assert deeper.leaving_out("models/old/w.bin", False)


def test_the_rule_that_decides_is_told_with_its_file_and_line() -> None:
    rules = Rules().within("a", [RuleFile(b"# data\n\n*.bin  \n", "a/.gitignore")])
    assert rules.leaving_out("a/w.bin", False) == Rule("a/.gitignore", 3, "*.bin")


def test_pumasiignore_wins_over_gitignore_in_the_same_folder() -> None:
    rules = with_both("*.bin\n!keep.txt\n", "!weights.bin\nkeep.txt\n")
    assert rules.leaving_out("weights.bin", False) is None
    assert rules.leaving_out("other.bin", False)
    assert rules.leaving_out("keep.txt", False)


def test_a_deeper_gitignore_wins_over_pumasiignore() -> None:
    rules = with_both("", "!weights.bin\n").within("a", [RuleFile(b"*.bin", "a/.gitignore")])
    assert rules.leaving_out("a/weights.bin", False)


@pytest.mark.parametrize(
    "name", [".git", "__pycache__", "node_modules", ".pumasi", "x.pyc", ".DS_Store", ".tox", ".hg"]
)
def test_some_things_are_left_out_unless_pumasiignore_takes_them_along(name: str) -> None:
    assert Rules().leaving_out(f"a/{name}", True)
    assert with_both(f"!{name}", "").leaving_out(f"a/{name}", True), "git has no say in it"
    assert with_both("", f"!{name}").leaving_out(f"a/{name}", True) is None
    assert with_both("", f"!{name}\n/a/*").leaving_out(f"a/{name}", True)


def test_a_virtual_environment_is_left_out_unless_pumasiignore_takes_it_along() -> None:
    assert Rules().leaving_out("a/venv", True, is_venv=True) == Rule("", 0, "venv")
    assert Rules().leaving_out("a/venv", True) is None
    assert with_both("", "!venv/").leaving_out("a/venv", True, is_venv=True) is None


@pytest.mark.parametrize("path", ["a", "a b/c ", "[x]*?", "b\\", "!a", "#a", "é"])
def test_a_path_can_be_written_as_the_rule_that_matches_nothing_else(path: str) -> None:
    assert left_out(path, literally(path))
    assert not left_out(f"x/{path}", literally(path))
    assert not left_out("ax", literally(path))


def left_out_each(text: str, paths: Iterable[str]) -> Iterable[Rule | None]:
    rules = Rules().within("", [RuleFile(text.encode(), ".gitignore")])
    return (rules.leaving_out(path, False) for path in paths)
