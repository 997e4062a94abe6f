"""Flags, environment, pumasi.yaml and the user's own configuration, laid over each other into one spec.

Each layer knows where each of its values was written, so that a mistake can be shown to the user in their own words.
Files are composed into nodes, never constructed into objects: that keeps the line numbers, keeps `0.10` from becoming
`0.1`, and `on` from becoming true.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pumasi.catalogue import REGISTRIES, Catalogue, catalogue_for
from pumasi.core.dotenv import parse as parse_variables
from pumasi.core.fields import closest, show
from pumasi.core.options import Declared, declared
from pumasi.core.spec import Spec, check_variable, parse
from pumasi.errors import SpecError, UsageError

if TYPE_CHECKING:
    import yaml

FILE = "pumasi.yaml"
PREFIX = "PUMASI_"
OWN_VARIABLES = frozenset(
    PREFIX + name for name in ("HOME", "RUN", "ATTEMPT", "GANG", "RANK", "WORLD_SIZE", "CHECKPOINT_DIR", "NODE")
)
"""What Pumasi itself sets for ranks, and its home: a run inside a run is not configured by them."""

_NULL = "tag:yaml.org,2002:null"
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
)
_LARGEST_FILE = 1 << 20
_SURE = 0.8
"""How much an unknown PUMASI_ variable must be like a field to be a slip of the pen. Others have some other purpose:
Kubernetes makes PUMASI_PORT from a Service of that name."""


class Layer(NamedTuple):
    """Values by field, and where each was written. Relative paths among them start at `folder`."""

    folder: Path
    values: dict[str, object]
    places: dict[str, str]


def current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("The folder that you are in is gone.", "Change to one that exists: cd") from None


def build_spec(
    flags: Mapping[str, object], folder: Path, environ: Mapping[str, str], *, without_values: bool = False
) -> Spec:
    """Flag > environment > pumasi.yaml in `folder` > user configuration > default. A flag that is None (or a command
    that is empty) was not given. SpecError names every mistake in all of them. `without_values` puts the file's name in
    place of each value that an env_file sets: such files are where people keep secrets."""
    mistakes: list[str] = []
    folder = folder.absolute()
    files = [*_read_files(folder, environ, mistakes)]
    catalogue = _catalogue(files, flags, environ)
    given = _flag_layer(folder, flags, catalogue)
    layers = [
        *(_file_layer(file, catalogue) for file in files),
        _environment_layer(folder, environ, catalogue, mistakes),
        given,
    ]
    pool = str(next((layer.values["on"] for layer in reversed(layers) if "on" in layer.values), "local"))
    for layer in layers:
        _expand_gpus(layer, mistakes)
        _expand_groups(layer, catalogue, mistakes)
        _expand_env_file(layer, environ, mistakes, without_values=without_values)
        _anchor_paths(layer, environ.get("HOME", ""), on_cluster=pool != "local")
    merged = _merge(folder, layers, catalogue)
    _check_workdir(merged, mistakes)
    mistakes += _flags_of_other_pools(given, merged.places, catalogue, pool.partition(":")[0])
    return parse(merged.values, catalogue.owned, merged.places, mistakes)


def _catalogue(files: Sequence[_File], flags: Mapping[str, object], environ: Mapping[str, str]) -> Catalogue:
    """What may be asked for depends on the pool, the flow and the framework that are chosen, wherever they are."""
    choices: dict[str, object] = {}
    for file in files:
        choices |= {name: file.entries[name][1].value for name in REGISTRIES if name in file.entries}
    choices |= {name: environ[PREFIX + name.upper()] for name in REGISTRIES if environ.get(PREFIX + name.upper())}
    choices |= {name: flags[name] for name in REGISTRIES if flags.get(name) is not None}
    return catalogue_for(choices, [*flags, *(name for file in files for name in file.entries)])


def _flag_layer(folder: Path, flags: Mapping[str, object], catalogue: Catalogue) -> Layer:
    layer = Layer(folder, {}, {})
    for flag, value in flags.items():
        field = catalogue.of_flag(flag)
        if value is not None and not (field == "command" and not value):
            layer.values[field] = os.fspath(value) if isinstance(value, os.PathLike) else value
            layer.places[field] = field if field == "command" else _flag(field, catalogue)
    return layer


def _flag(field: str, catalogue: Catalogue) -> str:
    return catalogue.all[field].flag if field in catalogue.all else "--" + field.replace("_", "-")


def _flags_of_other_pools(given: Layer, places: Mapping[str, str], catalogue: Catalogue, pool: str) -> Iterator[str]:
    """Flags that do nothing where the run goes. In a file they are there for the times when it goes elsewhere."""
    for field, name, section, why in catalogue.owned:
        if field == "on" and name not in (pool, "local"):
            right = "leave one of the two out" if "on" in given.values else f"add --on {name}"
            for option in (option for option in declared(section) if option in given.values):
                yield f"{given.places[option]}: {why}, but {places.get('on', '--on')} is {pool}; {right}"


def _environment_layer(folder: Path, environ: Mapping[str, str], catalogue: Catalogue, mistakes: list[str]) -> Layer:
    layer = Layer(folder, {}, {})
    known = {each.written: each for each in catalogue.all.values()}
    by_variable = [name for name, each in known.items() if each.by_variable]
    for variable, value in sorted(environ.items()):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable in OWN_VARIABLES or not value:
            continue
        if name in known and not known[name].by_variable:
            mistakes.append(f"{variable}: {name} can't be set by a variable; {_other_ways(known[name])}")
        elif name in by_variable or closest(name, by_variable, _SURE):
            layer.values[name] = value
            layer.places[name] = variable
    return layer


def _other_ways(known: Declared) -> str:
    if not known.is_flag:
        return f"give it after the options, or as {known.written}: in {FILE}"
    return f"give {known.flag} {known.value}, or {known.written}: in {FILE}"


def _expand_gpus(layer: Layer, mistakes: list[str]) -> None:
    """`gpus` is short for so many slots that each require a GPU, or for no GPU at all. Done layer by layer, so that
    `--slots 2` still wins over `gpus: 4` in a file."""
    if "gpus" not in layer.values:
        return
    value, place = layer.values.pop("gpus"), layer.places.pop("gpus")
    meant: dict[str, object] = {"gpu": "none"} if show(value) == "0" else {"slots": value, "gpu": "required"}
    for field, own in meant.items():
        said = show(layer.values.get(field, own))
        if said != show(own):
            mistakes.append(
                f"{place}: {show(value)} makes {field} {show(own)}, but {layer.places[field]} is {said}; keep one"
            )
        layer.values[field] = own
        layer.places[field] = place


def _expand_groups(layer: Layer, catalogue: Catalogue, mistakes: list[str]) -> None:
    """Names and values may also be written as a list of NAME=VALUE, as flags are."""
    for field, known in catalogue.options.items():
        given = layer.values.get(field)
        if not known.is_group or not isinstance(given, Sequence) or isinstance(given, str):
            continue
        pairs = [str(pair).partition("=") for pair in given]
        mistakes += [
            f'{layer.places[field]}: {show(name)} has no "="; give {known.value}, as in {_pair(known.example)}'
            for name, joint, _ in pairs
            if not joint
        ]
        layer.values[field] = {name: value for name, joint, value in pairs if joint}


def _pair(example: object) -> str:
    return next((f"{name}={value}" for name, value in example.items()), "") if isinstance(example, Mapping) else ""


def _expand_env_file(layer: Layer, environ: Mapping[str, str], mistakes: list[str], *, without_values: bool) -> None:
    """`env_file` is short for the variables of these files; `env` beside it wins."""
    if "env_file" not in layer.values:
        return
    given, place = layer.values.pop("env_file"), layer.places.pop("env_file")
    files = [given] if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(files, Sequence) or not all(isinstance(file, (str, os.PathLike)) for file in files):
        mistakes.append(f"{place}: {show(given)} is no file; give the name of a file, or a list of names")
        return
    found: dict[str, object] = {}
    for file in files:
        values = _read_variables(layer.folder, os.fspath(file), environ, place, mistakes)
        found |= dict.fromkeys(values, f"(from {file})") if without_values else values
    own = layer.values.get("env", {})
    if isinstance(own, Mapping):  # If not, `parse_spec` names the mistake.
        layer.values["env"] = {**found, **own}
        layer.places.setdefault("env", place)


def _read_variables(
    folder: Path, file: str, environ: Mapping[str, str], place: str, mistakes: list[str]
) -> dict[str, str]:
    try:
        with (folder / _from_home(file, environ.get("HOME", ""))).open("rb") as opened:
            content = opened.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            mistakes.append(f"{place} {file}: it is larger than 1 MiB; give a file with a few variables")
            return {}
        values, wrong = parse_variables(content.decode("utf-8-sig"), environ)
    except OSError as error:
        mistakes.append(f"{place} {file}: it can't be read: {error.strerror}")
        return {}
    except ValueError:
        mistakes.append(f"{place} {file}: it is not UTF-8 text; save it as UTF-8")
        return {}
    mistakes += [f"{file}, {each}" for each in wrong]
    return {name: value for name, value in values.items() if _is_free(name, file, mistakes)}


def _is_free(name: str, file: str, mistakes: list[str]) -> bool:
    """Check the name of a variable. A mistake is reported without its value, which may be a secret."""
    try:
        check_variable(name)
    except SpecError as error:
        mistakes.append(f"{file}: {error.message}; {error.hint}")
        return False
    return True


def _anchor_paths(layer: Layer, home: str, *, on_cluster: bool) -> None:
    """A path is seen from the file that names it. An interpreter without a slash is looked up in PATH later, and on a
    cluster it is one of the image."""
    for field in ("workdir", "python"):
        value = layer.values.get(field)
        if isinstance(value, (str, os.PathLike)):
            path = os.fspath(value)
            inside = field == "python" and on_cluster
            if not inside:
                path = _from_home(path, home)
            here = field == "workdir" or ("/" in path and not inside)
            layer.values[field] = _straight(layer.folder / path) if here else path


def _from_home(path: str, home: str) -> str:
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path


def _straight(path: Path) -> str:
    """Without "..": files are compared with the folder by their names."""
    return os.path.realpath(path) if ".." in path.parts else str(path)


def _merge(folder: Path, layers: Sequence[Layer], catalogue: Catalogue) -> Layer:
    """The last layer that names a field has it; only groups of names and values are merged name by name."""
    merged = Layer(folder, {"workdir": str(folder)}, {})
    for layer in layers:
        names: dict[str, str] = {}
        for field, value in layer.values.items():
            others = merged.values.get(field)
            merged.values[field] = value
            if isinstance(value, Mapping) and field in catalogue.options and catalogue.options[field].is_group:
                names |= {f"{field}.{name}": layer.places[field] for name in value}
                merged.values[field] = {**(others if isinstance(others, Mapping) else {}), **value}
        merged.places.update({**names, **layer.places})
    return merged


def _check_workdir(merged: Layer, mistakes: list[str]) -> None:
    workdir = merged.values["workdir"]
    wrong = _trouble_with(Path(workdir)) if isinstance(workdir, str) else ""
    if wrong:
        place = merged.places.get("workdir", "the current folder")
        mistakes.append(f"{place}: {workdir} {wrong}; give the folder that the program should run in")


def _trouble_with(folder: Path) -> str:
    try:
        return "" if stat.S_ISDIR(folder.stat().st_mode) else "is not a folder"
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"can't be used ({error.strerror})"
    except ValueError:  # A NUL in it, which parse_spec tells.
        return ""


class _File(NamedTuple):
    """A file of settings: each name with its own node and that of its value."""

    folder: Path
    source: _Source
    entries: Mapping[str, tuple[yaml.Node, yaml.Node]]
    is_readable: bool = True


def _read_files(folder: Path, environ: Mapping[str, str], mistakes: list[str]) -> Iterator[_File]:
    """The user's configuration and pumasi.yaml, as far as there are such files."""
    for path, label in (*_user_file(environ), (folder / FILE, FILE)):
        source = _Source(label, mistakes)
        before = len(mistakes)
        text = _read_text(path, source)
        root = _compose(text, source) if text is not None else None
        if root is not None:
            yield _File(path.parent, source, _settings(root, source))
        elif len(mistakes) > before:
            yield _File(folder, source, {}, is_readable=False)


