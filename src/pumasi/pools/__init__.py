"""Places where runs live. `pool.Pool` and `base.Runner` are the contracts; `pumasi.registry.POOLS` has the pools.

A pool is a package that nothing imports by its name: whoever needs one asks here. So it may use all of Pumasi, as a
pool of an installed package does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumasi.registry import DEFAULT_POOL, POOLS

if TYPE_CHECKING:
    from pumasi.pools.pool import Pool
    from pumasi.store.records import RunRecord


def pool_named(word: str) -> Pool:
    """The pool of `NAME` or `NAME:ARGUMENT`, as --on has it. UsageError where there is none of that name."""
    pool: Pool = POOLS.get(word.partition(":")[0])
    return pool


def pool_of(record: RunRecord) -> Pool:
    """The pool that a run lives in. UsageError where it is of a package that is not installed here."""
    return pool_named(str(record.spec.get("on", DEFAULT_POOL)))


def is_of(record: RunRecord, pool: Pool) -> bool:
    """Whether the run lives in that pool; without loading the others."""
    return str(record.spec.get("on", DEFAULT_POOL)).partition(":")[0] == pool.name


def known_pools() -> list[Pool]:
    """The built-in ones, the default first."""
    return [pool_named(name) for name in POOLS.names]
