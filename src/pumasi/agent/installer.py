#!/usr/bin/env python3
"""Makes the environment of a run on one node: the packages that it asks for, on top of those that are there already.

The agent runs it with the Python of the run, before the ranks start. Like the agent it needs Python >= 3.8 and nothing
else. Its standard output is for the agent, one JSON object per line; what pip, uv and the user's own commands print
goes to standard error, and from there into the log of the run.

    installer.py ORDER.json      with these words:
        python         the Python of the run, as it was named
        requirements   a list of packages, or null: name, file (seen from the working folder) or text, count, is_plain
                       (nothing but packages by name, and options that name a package index)
        commands       the user's own, in order
        env            the variables of the run
        key            a hash of the list; empty where it refers to files that may change
        shared         a folder for environments that several runs use; empty: the nodes share no disk
        own            where they do, the environment of this run alone; else that is made in `folder`
        cache          a folder that outlives the run, for what pip and uv have downloaded; empty: there is none

Packages go into an environment that several runs use, where it can be known what they are. The user's commands may do
anything, and what they do depends on the folder that they run in: they get an environment of the run's own, on top of
the shared one, which stays as it is.

An environment is a virtual one that sees the packages of the Python that it is made from, also where that is a
virtual environment itself. `venv` can't do that, and Debian leaves it out: so it is made by hand, which is quick too.

pip takes what is there already into account; uv is ten times as fast, but does not look beyond the environment that it
installs into (astral-sh/uv#2500), and would download PyTorch again. So uv is asked first what it would add to the
Python that the environment is made from, and then installs exactly that. Wherever uv does not see all that is there, or
the list has more than names in it (hashes, paths, options), or uv fails, pip does the work: it has the last word.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from typing import Any, Callable, Dict, Iterator, List

Order = Dict[str, Any]
Env = Dict[str, str]
Command = List[str]

WORTH_UV = 5
"""Packages from which on it pays to fetch uv first: that takes as long as pip takes for a few of them."""
UNUSED = 30 * 86400
"""Seconds after which a shared environment that nobody has used is removed."""
PIP_OPTIONS = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
ELSEWHERE = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
"""Variables by which an image may have pip install into another place than the environment."""
PLACE = re.compile("[0-9a-f]{16}")
"""The name of a shared environment, see `place_of`; what else is among them is not ours to remove."""
ADDED = re.compile(r"^ ([+~-]) ([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)
LARGEST_SCRIPT = 1 << 16
SHEBANG = re.compile(rb"#!([^\n]*)\n")
SHELL_SHEBANG = re.compile(rb"#!/bin/sh\n'''exec' [\"']?(.+?)[\"']? \"\$0\" \"\$@\"\n' '''\n")
"""As pip, uv and `shebang` write them."""
COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)
INDEX = re.compile(r"^[ \t]*(?:-i|--(extra-)?index-url)[= \t]*(\S+)", re.MULTILINE)
INCLUDES = re.compile(r"^[ \t]*(?:-r|-c|--requirement|--constraint)[= \t]*(\S+)", re.MULTILINE)
INDEX_VARIABLES = {
    "index-url": ("UV_INDEX_URL", "UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", "UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", "UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", "UV_INSECURE_HOST", " "),
}
"""A setting of pip, the variable for the same setting of uv, another variable that users may have set for it, and the
separator of several values."""


class Failure(Exception):
    """`code` is the exit code of what failed."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def run(command: Command, env: Env) -> None:
    try:
        code = subprocess.call(command, env=env, stdin=subprocess.DEVNULL, stdout=2)
    except OSError as error:
        raise Failure(127, "%s: %s" % (command[0], error.strerror)) from None
    if code:
        raise Failure(code if code > 0 else 128 - code)


def ask(command: Command, env: Env) -> str | None:
    """What it prints, or None if it fails."""
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        sys.stderr.write(text)
        return None
    return text


# ---- the environment -------------------------------------------------------------------------------------------------