def _user_file(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """None without a home. The XDG specification has relative folders ignored."""
    home = Path(environ.get("HOME", ""))
    settings = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not settings.is_absolute():
        settings = home / ".config"
    if settings.is_absolute():
        path = settings / "pumasi" / "config.yaml"
        yield path, f"~/{path.relative_to(home)}" if home.is_absolute() and home in path.parents else str(path)


class _Source(NamedTuple):
    """A file while it is read, and the list that takes the mistakes in it."""

    label: str
    mistakes: list[str]

    def complain(self, text: str, line: int | None = None) -> None:
        self.mistakes.append(f"{self.label}, line {line}: {text}" if line else f"{self.label}: {text}")

    def place(self, node: yaml.Node) -> str:
        return f"{self.label}, line {_line(node)}"


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _read_text(path: Path, source: _Source) -> str | None:
    """None when there is no such file, or none that could be read."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) <= _LARGEST_FILE:
            return content.decode("utf-8-sig")
        source.complain("it is larger than 1 MiB; it should hold a few settings only")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except IsADirectoryError:
        source.complain("this is a folder; rename it, or put a file of settings in its place")
    except OSError as error:
        source.complain(f"it can't be read ({error.strerror}); make it readable or remove it")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        source.complain("this is not UTF-8 text; save the file as UTF-8", line)
    return None


def _compose(text: str, source: _Source) -> yaml.Node | None:
    """The root of the document; None when there is none, or the text is not YAML."""
    import yaml

    line, problem = 1, "it is nested too deeply"
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return root if root is None or root.tag != _NULL else None
    except yaml.MarkedYAMLError as error:
        # A block begins far above the mistake in it; a quote or a bracket begins where the one that ends it is missed.
        in_block = "block" in (error.context or "")
        mark = error.problem_mark if in_block else error.context_mark or error.problem_mark
        line, problem = (mark.line + 1 if mark else 1), error.problem or ""
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position) + 1, "there is an unprintable character"
    except RecursionError:
        pass
    advice = next((advice for part, advice in _ADVICE.items() if part in problem), "write name: value on each line")
    source.complain(f"this is not YAML: {problem}; {advice}", line)
    return None


_ADVICE = {
    "'\\t'": "indent with spaces, not with tabs",
    "mapping values are not allowed": 'put text that holds ": " in quotes, and give all names the same indentation',
    "<block end>": "give all names the same indentation",
    "unexpected end of stream": "close the quote",
    "expected ',' or": "close the bracket",
    "another document": "leave the line of --- out",
    "unprintable": "take it out",
}


def _settings(root: yaml.Node, source: _Source) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    import yaml

    if isinstance(root, yaml.MappingNode):
        return _entries(root, source, fold=True)
    source.complain("names and values belong here, as in slots: 4", _line(root))
    return {}


def _file_layer(file: _File, catalogue: Catalogue) -> Layer:
    """A file that can't be read may have held the command: that this is missing is not to be told as a second
    mistake."""
    import yaml

    layer = Layer(file.folder, {} if file.is_readable else {"command": [file.source.label]}, {})
    for name, (key, node) in file.entries.items():
        if name in catalogue.options and catalogue.options[name].written != name:
            meant = catalogue.options[name].written
            file.source.complain(f"{key.value} is not known; did you mean {meant}?", _line(key))
            continue
        field = catalogue.of_file(name)
        layer.values[field] = _value(node, file.source)
        layer.places[field] = f"{file.source.place(key)}: {key.value}"
        if isinstance(node, yaml.MappingNode):
            layer.places.update(_placed(file.source, node, field, name))
    return layer


def _placed(source: _Source, group: yaml.MappingNode, field: str, name: str) -> dict[str, str]:
    """Where each of a group of names was written."""
    return {f"{field}.{inner.value}": f"{source.place(inner)}: {name}.{inner.value}" for inner, _ in group.value}


def _entries(
    mapping: yaml.MappingNode, source: _Source, *, fold: bool = False
) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Each name, with its own node and that of its value; `fold` makes start-timeout and start_timeout one name."""
    entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, node in mapping.value:
        text = key.value if isinstance(key.value, str) else ""
        if not text:
            source.complain("a name is missing here; write name: value", _line(key))
            continue
        name = text.replace("-", "_") if fold else text
        if name in entries:
            source.complain(f"{text} is given twice, first in line {_line(entries[name][0])}; keep one", _line(key))
        entries.setdefault(name, (key, node))
    return entries


def _value(node: yaml.Node, source: _Source) -> object:
    """Text, a list of texts, or names with texts: nothing in a spec is deeper than that."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [_scalar(item, source) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {name: _scalar(value, source) for name, (_, value) in _entries(node, source).items()}
    return _scalar(node, source)


def _scalar(node: yaml.Node, source: _Source) -> str | None:
    """The text as it was written; `parse_spec` knows which fields are numbers. None for null."""
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        source.complain("a list or a group can't stand here; give plain text", _line(node))
        return ""
    if node.tag not in _PLAIN_TAGS:
        source.complain(f"the tag {node.tag} is not known; leave it out", _line(node))
    return None if node.tag == _NULL else str(node.value)
