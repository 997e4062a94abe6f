"""What is done about a gang of pods, told as stories: what was observed, and what came of it."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from pumasi.pools.kubernetes.gang import MARGIN, GangState, Phase, begin, machine, step
from pumasi.pools.kubernetes.gang.actions import (
    Action,
    Create,
    Delete,
    End,
    Force,
    ListEvents,
    ListNodes,
    ReadInit,
    ReadLog,
    Refuse,
    Say,
    StopReading,
    Tell,
    Wake,
    Whole,
)
from pumasi.pools.kubernetes.gang.deciding import AGAIN, DRAIN
from pumasi.pools.kubernetes.gang.observations import (
    Begun,
    Created,
    CreateFailed,
    CreateRefused,
    Deleted,
    DeleteFailed,
    EndAsked,
    EventsListed,
    Forced,
    Heard,
    InitRead,
    LogEnded,
    NodesListed,
    Observation,
    PodSeen,
    Synced,
    Tick,
)
from tests.unit.test_gang_properties import (
    DONE,
    FAILED,
    GRACE,
    QUOTA,
    RUNNING,
    SILENCE,
    TROUBLE,
    Object,
    an_object,
    deleting,
    in_state,
    name_of,
    ready,
    terminated,
    unschedulable,
    with_failed_init,
)

_A = TypeVar("_A")
LONGEST_LIFE = SILENCE + GRACE + MARGIN


class Actions(list[Action]):
    """Equal to others of the same kinds, where tuples alone would be equal to those of other kinds."""

    def __eq__(self, other: object) -> bool:
        kinds = [type(action) for action in other] if isinstance(other, list) else None
        return super().__eq__(other) and [type(action) for action in self] == kinds

    __hash__ = None


class Story:
    """A gang, what is observed of it, and what it has done about that."""

    def __init__(self, size: int = 2) -> None:
        self.state: GangState = begin([name_of(number) for number in range(size)], SILENCE, GRACE)
        self.now = 0.0
        self.actions: list[Action] = []

    def sees(self, *observations: Observation) -> Actions:
        """What came of these alone."""
        before = len(self.actions)
        for seen in observations:
            self.state, actions = step(self.state, seen)
            self.actions += actions
        return Actions(action for action in self.actions[before:] if not isinstance(action, Wake))

    def passes(self, seconds: float) -> Actions:
        self.now += seconds
        return self.sees(Tick(self.now))

    def shows(self, thing: Object, *, gone: bool = False) -> Actions:
        return self.sees(PodSeen(self.now, thing, gone))

    def did(self, kind: type[_A]) -> list[_A]:
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def end(self) -> Any:
        (end,) = self.did(End)
        return end.facts


def created(size: int = 2) -> Story:
    story = Story(size)
    story.sees(Begun(0), Synced(0), *(Created(0, name_of(number)) for number in range(size)))
    return story


def runs(number: int) -> Object:
    return in_state(an_object(number, f"node-{number}"), "Running", RUNNING)


def running(size: int = 2) -> Story:
    story = created(size)
    for number in range(size):
        story.shows(runs(number))
    story.sees(Heard(0, name_of(0), {"event": "running"}))
    assert story.did(Whole)
    return story


def test_a_gang_that_is_done_ends_when_its_last_lines_have_come() -> None:
    story = running()
    story.sees(Heard(0, name_of(0), {"event": "over", "outcome": DONE}))
    story.shows(terminated(runs(0), 0, DONE))
    story.shows(terminated(runs(1), 0))
    assert story.state.phase is Phase.DRAINING
    assert story.did(End) == []
    story.sees(LogEnded(0, name_of(0)), LogEnded(0, name_of(1)))
    assert story.end == DONE
    assert story.did(Delete) == [], "pods are kept for their logs"


def test_last_lines_that_do_not_come_hold_the_end_up_only_for_a_while() -> None:
    story = running(1)
    story.shows(terminated(runs(0), 0, DONE))
    assert story.passes(DRAIN - 1) == []
    assert story.passes(1) == [End(DONE)]


def test_pods_are_created_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "AT_ONCE", 2)
    story = Story(4)
    assert story.sees(Begun(0), Synced(0)) == [Create(name_of(0)), Create(name_of(1))]
    assert story.sees(Created(0, name_of(1))) == [Create(name_of(2))]


def test_the_first_pod_that_is_refused_ends_the_creation_and_takes_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "AT_ONCE", 2)
    story = Story(4)
    story.sees(Begun(0), Synced(0))
    assert story.sees(CreateRefused(0, name_of(1), QUOTA)) == []
    assert story.sees(Created(0, name_of(0))) == [Delete(1, keep_ended=False)]
    story.shows(an_object(0), gone=True)
    assert story.sees(Deleted(0, 1)) == [Refuse(QUOTA)]


def test_a_pod_that_may_exist_is_deleted_before_the_attempt_is_over() -> None:
    story = Story(1)
    story.sees(Begun(0), Synced(0))
    assert story.sees(CreateFailed(0, name_of(0), TROUBLE)) == [Delete(1, keep_ended=False)]
    assert story.sees(DeleteFailed(0, "No answer.")) == [Tell("No answer.")]
    assert story.passes(AGAIN) == [Delete(1, keep_ended=True)]
    assert story.sees(Deleted(story.now, 1)) == [End(TROUBLE)]


def test_a_pod_that_exists_though_its_creation_failed_is_waited_for() -> None:
    story = Story(1)
    story.sees(Begun(0), Synced(0), CreateFailed(0, name_of(0), TROUBLE))
    story.shows(an_object(0, "node-0"))
    assert story.sees(Deleted(0, 1)) == []
    assert story.shows(an_object(0, "node-0"), gone=True) == [End(TROUBLE)]


def test_one_pod_without_a_place_takes_all_of_them_back() -> None:
    story = created(3)
    assert story.shows(unschedulable(an_object(2))) == [Delete(1, keep_ended=False)]
    assert story.shows(unschedulable(an_object(1))) == [], "once"


def test_a_refused_gang_is_over_when_all_of_it_is_gone() -> None:
    story = created()
    story.shows(unschedulable(an_object(1)))
    story.sees(Deleted(0, 1))
    story.shows(an_object(1), gone=True)
    story.shows(terminated(runs(0), 143))
    assert story.state.phase is Phase.UP
    story.shows(terminated(runs(0), 143), gone=True)
    story.sees(LogEnded(0, name_of(0)))
    assert len(story.did(Refuse)) == 1


def test_what_a_failed_init_container_said_is_read_before_its_pod_is_deleted() -> None:
    story = created()
    assert story.shows(with_failed_init(an_object(1, "node-1"))) == [ReadInit(name_of(1), "a")]
    assert story.sees(InitRead(0, ["no such bucket"])) == [Delete(1, keep_ended=False)]
    story.sees(Deleted(0, 1))
    story.shows(an_object(0), gone=True)
    assert story.end["tail"] == ["no such bucket"]


def test_an_end_has_two_stages() -> None:
    """Members that do not hear of it are told by deleting their pods, and what is left then is deleted by force."""
    story = running()
    story.sees(Heard(0, name_of(0), {"event": "over", "outcome": FAILED}))
    story.shows(terminated(runs(0), 1, FAILED))
    assert story.passes(GRACE) == []
    assert story.passes(MARGIN / 3) == [Delete(15, keep_ended=True)]
    story.sees(Deleted(story.now, 15))
    story.now = LONGEST_LIFE - 0.1
    assert story.passes(0) == []
    assert story.passes(0.1) == [Force((name_of(1),))]
    assert story.sees(Forced(story.now)) == [StopReading((name_of(1),))]
    story.sees(LogEnded(story.now, name_of(0)))
    assert story.end == FAILED
    assert story.state.lost_nodes == {"node-1"}


def test_a_member_that_ended_well_has_run_even_if_nobody_has_read_that_yet() -> None:
    story = created()
    story.shows(runs(0))
    assert story.shows(terminated(runs(1), 0)) == [ReadLog(name_of(1))], "nothing is deleted in haste"


def test_a_pod_that_came_and_went_while_nobody_looked_does_not_hold_up_the_end() -> None:
    story = created(1)
    assert story.sees(EndAsked(0, GRACE)) == [Delete(1, keep_ended=True)]
    story.sees(Deleted(0, 1))
    assert story.passes(LONGEST_LIFE + GRACE) == [Force((name_of(0),))]
    assert story.sees(Forced(story.now)) == [StopReading((name_of(0),)), End({"cause": "stopped"})]


def test_what_is_being_created_when_the_end_is_asked_for_is_deleted_as_soon_as_it_exists() -> None:
    story = Story(1)
    story.sees(Begun(0), Synced(0))
    assert story.sees(EndAsked(0, GRACE), Deleted(0, 1)) == [Delete(1, keep_ended=True)]
    assert story.sees(Created(0, name_of(0))) == [Delete(1, keep_ended=True)]


def test_the_answer_to_a_deletion_is_waited_for() -> None:
    story = running(1)
    assert story.sees(EndAsked(0, GRACE)) == [Delete(27, keep_ended=True)]
    story.shows(terminated(runs(0), 143))
    story.sees(LogEnded(0, name_of(0)))
    assert story.did(End) == []
    assert story.sees(Deleted(0, 27)) == [End({"cause": "stopped"})]


def test_whoever_is_late_is_named_before_the_pods_are_deleted() -> None:
    story = created()
    story.shows(runs(0))
    story.shows(an_object(1, "node-1"))
    assert story.sees(EndAsked(0, GRACE)) == [ListEvents(name_of(1))]
    assert story.sees(EndAsked(0, 0)) == []
    assert story.sees(EventsListed(0, [{"message": "MountVolume failed."}])) == [Delete(1, keep_ended=True)]
    story.sees(Deleted(0, 1))
    story.shows(an_object(1, "node-1"), gone=True)
    story.shows(runs(0), gone=True)
    story.sees(LogEnded(0, name_of(0)))
    assert story.end["who"] == "the pod on node-1 did not start: MountVolume failed"


def test_a_single_pod_on_a_node_that_does_not_answer_is_given_up_if_another_node_is_ready() -> None:
    story = running(1)
    (said,) = story.shows(ready(runs(0), False))
    assert said == Say(
        {"event": "note", "text": "node-0 does not answer (NotReady); in 10 s the run starts again elsewhere."}
    )
    assert story.passes(SILENCE - 1) == []
    assert story.passes(1) == [ListNodes()]
    assert story.sees(NodesListed(story.now, ready=True)) == [Force((name_of(0),))]
    story.sees(Forced(story.now))
    assert story.end["spends"] is False
    assert story.state.lost_nodes == {"node-0"}


def test_a_node_that_answers_again_while_the_nodes_are_listed_keeps_its_pod() -> None:
    story = running(1)
    story.shows(ready(runs(0), False))
    assert story.passes(SILENCE) == [ListNodes()]
    story.shows(ready(runs(0), True))
    assert story.sees(NodesListed(story.now, ready=True)) == []
    assert story.state.due is None


def test_a_pod_that_is_lost_while_nobody_may_list_nodes_is_left_to_the_cluster() -> None:
    story = running(1)
    story.shows(ready(runs(0), False))
    story.passes(SILENCE)
    (said,) = story.sees(NodesListed(story.now, ready=False, allowed=False))
    assert isinstance(said, Say)
    assert story.passes(AGAIN) == [ListNodes()]
    assert story.sees(NodesListed(story.now, ready=False, allowed=False)) == [], "it is said once"
    story.now += AGAIN
    assert story.shows(deleting(ready(runs(0), False))) == [Force((name_of(0),))]


def test_pods_of_others_are_nobodys_business() -> None:
    story = running()
    before = story.state
    assert story.shows(terminated(an_object(7), 1)) == []
    assert story.state == before


def test_a_gang_whose_manager_died_before_its_agents_knew_of_each_other_costs_no_restart() -> None:
    story = Story(2)
    story.sees(Begun(0, adopted=True))
    for number in range(2):
        story.shows(terminated(an_object(number), 1, {"cause": "absent", "nodes": ["node-1"]}))
    story.sees(Synced(0))
    story.passes(1000)
    assert (story.end["cause"], story.end["spends"]) == ("absent", False)


def test_nothing_is_done_after_the_end() -> None:
    story = Story(1)
    story.sees(Begun(0, adopted=True, ran=True), Synced(0))
    assert story.end["reason"] == "The chief's pod is gone: somebody deleted it."
    assert story.sees(EndAsked(0, 0)) == []
    assert story.shows(runs(0)) == []
    assert story.passes(1000) == []
