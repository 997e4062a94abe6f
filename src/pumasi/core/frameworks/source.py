"""Source text to facts, through the AST: what is imported, called and set, under which full name.

Nothing is run and nothing is guessed about values. A file that this Python does not understand (the script's own may
be a newer one) still tells its imports, line by line.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from pumasi.core.frameworks.script import UNKNOWN, Call, Import, Script
from pumasi.errors import UsageError

_IMPORT_LINE = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w.]+)", re.MULTILINE)
_NO_CODE = re.compile(
    r"""#[^\n]*|\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""", re.DOTALL
)
"""Comments and strings, where there is no syntax tree to tell them from code."""
_COMMANDS = ("subprocess.", "os.system", "os.popen", "os.exec", "os.spawn", "os.posix_spawn")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_NEWER = re.compile(
    r"^\s*(?:type|lazy)\s+\w|^\s*(?:async\s+)?(?:def|class)\s+\w+\s*\[|^\s*except\s*\*|\b[rR]?[fFtT][rR]?[\"']|\*.*\bfor\b"
)
"""Lines that Python 3.12 to 3.15 understand, and those before may not."""
Nodes = Sequence[tuple[ast.AST, bool]]

_CONDITIONAL = (ast.If, ast.IfExp, ast.ExceptHandler, ast.match_case)


def read_script(
    sources: Mapping[str, str],
    environ: Mapping[str, str],
    command: Sequence[str] = (),
    *,
    may_pass: Callable[[SyntaxError], bool] = lambda error: False,
) -> Script:
    """Facts about all `sources`, of which the first is the main script. A syntax error in that one is a UsageError,
    unless it `may_pass`, since the script will run on another Python than this."""
    reader = _Reader(environ)
    main = next(iter(sources), "")
    for file, text in sources.items():
        try:
            nodes = _parse(text)
        except SyntaxError as error:
            if file == main and not may_pass(error):
                raise UsageError(_syntax_message(file, error)) from error
            reader.trouble = reader.trouble or (f"{file}, line {error.lineno}: {error.msg}" if file == main else "")
            nodes = None
        reader.read(file, text, nodes)
    return reader.script(main, tuple(command))


def may_be_newer(error: SyntaxError) -> bool:
    """Whether a newer Python than this may accept what this one does not: type parameters, f-strings and t-strings,
    `except A, B`, `lazy import`. Not what is nowhere Python, such as an open bracket or a wrong indentation."""
    if isinstance(error, IndentationError) or "was never closed" in error.msg:
        return False
    return error.msg.startswith(("f-string", "multiple exception types")) or _NEWER.search(error.text or "") is not None


def local_imports(text: str, package: str = "") -> set[str]:
    """Every module that `text` imports and that may be a file beside it, with the packages that it is in. `package` is
    the package of `text` itself, for relative imports."""
    try:
        nodes = _parse(text)
    except SyntaxError:
        nodes = None
    found: set[str] = set()
    for item in _imports("", text, nodes):
        module = _absolute(item.module, package)
        for name in (module, *(f"{module}.{name}".lstrip(".") for name in item.names)):
            parts = name.split(".")
            found.update(".".join(parts[: count + 1]) for count in range(len(parts)))
    return found - {""}


def _absolute(module: str, package: str) -> str:
    name = module.lstrip(".")
    dots = len(module) - len(name)
    if not dots:
        return module
    parents = package.split(".")[: max(0, len(package.split(".")) - (dots - 1))]
    return ".".join(part for part in (*parents, name) if part)


def _parse(text: str) -> Nodes | None:
    """All nodes of the text; None for what is too deep for the parser; a SyntaxError for what is no Python."""
    with warnings.catch_warnings():
        # A bad escape in somebody's string is for their own Python to warn of.
        warnings.simplefilter("ignore")
        try:
            return list(_walk(ast.parse(text.lstrip("\ufeff"))))
        except ValueError as error:
            raise SyntaxError(str(error)) from error
        except (RecursionError, MemoryError):
            return None


def _syntax_message(file: str, error: SyntaxError) -> str:
    """As Python would say it, with the line and the caret under the place, but without its traceback."""
    import traceback

    if error.lineno is None:
        return f"{file}: {error.msg}"
    shown = "".join(traceback.format_exception_only(error)).splitlines()[1:-1]
    return "\n".join([f"{file}, line {error.lineno}: {error.msg}", *shown])


