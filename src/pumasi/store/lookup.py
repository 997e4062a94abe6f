"""Which run does a user mean? Pure: all ids in, one of them out, or a sentence that helps to choose."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pumasi.errors import NotFound, UsageError

_NAMED = 6
"""As many runs as a message names before it says how many more there are."""


def pick(
    prefix: str | None,
    ids: Sequence[str],
    *,
    own: Collection[str],
    running: Collection[str] = (),
    careful: bool = False,
    run: str = "pumasi run",
    ps: str = "pumasi ps",
) -> str:
    """`ids` has the newest first; no prefix means the newest of the `own`. A prefix that several runs share means the
    only one of them that is `running`, if that is one of the `own`. `careful`: a run that is not one of the `own` has
    to be named in full. `run` and `ps` start and list runs where `ids` are."""
    if prefix == "":
        # Most likely a shell variable that is not set, and then even the only run there is was not meant.
        raise UsageError("The run's name is empty.", "Leave it out to mean the last run.")
    if not ids:
        message = "There is no run yet." if prefix is None else f"There is no run {prefix}, nor any other yet."
        raise NotFound(message, f"Start one: {run} train.py")
    if prefix is None:
        return _newest(ids, own, ps)
    matches = [run_id for run_id in ids if run_id.startswith(prefix)]
    if prefix in matches:
        return prefix
    if not matches:
        raise NotFound(f"There is no run {prefix}.", _close_to(prefix, ids) or f"`{ps}` lists the runs that there are.")
    going_on = [run_id for run_id in matches if run_id in running]
    if len(matches) > 1 and len(going_on) == 1 and going_on[0] in own:
        return going_on[0]
    if len(matches) > 1:
        raise UsageError(f"{prefix} may mean {_some(matches)}.", "Type more of the one that you mean.")
    if careful and matches[0] not in own:
        raise UsageError(f"{matches[0]} was not started from here.", "If you mean that one, type its whole name.")
    return matches[0]


def _newest(ids: Sequence[str], own: Collection[str], ps: str) -> str:
    for run_id in ids:
        if run_id in own:
            return run_id
    raise NotFound(
        f"None of the runs there was started from here; the last one is {ids[0]}.",
        f"Name the run that you mean; `{ps}` lists them, and who started them.",
    )


def _close_to(prefix: str, ids: Sequence[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(prefix, ids, n=3)
    return f"Did you mean {_either(close)}?" if close else ""


def _some(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED
    return _either([*ids[:_NAMED], f"{more} more"] if more > 0 else ids)


def _either(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
