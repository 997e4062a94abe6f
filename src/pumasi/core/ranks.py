"""Placement to rank table: who is rank 3, on which node, in which role, and who is chief.

Trainers come first (rank 0 is the chief), then those that serve them in roles of their own. The chief sits on the node
with the smallest share, so that the node that also coordinates has the least other work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """One process. `node` is the position of its node in the table; cross rank and size count the nodes that have
    this local rank, as Horovod defines them."""

    rank: int
    role: str
    index: int
    node: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True)
class RankTable:
    """`nodes[0]` is the chief's. `trainers` counts chief and workers, without those in other roles."""

    nodes: tuple[str, ...]
    ranks: tuple[Rank, ...]
    trainers: int

    def on(self, node: int) -> tuple[Rank, ...]:
        return tuple(rank for rank in self.ranks if rank.node == node)

    def shares(self) -> tuple[int, ...]:
        """Trainers a node, in the order of `nodes`."""
        return tuple(sum(r.node == n for r in self.ranks[: self.trainers]) for n in range(len(self.nodes)))


def rank_table(placement: Mapping[str, int], extra_roles: Sequence[str] = ()) -> RankTable:
    """Ranks for `placement` (trainers a node), and one for each of `extra_roles`, dealt out node by node."""
    nodes = chief_first(placement)
    trainers = sum(placement.values())
    seats = [node for node, name in enumerate(nodes) for _ in range(placement[name])]
    seats += [extra % len(nodes) for extra in range(len(extra_roles))]
    return RankTable(tuple(nodes), tuple(_ranks(seats, _roles(trainers, extra_roles))), trainers)


def chief_first(placement: Mapping[str, int]) -> list[str]:
    used = [name for name, share in placement.items() if share > 0]
    chief = min(used, key=lambda name: placement[name])
    return [chief, *(name for name in used if name != chief)]


def _roles(trainers: int, extra: Sequence[str]) -> list[tuple[str, int]]:
    """Where there are extra roles the first trainer is a `chief` of its own; otherwise all are workers."""
    if extra:
        first = [("chief", 0), *(("worker", i) for i in range(trainers - 1))]
    else:
        first = [("worker", i) for i in range(trainers)]
    return first + [(role, extra[:index].count(role)) for index, role in enumerate(extra)]


def _ranks(seats: Sequence[int], roles: Sequence[tuple[str, int]]) -> list[Rank]:
    size = Counter(seats)
    seen: Counter[int] = Counter()
    local = []
    for node in seats:
        local.append(seen[node])
        seen[node] += 1
    sharing: dict[int, list[int]] = defaultdict(list)
    for node in sorted(size):
        for local_rank in range(size[node]):
            sharing[local_rank].append(node)
    return [
        Rank(
            rank=rank,
            role=role,
            index=index,
            node=node,
            local_rank=local[rank],
            local_size=size[node],
            cross_rank=bisect_left(sharing[local[rank]], node),
            cross_size=len(sharing[local[rank]]),
        )
        for rank, (node, (role, index)) in enumerate(zip(seats, roles, strict=True))
    ]
