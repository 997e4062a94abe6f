"""What is known of a gang of pods, and what has been decided about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from pumasi.pools.kubernetes.gang.actions import Action, Actions
from pumasi.pools.kubernetes.pod_facts import Facts, Object, Refusal, Seen, see


class Phase(str, Enum):
    NEW = "new"
    SYNCING = "syncing"
    CREATING = "creating"
    UP = "up"  # created or adopted, and judged by what is observed
    DRAINING = "draining"  # all pods are gone or have ended; the last lines are on their way
    OVER = "over"


class Member(NamedTuple):
    """One pod, as it was last observed, its address included (`status.podIP`). `pulls` counts how often one of its
    images could not be pulled."""

    pod: Object
    seen: Seen
    pulls: int = 0

    @property
    def name(self) -> str:
        return self.seen.name


def observed(pod: Object, before: Member | None) -> Member:
    pulls = before.pulls if before else 0
    is_news = _is_pull_failure(pod) and not (before and _is_pull_failure(before.pod))
    return Member(pod, see(pod), pulls + is_news)


def _is_pull_failure(pod: Object) -> bool:
    status = pod.get("status", {})
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any((each.get("state", {}).get("waiting") or {}).get("reason") == "ErrImagePull" for each in statuses)


class GangState(NamedTuple):
    """`silence` and `grace` are those of the agents; `kubectl` is how a command line for the gang's namespace begins.
    Pods go by their names.

    `present` are all pods but those that are gone or were not created, `live` those of them that have not ended.
    `doubtful` are those whose creation failed in a way that does not tell whether they exist: they count as present
    until they have been deleted. `missed` are those whose node does not answer, and since when. `told` is what an agent
    said about the end: the chief's words, if they came. `shows_end`: the attempt has begun to end, whoever caused it.

    `deadline` is when everything that is left is deleted by force, `nudge` when it is deleted with grace. `killed_by`
    is when kubelets kill what is left, as the first deletion said. What waits for an answer: `deletions` counts them;
    `forcing` are the pods that are being deleted by force, with their nodes if those are lost; `init` is the pod whose
    init container is being read; `ending_in` is the grace of an end for which the events of `late_pod` are listed.

    `introduces`: the chief's agent has to be told where the others are, and has not been; `listens`: it has said that
    it can be. `introducing`: it is being told. `introduce_at` is when it is told, or told again after so many
    `introductions` that failed; `introducing_since` is when all addresses were known."""

    names: tuple[str, ...]
    silence: float
    grace: float
    kubectl: str = "kubectl"
    phase: Phase = Phase.NEW
    adopted: bool = False
    ran: bool = False
    asked: bool = False
    shows_end: bool = False
    refusal: Refusal | None = None
    failure: Facts | None = None
    unreadable: Facts | None = None
    told: Facts | None = None
    members: Mapping[str, Member] = {}
    uncreated: tuple[str, ...] = ()
    creating: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()
    missed: Mapping[str, float] = {}
    read: frozenset[str] = frozenset()
    reading: frozenset[str] = frozenset()
    strange: tuple[str, ...] = ()
    deadline: float | None = None
    nudge: float | None = None
    killed_by: float | None = None
    drained_by: float | None = None
    listens: bool = False
    introduces: bool = False
    introducing: bool = False
    introducing_since: float | None = None
    introduce_at: float | None = None
    introductions: int = 0
    init: str = ""
    late: str = ""
    late_pod: str = ""
    ending_in: int | None = None
    asking_nodes: bool = False
    deletions: int = 0
    is_left_to_cluster: bool = False
    forcing: Mapping[str, str] = {}
    lost_nodes: frozenset[str] = frozenset()
    wake: float | None = None
    outbox: Actions = ()

    @property
    def is_alone(self) -> bool:
        return len(self.names) == 1

    @property
    def is_decided(self) -> bool:
        """Why the attempt ends is known: nobody looks for further trouble."""
        return bool(self.refusal or self.failure or self.asked)

    @property
    def is_refused(self) -> bool:
        """There is no room for it; and no failure that would be told in place of that."""
        return self.refusal is not None and self.failure is None

    @property
    def is_ending(self) -> bool:
        return self.is_decided or self.shows_end

    @property
    def is_all_over(self) -> bool:
        """A refused gang must be gone altogether: what is being deleted still counts against others."""
        return not (self.present if self.refusal else self.live)

    @property
    def waits_to_force(self) -> bool:
        """For the answer to a request that the deadline led to."""
        return bool(self.forcing) or (self.asking_nodes and not self.is_ending)

    @property
    def may_introduce(self) -> bool:
        return self.introduces and not (self.introducing or self.ran or self.is_ending)

    @property
    def due(self) -> float | None:
        """When something has to be done, even if nothing is observed before."""
        if self.phase is Phase.DRAINING:
            return self.drained_by
        if self.phase is not Phase.UP or self.init or self.is_all_over:
            return None
        introduce_at = self.introduce_at if self.may_introduce else None
        limits = (self.nudge, introduce_at, None if self.waits_to_force else self.deadline)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def seen(self) -> list[Seen]:
        return sorted(member.seen for member in self.members.values())

    def does(self, *actions: Action) -> GangState:
        return self._replace(outbox=(*self.outbox, *actions))

    def without(self, pods: Collection[str]) -> GangState:
        """These are gone, or never came."""
        if not pods:
            return self
        return self._replace(present=self.present.difference(pods), live=self.live.difference(pods), shows_end=True)


def begin(
    names: Sequence[str], silence: float, grace: float, kubectl: str = "kubectl", *, introduces: bool = False
) -> GangState:
    """Of an attempt whose pods have these names, the chief's first. `introduces`: its agent is told where the others
    are."""
    pods = frozenset(names)
    return GangState(tuple(names), silence, grace, kubectl, present=pods, live=pods, introduces=introduces)
