"""This machine as `pumasi nodes` shows it: one node."""

from __future__ import annotations

import os

from pumasi import gpus
from pumasi.core.spec import Spec
from pumasi.pools.local.runner import LocalRunner
from pumasi.pools.pool import Seen
from pumasi.store import default_home


async def look() -> Seen:
    """Without GPUs it has room for as many slots as one likes, which is not told."""
    found = gpus.list_gpus(os.environ)
    (node,) = await LocalRunner(Spec(command=("true",)), default_home(os.environ), found).nodes()
    free = node.free if found else 0
    used = len(found) - free
    return [{"name": node.name, "total": len(found), "used": used, "free": free, "out": "", "holders": []}]
