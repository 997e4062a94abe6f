"""The door: finds the verb, and turns every end, good or bad, into an exit code and a sentence; never a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from pumasi.errors import PumasiError, SystemTrouble, UsageError

_INTERRUPTED = 130
_BUG = 70
_MACHINE_ERRORS = frozenset(
    (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)
_NAME_ERRORS = frozenset((errno.ENAMETOOLONG, errno.ELOOP))


def main(words: Sequence[str] | None = None) -> int:
    _prepare_streams()
    code = _run(sys.argv[1:] if words is None else words)
    try:
        sys.stdout.flush()
    except OSError:
        from pumasi.cli.view.output import hush

        hush(sys.stdout)
    return code


def _prepare_streams() -> None:
    """A stream that is closed (`<&-`, some daemons) is opened, to nowhere: otherwise the next file would get its
    number, and with it the words that are meant for the stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that knows no Unicode is no reason to fail.
            stream.reconfigure(errors="replace")


def _run(words: Sequence[str]) -> int:
    try:
        code = _answer(words)
        sys.stdout.flush()
    except PumasiError as error:
        return _tell(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Who reads has seen enough (`| head`).
        return 0
    except Exception as error:  # noqa: BLE001
        translated = _translated(error)
        return _tell(translated) if translated else _confess(error)
    return code


def _answer(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help", "--version"):
        return _answer_without_verb(words)
    from pumasi.cli.foreign import translated
    from pumasi.cli.grammar import SUMMARIES, module_of

    name, *rest = translated(words)
    if name not in SUMMARIES:
        raise _unknown_verb(name)
    from importlib import import_module

    from pumasi.cli.parsing import parse

    module = import_module(module_of(name))
    arguments = parse(module.VERB, rest)
    if arguments.has("help"):
        return _answer_without_verb(["help", name])
    code: int = module.main(arguments)
    return code


def _answer_without_verb(words: Sequence[str]) -> int:
    if words and words[0] == "--version":
        from pumasi import __version__

        sys.stdout.write(f"pumasi {__version__}\n")
        return 0
    from pumasi.cli import help as texts
    from pumasi.cli.foreign import translated
    from pumasi.cli.grammar import SUMMARIES, load
    from pumasi.cli.view.output import columns

    if not words:
        text = texts.short_help()
    elif len(words) > 1 and (name := translated(words[1:])[0]) in SUMMARIES:
        text = texts.verb_help(load(name), min(columns(), 100))
    else:
        text = texts.full_help()
    sys.stdout.write(text)
    return 0


def _unknown_verb(name: str) -> UsageError:
    from pumasi.cli.foreign import verb_hint
    from pumasi.cli.grammar import SUMMARIES
    from pumasi.cli.parsing import closest

    if name.startswith("-"):
        return UsageError(f"Pumasi has no option {name}.", "A verb comes first: pumasi run train.py")
    if name.endswith(".py"):
        return UsageError(f"Pumasi has no verb '{name}'.", f"To run that script: pumasi run {name}")
    near = closest(name, SUMMARIES, least=0.5)
    hint = verb_hint(name) or (f"Did you mean 'pumasi {near}'?" if near else "'pumasi --help' lists them.")
    return UsageError(f"Pumasi has no verb '{name}'.", hint)


def _tell(error: PumasiError) -> int:
    from pumasi.cli.view.output import say

    say(*error.message.split("\n"), *(line for line in error.hint.split("\n") if line))
    return error.exit_code


def _translated(error: Exception) -> PumasiError | None:
    """A sentence for what is no mistake of ours: the machine, or a file name that no machine can have."""
    if not isinstance(error, OSError):
        return None
    if error.errno in _NAME_ERRORS:
        return UsageError(f"{error.filename} can't be the name of a file: {error.strerror}.")
    if error.errno in _MACHINE_ERRORS:
        where = f": {error.filename}" if error.filename else ""
        return SystemTrouble(f"This machine stands in the way: {error.strerror}{where}.")
    return None


def _confess(error: Exception) -> int:
    """A mistake of ours: one sentence, and a file that has all that a report needs."""
    from pumasi.cli.view.output import say

    path = _write_report(error)
    say(
        f"This is a mistake in Pumasi, not yours: {type(error).__name__}.",
        f"The details are in {path}; please report it with that file." if path else f"It said: {error}",
    )
    return _BUG


def _home() -> list[str]:
    from pumasi.store import default_home

    try:
        return [str(default_home(os.environ))]
    except PumasiError:
        return []


def _write_report(error: Exception) -> str:
    import platform
    import tempfile
    import time
    import traceback

    from pumasi import __version__

    facts = f"pumasi {__version__}, python {platform.python_version()}, {platform.platform()}\n{sys.argv}\n\n"
    text = facts + "".join(traceback.format_exception(error))
    name = time.strftime(f"mistake-%Y%m%d-%H%M%S-{os.getpid()}.txt")
    for folder in (*_home(), tempfile.gettempdir()):
        path = os.path.join(folder, name)  # noqa: PTH118
        try:
            os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103
            # For the user's eyes only: the words of the command may hold secrets (--env TOKEN=…).
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "w", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                file.write(text)
        except OSError:
            continue
        return path
    return ""
