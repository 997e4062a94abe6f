"""A run of a cluster is stopped by its manager, wherever that is; where it has none, one is started here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pumasi.errors import SystemTrouble
from pumasi.pools.kubernetes import runs
from pumasi.pools.kubernetes.copying import attend
from pumasi.pools.processes import MARGIN, ask_manager, grace_of

if TYPE_CHECKING:
    from pumasi.pools.pool import Pool, Say
    from pumasi.store import RunRecord, Store

_SILENT = (
    "The manager of {} does not answer.",
    "Try again in a while: when it has been silent for long, another one takes its place.",
)
_TRYING = ("{} could not be stopped so far.", "Can the cluster be reached? Its manager goes on trying.")


def ask_to_stop(pool: Pool, store: Store, record: RunRecord, *, force: bool, tell: Say) -> Callable[[], RunRecord]:
    """See `Pool.ask_to_stop`."""
    grace = grace_of(record, force=force)
    if attend(store, record):
        see_it_stop = partial(_see_it_stop, pool, store, record, grace, _TRYING)
        return ask_manager(pool, store, record, see_it_stop, force=force, tell=tell)
    tell(f"Stopping {record.id} in the cluster.")
    runs.ask_to_stop(record, force=force)
    return partial(_see_it_stop, pool, store, record, grace, _SILENT)


def _see_it_stop(pool: Pool, store: Store, record: RunRecord, grace: float, trouble: tuple[str, str]) -> RunRecord:
    """Somebody who does not answer may have to be given up first."""
    silence = float(str(record.spec.get("silence", 0.0)))
    try:
        return pool.wait(store, record.id, grace + 2 * MARGIN + silence)
    except TimeoutError:
        message, hint = trouble
        raise SystemTrouble(message.format(record.id), hint) from None