class Environment:
    """At `root`, on top of the Python that runs this, or of the environment `below`, which is on top of that."""

    def __init__(self, root: str, below: Environment | None = None) -> None:
        self.root = root
        self.below = below
        self.bin = os.path.join(root, "bin")
        self.python = os.path.join(self.bin, "python")
        self.beside = os.path.dirname(sys.executable)

    def make(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        os.makedirs(self.bin)
        settings = venv_settings()
        base = base_python(settings)
        for name in {"python", "python3", "python%d.%d" % sys.version_info[:2], os.path.basename(sys.executable)}:
            os.symlink(base, os.path.join(self.bin, name))
        sees_all = settings.get("include-system-site-packages", "true")
        with open(os.path.join(self.root, "pyvenv.cfg"), "w") as file:
            file.write("home = %s\ninclude-system-site-packages = %s\n" % (os.path.dirname(base), sees_all))
            file.write("version = %s\n" % platform.python_version())
        self.see_packages_of_parent(bool(settings))

    def see_packages_of_parent(self, is_venv: bool) -> None:
        """An environment that is made from a virtual environment does not see its packages by itself."""
        script = "import sys, sysconfig; print(sys.prefix); print(sysconfig.get_path('purelib'))"
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # Before them a loader, or a broken .pth file, may print a warning.
        answer = (ask([self.python, "-I", "-c", script], env) or "").splitlines()[-2:]
        if len(answer) != 2 or os.path.realpath(answer[0]) != os.path.realpath(self.root):
            raise Failure(1, "The Python at %s can't be the base of a virtual environment." % sys.executable)
        os.makedirs(answer[1], exist_ok=True)
        folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} if is_venv else set()
        if self.below:  # This one names those of its own parent.
            folders = {os.path.join(self.below.root, os.path.relpath(answer[1], answer[0]))}
        if folders:
            with open(os.path.join(answer[1], "pumasi-parent.pth"), "w") as file:
                file.writelines("import site; site.addsitedir(%r)\n" % folder for folder in sorted(folders))

    def bring_scripts(self) -> None:
        """Programs like torchrun start Python by the path in their first line: that of the environment, here. Other
        programs are found on the PATH, on which the environment below is not."""
        folder = self.below.bin if self.below else self.beside
        for name in sorted(os.listdir(folder)):
            path, own = os.path.join(folder, name), os.path.join(self.bin, name)
            if os.path.lexists(own) or not os.path.isfile(path):
                continue
            body = body_of_script(path, folder)
            if body is not None:
                write_script(own, shebang(self.python) + body)
            elif self.below:
                os.symlink(path, own)

    def bring_files(self) -> None:
        """Some packages look for their files below the prefix, as mpi4py does for the libraries of Open MPI."""
        prefix = self.below.root if self.below else sys.prefix
        if prefix == sys.base_prefix:
            return
        for folder in ("etc", "include", "lib", "share"):
            place, own = os.path.join(prefix, folder), os.path.join(self.root, folder)
            names = os.listdir(place) if os.path.isdir(place) else []
            os.makedirs(own, exist_ok=True)
            for name in names:
                if not name.startswith("python") and not os.path.lexists(os.path.join(own, name)):
                    os.symlink(os.path.join(place, name), os.path.join(own, name))

    def variables(self, env: Env) -> Env:
        path = os.pathsep.join([self.bin, self.beside, env.get("PATH", os.defpath)])
        kept = {name: value for name, value in env.items() if name != "PYTHONHOME"}
        return {**kept, "PATH": path, "VIRTUAL_ENV": self.root}


def venv_settings() -> Env:
    """Those of the virtual environment that we run in; empty where it is none."""
    settings = {}
    if sys.prefix != sys.base_prefix:
        with contextlib.suppress(OSError), open(os.path.join(sys.prefix, "pyvenv.cfg")) as file:
            for line in file:
                name, _, value = line.partition("=")
                settings[name.strip().lower()] = value.strip()
    return settings


def base_python(settings: Env) -> str:
    """The interpreter itself. A virtual environment may hold a copy of it, which does not know where it came from."""
    home = settings.get("home", "")
    for name in ("python%d.%d" % sys.version_info[:2], "python3", "python"):
        if home and os.access(os.path.join(home, name), os.X_OK):
            return os.path.join(home, name)
    return os.path.realpath(sys.executable)