def _imports(file: str, text: str, nodes: Nodes | None) -> list[Import]:
    if nodes is None:
        code = _NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
        lines = _IMPORT_LINE.finditer(code)
        return [Import(line[1], (), file, code.count("\n", 0, line.start()) + 1) for line in lines]
    found = []
    for node, _ in nodes:
        if isinstance(node, ast.Import):
            found += [Import(alias.name, (), file, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names if alias.name != "*")
            found.append(Import("." * node.level + (node.module or ""), names, file, node.lineno))
    return found


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Every node that will exist at run time, in the order of the text, and whether a condition stands before it.
    Without recursion: generated files nest deeper than Python's stack."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, conditional = stack.pop()
        yield node, conditional
        children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
        if isinstance(node, ast.If):
            asked = _last_word(node.test)
            children = [*node.orelse] if asked == "TYPE_CHECKING" else children
            conditional = conditional or not _asks_for_main(node.test)
        elif isinstance(node, _CONDITIONAL):
            conditional = True
        stack += [(child, conditional) for child in reversed(children)]


def _asks_for_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and "__name__" in (_last_word(test.left), *map(_last_word, test.comparators))


class _Reader:
    """Gathers the facts of one file after another."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.files: list[str] = []
        self.unread: list[str] = []
        self.imports: list[Import] = []
        self.calls: list[Call] = []
        self.names: set[str] = set()
        self.words: set[str] = set()
        self.strings: set[str] = set()
        self.variables: set[str] = set()
        self.aliases: dict[str, str] = {}
        self.passed_over: set[int] = set()
        self.trouble = ""

    def script(self, main: str, command: tuple[str, ...]) -> Script:
        return Script(
            main=main,
            command=command,
            environ=self.environ,
            files=frozenset(self.files),
            unread=frozenset(self.unread),
            imports=tuple(self.imports),
            calls=tuple(self.calls),
            names=frozenset(self.names),
            words=frozenset(self.words),
            strings=frozenset(self.strings),
            variables=frozenset(self.variables),
            trouble=self.trouble,
        )

    def read(self, file: str, text: str, nodes: Nodes | None) -> None:
        self.files.append(file)
        self.imports += _imports(file, text, nodes)
        if nodes is None:
            self.unread.append(file)
            return
        self.aliases = _aliases(nodes)
        self.words.update(self.aliases)
        self.names.update(self.aliases.values())
        self.words.update(word for name in self.aliases.values() for word in name.split("."))
        # Nodes are told apart by id, which is theirs only as long as they live.
        self.passed_over.clear()
        for node, conditional in nodes:
            if id(node) not in self.passed_over:
                self._take(node, file, conditional)

    def _take(self, node: ast.AST, file: str, conditional: bool) -> None:
        if isinstance(node, ast.Call):
            self._take_call(node, file, conditional)
        elif isinstance(node, ast.Assign):
            self._take_setting(node)
        elif isinstance(node, ast.Attribute | ast.Name):
            self._take_name(node)
        elif isinstance(node, ast.Expr | ast.JoinedStr):
            # A docstring, or another string that nothing is done with; and the pieces of one that is put together.
            self.passed_over.update(
                id(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.Constant)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._take_string(node.value)

    def _take_string(self, text: str) -> None:
        """A sentence is for people: what it says starts nothing."""
        if len(text.split()) == 1:
            self.strings.add(text)
        if _VARIABLE.fullmatch(text):
            self.variables.add(text)

    def _take_name(self, node: ast.expr) -> None:
        """Of `a.b.c` only the whole counts: `a.b` alone would be a use of all that is in it."""
        name = self._full_name(node)
        if name:
            self.names.add(name)
        while isinstance(node, ast.Attribute):
            self.words.add(node.attr)
            node = node.value
            if isinstance(node, ast.Attribute | ast.Name):
                self.passed_over.add(id(node))
        if isinstance(node, ast.Name):
            self.words.add(node.id)

    def _full_name(self, node: ast.expr) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = self.aliases.get(node.id) if isinstance(node, ast.Name) else None
        return ".".join([root, *reversed(parts)]) if root else ""

    def _take_call(self, node: ast.Call, file: str, conditional: bool) -> None:
        keywords = {word.arg: _constant(word.value) for word in node.keywords if word.arg}
        call = Call(
            name=self._full_name(node.func),
            method=node.func.attr if isinstance(node.func, ast.Attribute) else "",
            receiver=_last_word(node.func.value) if isinstance(node.func, ast.Attribute) else "",
            keywords=keywords,
            positional=len(node.args),
            is_open=len(keywords) < len(node.keywords) or any(isinstance(arg, ast.Starred) for arg in node.args),
            is_conditional=conditional,
            file=file,
            line=node.lineno,
        )
        self.calls.append(call)
        self.words.update(keywords)
        if call.name.startswith(_COMMANDS):
            told = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
            self.strings.update(word for text in told if isinstance(text, str) for word in text.split())
        if call.name == "os.environ.setdefault" and len(node.args) == 2:
            self._set(node.args[0], node.args[1], only_if_missing=True)

    def _take_setting(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and self._full_name(target.value) == "os.environ":
                self.passed_over.add(id(target.slice))
                self._set(target.slice, node.value)

    def _set(self, key: ast.expr, value: ast.expr, *, only_if_missing: bool = False) -> None:
        name, content = _constant(key), _constant(value)
        if isinstance(name, str):
            self.strings.add(name)
        if isinstance(name, str) and isinstance(content, str) and not (only_if_missing and name in self.environ):
            self.environ[name] = content


def _aliases(nodes: Nodes) -> dict[str, str]:
    """What each imported name stands for. One scope for the whole file: nobody calls two modules by the same name."""
    found: dict[str, str] = {}
    for node, _ in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = f"{module}.{alias.name}"
    return found


def _last_word(node: ast.expr) -> str:
    """What an expression calls its value: `model` in `self.model`, `build_model` in `build_model(4)`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.expr) -> object:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, int) else UNKNOWN
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(map(_constant, node.elts))
    return node.value if isinstance(node, ast.Constant) else UNKNOWN
