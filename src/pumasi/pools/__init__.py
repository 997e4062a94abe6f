"""Places where tasks run. Another pool is one more module with an `open_pool`, and one more line here."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumasi.pools.base import Pool, Request

POOLS = {
    "local": "pumasi.pools.local.pool",
    "k8s": "pumasi.pools.kubernetes.pool",
}


def open_pool(request: Request, *, adopt: bool = False) -> AbstractAsyncContextManager[Pool]:
    """The pool that the run asks for, as long as a manager needs it. `adopt`: another manager has used it before."""
    module: Any = import_module(POOLS[request.spec.pool])
    pool: AbstractAsyncContextManager[Pool] = module.open_pool(request, adopt=adopt)
    return pool