def body_of_script(path: str, folder: str) -> bytes | None:
    """What follows the lines that name its Python, if it is a small script for a Python of that folder."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        content = file.read(LARGEST_SCRIPT + 1)
        found = SHELL_SHEBANG.match(content) or SHEBANG.match(content)
        if found and len(content) <= LARGEST_SCRIPT:
            where, name = os.path.split(os.fsdecode(found.group(1)).strip())
            return content[found.end() :] if where == folder and name.startswith("python") else None
    return None


def shebang(python: str) -> bytes:
    """The kernel takes no spaces and no long path there; then a shell looks for the Python, as pip has it."""
    if " " not in python and len(python) < 120:
        return b"#!" + os.fsencode(python) + b"\n"
    return b"#!/bin/sh\n'''exec' \"" + os.fsencode(python) + b'" "$0" "$@"\n\' \'\'\'\n'


def write_script(path: str, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755), "wb") as file:
        file.write(content)


# ---- packages --------------------------------------------------------------------------------------------------------


class Packages:
    """A list of packages, and what puts them into the environment."""

    def __init__(self, order: Order, environment: Environment, env: Env) -> None:
        self.wanted = order["requirements"]
        self.environment = environment
        self.env = env
        self.folder = order["folder"]
        self.path = self.wanted["file"]
        if not self.path:
            self.path = os.path.join(self.folder, "requirements.txt")
            with open(self.path, "w") as file:
                file.write(self.wanted["text"])
        count = self.wanted["count"]
        self.title = "%d package%s of %s" % (count, "" if count == 1 else "s", self.wanted["name"])

    def install(self) -> None:
        say(doing="Installing the packages of %s" % self.wanted["name"])
        say(note="installing %s" % self.title)
        begun = time.monotonic()
        tool = "uv" if self.try_uv() else "pip"
        if tool == "pip":
            self.use_pip()
        say(note="installed %s in %.1f s with %s" % (self.title, time.monotonic() - begun, tool))

    def use_pip(self) -> None:
        """It is seen from the environment, where the Python below has it; if not, there may be one that can be made."""
        python = self.environment.python
        if not has_pip() and ask([python, "-m", "ensurepip"], self.env) is None:
            raise Failure(1, "There is neither uv nor pip for %s." % sys.executable)
        run([python, "-m", "pip", "install", *PIP_OPTIONS, "-r", self.path], self.env)

    def try_uv(self) -> bool:
        """Whether uv has installed all that was missing."""
        uv = self.find_uv() if self.wanted["is_plain"] else None
        if uv is None:
            return False
        env, options = self.uv_index()
        install = [*uv, "pip", "install", *options]
        missing = self.ask_uv(install, env)
        if missing is None:
            return False
        if missing:
            pins = os.path.join(self.folder, "pins.txt")
            with open(pins, "w") as file:
                file.writelines("%s==%s\n" % pin for pin in sorted(missing.items()))
            words = ["--python", self.environment.python, "--no-deps", "-r", pins]
            try:
                run([*install, *words], env)
            except Failure:
                # pip would take the parts of a package that uv has left for all of it.
                self.environment.make()
                return False
        return True

    def find_uv(self) -> Command | None:
        """On the path, beside the Python, or, for a list that is worth it, from where pip would find it."""
        beside = os.pathsep.join([self.environment.beside, self.env.get("PATH", os.defpath)])
        found = shutil.which("uv", path=beside)
        if found:
            return [found]
        if self.wanted["count"] < WORTH_UV or not has_pip():
            return None
        place = os.path.join(self.folder, "uv")
        fetch = ["-m", "pip", "install", *PIP_OPTIONS, "--retries", "0", "--no-deps", "--only-binary", ":all:"]
        command = [self.environment.python, *fetch, "--target", place, "uv"]
        # Without a word: where it can't be had, pip will do.
        code = subprocess.call(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [os.path.join(place, "bin", "uv")] if code == 0 else None

    def ask_uv(self, install: Command, env: Env) -> Env | None:
        """What is missing, {name: version}; None where uv can't say, or does not see what is there already."""
        words = ["--dry-run", "--break-system-packages", "--python", sys.executable, "-r", self.path]
        said = ask([*install, *words], env)
        if said is None:
            return None
        changes = ADDED.findall(said)
        replaced = {normal(name) for sign, name, _ in changes if sign == "-"}
        missing = {normal(name): version for sign, name, version in changes if sign == "+"}
        unseen = {normal(name) for name in installed()} & set(missing) - replaced
        if unseen or said.count("\n + ") != len(missing):
            return None
        return missing

    def uv_index(self) -> tuple[Env, Command]:
        """uv does not read pip's settings: a mirror that pip is configured with is passed on. In variables: an
        address may hold a password, and others see the words of a command."""
        env = dict(self.env)
        settings = self.pip_settings() if has_pip() else {}
        options = index_options(self.path)
        for name, (variable, other, joint) in INDEX_VARIABLES.items():
            listed = [value for option, value in options if option == name]
            values = listed or settings.get(name, "").split()
            if listed or (values and variable not in env and other not in env):
                env[variable] = joint.join(values)
        is_offline = settings.get("no-index", "0").lower() in ("1", "true", "yes", "on")
        return env, ["--no-index"] if is_offline else []

    def pip_settings(self) -> Env:
        """From its files and variables."""
        command = [self.environment.python, "-m", "pip", "config", "list"]
        listed = subprocess.run(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return read_settings(listed.stdout.decode("utf-8", "replace").splitlines())


def has_pip() -> bool:
    """The Python below; the environment sees its packages."""
    return importlib.util.find_spec("pip") is not None


def index_options(path: str) -> list[tuple[str, str]]:
    """Those of a list of packages, and of all that it includes, that name a package index."""
    found, waiting, seen = [], [path], set()
    while waiting:
        path = os.path.normpath(waiting.pop(0))
        if path in seen:
            continue
        seen.add(path)
        with open(path, encoding="utf-8-sig") as file:
            text = COMMENT.sub("", file.read().replace("\\\n", ""))
        found += [("extra-index-url" if extra else "index-url", value) for extra, value in INDEX.findall(text)]
        waiting += [os.path.join(os.path.dirname(path), name) for name in INCLUDES.findall(text) if "://" not in name]
    return found


def read_settings(lines: list[str]) -> Env:
    """`global.index-url='…'`; a variable, whose line begins with `:env:`, wins over the files."""
    settings: Env = {}
    for line in sorted(lines, key=lambda each: each.startswith(":env:")):
        name, _, value = line.partition("=")
        with contextlib.suppress(ValueError, SyntaxError):
            settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return settings


def normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def installed() -> list[str]:
    names = (each.metadata["Name"] for each in metadata.distributions())
    return [name for name in names if name]


# ---- environments that several runs share ----------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Waits without a limit of its own: --start-timeout ends the whole gang, and this with it."""
    file = take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if file is None:
        say(note="waiting: the same environment is being made here already")
        file = take(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file is not None:
            os.close(file)


def take(path: str, how: int) -> int | None:
    """The lock, or None if somebody else has it. A file that was removed before it was ours guards nothing."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, how)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except BlockingIOError:
            os.close(file)
            return None
        except FileNotFoundError:
            pass
        os.close(file)


def sweep(shared: str) -> None:
    """Remove what has not been used for long. Who uses an environment holds its lock."""
    for name in sorted({name.partition(".")[0] for name in os.listdir(shared)}):
        if not PLACE.fullmatch(name):
            continue
        root = os.path.join(shared, name)
        if time.time() - last_used(root) < UNUSED:
            continue
        files = [take(root + ending, fcntl.LOCK_EX | fcntl.LOCK_NB) for ending in (".lock", ".use")]
        if None not in files:
            shutil.rmtree(root, ignore_errors=True)
            for ending in (".lock", ".use"):
                with contextlib.suppress(OSError):
                    os.unlink(root + ending)
        for file in files:
            if file is not None:
                os.close(file)


def last_used(root: str) -> float:
    for path in (os.path.join(root, "complete"), root, root + ".lock"):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return time.time()


def place_of(order: Order) -> str | None:
    """By the list, by the variables of pip and uv, which say what its packages are, and by the Python that it is for,
    with the packages that it has. None where that does not say all."""
    settings = read_variables(variables(order))
    if not order["shared"] or not order["key"] or settings is None:
        return None
    python = (sys.executable, os.path.realpath(sys.executable), sys.version, platform.machine())
    about = (order["key"], settings, python, packages_below())
    return os.path.join(order["shared"], hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16])


def read_variables(env: Env) -> list[Any] | None:
    """Those of pip and uv, with the age and size of each file that one names. None where one names something in the
    working folder: it is another thing in another folder."""
    found: list[Any] = []
    for name, value in sorted(env.items()):
        if not name.startswith(("PIP_", "UV_")):
            continue
        paths = [each for each in re.split(r"[\s,]+", value) if each and os.path.exists(each)]
        if not all(map(os.path.isabs, paths)):
            return None
        files = [os.stat(each) for each in paths if os.path.isfile(each)]
        found.append((name, value, [(status.st_mtime_ns, status.st_size) for status in files]))
    return found


def packages_below() -> list[str]:
    """Names and versions. What was not installed because it was there already may be gone, or another version."""
    found: set[str] = set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found.update(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))
    return sorted(found)


# ---- all together ----------------------------------------------------------------------------------------------------


def prepare(order: Order) -> tuple[Environment, Environment | None]:
    """The environment of the run, and the one that it shares with others: which may be the same, or below it."""
    shared = prepare_shared(order)
    if shared and not order["commands"]:
        return shared, shared
    root = order["own"] if order["shared"] else os.path.join(order["folder"], "environment")
    environment = Environment(root, shared)

    def make() -> None:
        fill(environment, order)
        execute(environment, order)

    once(environment, make)
    return environment, shared


def prepare_shared(order: Order) -> Environment | None:
    if order["shared"]:
        os.makedirs(order["shared"], mode=0o700, exist_ok=True)
        sweep(order["shared"])
    place = place_of(order) if order["requirements"] else None
    if place is None:
        return None
    environment = Environment(place)
    once(environment, lambda: fill(environment, order))
    return environment


def once(environment: Environment, make: Callable[[], None]) -> None:
    """For all that ask for it, now or later: what is there is whole."""
    complete = os.path.join(environment.root, "complete")
    os.makedirs(os.path.dirname(environment.root), exist_ok=True)
    with locked(environment.root + ".lock"):
        if os.path.exists(complete) and os.access(environment.python, os.X_OK):
            os.utime(complete)
            return
        try:
            make()
        except BaseException:
            shutil.rmtree(environment.root, ignore_errors=True)
            raise
        touch(complete)


def fill(environment: Environment, order: Order) -> None:
    say(doing="Making an environment for the packages")
    environment.make()
    if order["requirements"] and not environment.below:
        Packages(order, environment, environment.variables(variables(order))).install()
    environment.bring_scripts()
    environment.bring_files()


def execute(environment: Environment, order: Order) -> None:
    for command in order["commands"]:
        text = " ".join(map(shlex.quote, command))
        say(doing="The set-up command `%s`" % text)
        say(note="running %s" % text)
        words = [environment.python, *command] if command[0].endswith(".py") else command
        run(words, environment.variables(variables(order)))


def variables(order: Order) -> Env:
    env = {name: value for name, value in {**os.environ, **order["env"]}.items() if name not in ELSEWHERE}
    if order["cache"]:
        env.setdefault("PIP_CACHE_DIR", os.path.join(order["cache"], "pip"))
        env.setdefault("UV_CACHE_DIR", os.path.join(order["cache"], "uv"))
        # A volume is another file system than that of the environment: uv could not link the files.
        env.setdefault("UV_LINK_MODE", "copy")
    return env


def touch(path: str) -> None:
    with open(path, "a"):
        os.utime(path)


def main(path: str) -> int:
    with open(path) as file:
        order = json.load(file)
    say(doing="Making an environment for the packages")
    try:
        environment, shared = prepare(order)
    except Failure as failure:
        if str(failure):
            sys.stderr.write("%s\n" % failure)
        return failure.code
    except OSError as error:
        sys.stderr.write("%s: %s\n" % (error.filename, error.strerror))
        return 1
    in_use = shared.root + ".use" if shared else ""
    say(environment={"root": environment.root, "beside": environment.beside, "in_use": in_use})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
