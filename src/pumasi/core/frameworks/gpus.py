"""Which GPUs a rank sees.

A script for torch takes GPU number LOCAL_RANK of all that are there; TensorFlow and JAX take every GPU they see. So the
first must see all of the task's GPUs on its node ("all"), the others only their own ("own").
"""

from __future__ import annotations

from pumasi.core.frameworks.base import Gang
from pumasi.core.ranks import Rank

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Not ROCR_VISIBLE_DEVICES: on AMD it is applied first, and HIP's numbers then count among what it has left over, so
that the same number in both hides every GPU but the first."""


def seen(gang: Gang, rank: Rank) -> tuple[str, ...]:
    """The ids of the GPUs for this rank; parameter servers and the evaluator have none."""
    if not gang.gpus or rank.rank >= gang.table.trainers:
        return ()
    here = gang.gpus[rank.node]
    if gang.per_node or gang.see_gpus == "all":
        return here
    return here[rank.local_rank : rank.local_rank + 1]


def visibility(gang: Gang, rank: Rank) -> dict[str, str]:
    if not gang.gpus:
        return {}
    return dict.fromkeys(VARIABLES, ",".join(seen(gang, rank)))
