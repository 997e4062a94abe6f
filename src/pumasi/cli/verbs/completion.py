"""pumasi completion: scripts for bash, zsh and fish, made from the verbs. Only ids of runs are asked for on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pumasi.cli.grammar import HELP, RUNS, SUMMARIES, Option, Verb, load
from pumasi.cli.parsing import Arguments
from pumasi.errors import UsageError

VERB = Verb(
    name="completion",
    usage=("pumasi completion bash|zsh|fish",),
    about="Prints a script with which your shell completes verbs, options and ids of runs.",
    takes=(1, 1),
    completes=("SHELL", "bash", "zsh", "fish"),
    examples=(
        ('eval "$(pumasi completion bash)"', "in ~/.bashrc"),
        ('eval "$(pumasi completion zsh)"', "in ~/.zshrc, after compinit"),
        ("pumasi completion fish | source", "in ~/.config/fish/config.fish"),
    ),
)


def main(arguments: Arguments) -> int:
    shells = {"bash": bash, "zsh": zsh, "fish": fish}
    shell = arguments.rest[0]
    if shell not in shells:
        raise UsageError(f"There is no completion for '{shell}'.", "There is one for bash, zsh and fish.")
    sys.stdout.write(shells[shell]())
    return 0


def _verbs() -> list[Verb]:
    return [load(name) for name in SUMMARIES]


def _options(verb: Verb) -> list[Option]:
    return [*verb.options, HELP]


def _names(options: Iterable[Option]) -> str:
    return " ".join(name for option in options for name in option.names)


def bash() -> str:
    cases = []
    for verb in _verbs():
        answer = f'words="{_names(_options(verb))}"'
        if verb.completes == RUNS:
            answer += '; [[ $current == -* ]] || words="$(pumasi ps --all --quiet 2>/dev/null)"'
        elif verb.completes[1:]:
            answer += f'; [[ $current == -* ]] || words="{" ".join(verb.completes[1:])}"'
        cases.append(f"    {verb.name}) {answer} ;;")
    choices = [
        f'    {option.names[-1]}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$current")); return ;;'
        for verb in _verbs()
        for option in verb.options
        if option.choices
    ]
    return _BASH.format(verbs=" ".join(SUMMARIES), cases="\n".join(cases), choices="\n".join(choices))


_BASH = """\
_pumasi() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMPREPLY=()
  if [[ $COMP_CWORD == 1 ]]; then
    COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$current"))
    return
  fi
  case "$previous" in
{choices}
  esac
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  # What belongs to the script is completed as files, by -o default.
  if [[ ${{COMP_WORDS[1]}} == run && $current != -* ]]; then return; fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _pumasi pumasi
"""


def zsh() -> str:
    cases = []
    for verb in _verbs():
        lines = [f"      {verb.name})", "        options=("]
        lines += [f"          '{name}:{_quoted(option.help)}'" for option in _options(verb) for name in option.names]
        lines += ["        )", f"        {_zsh_arguments(verb)}", "        ;;"]
        cases.append("\n".join(lines))
    verbs = "\n".join(f"      '{name}:{_quoted(summary)}'" for name, summary in SUMMARIES.items())
    return _ZSH.format(verbs=verbs, cases="\n".join(cases))


def _zsh_arguments(verb: Verb) -> str:
    if verb.completes == RUNS:
        return 'arguments=(${(f)"$(pumasi ps --all --quiet 2>/dev/null)"})'
    if verb.completes[1:]:
        return f"arguments=({' '.join(verb.completes[1:])})"
    return "files=1" if verb.completes else ":"


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''").replace(":", "\\:")


_ZSH = """\
#compdef pumasi
_pumasi() {{
  local -a verbs options arguments
  local files=0
  if (( CURRENT == 2 )); then
    verbs=(
{verbs}
    )
    _describe verb verbs
    return
  fi
  case ${{words[2]}} in
{cases}
  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    _describe option options
  elif (( files )); then
    _files
  elif (( ${{#arguments}} )); then
    compadd -a arguments
  fi
}}
compdef _pumasi pumasi
"""


def fish() -> str:
    lines = ["complete -c pumasi -f"]
    first = "__fish_use_subcommand"
    lines += [f"complete -c pumasi -n {first} -a {name} -d '{_escaped(said)}'" for name, said in SUMMARIES.items()]
    for verb in _verbs():
        here = f"'__fish_seen_subcommand_from {verb.name}'"
        lines += [f"complete -c pumasi -n {here} {_fish_option(option)}" for option in _options(verb)]
        if verb.completes == RUNS:
            lines.append(f"complete -c pumasi -n {here} -a '(pumasi ps --all --quiet 2>/dev/null)'")
        elif verb.completes[1:]:
            lines.append(f"complete -c pumasi -n {here} -a '{' '.join(verb.completes[1:])}'")
        elif verb.completes:
            lines.append(f"complete -c pumasi -n {here} -F")
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    takes = " -r" if option.value else ""
    choices = f" -f -a '{' '.join(option.choices)}'" if option.choices else ""
    return f"{names}{takes}{choices} -d '{_escaped(option.help)}'"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
