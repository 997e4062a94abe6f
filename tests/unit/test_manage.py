"""What a run does when things happen to it, one rule a test."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pumasi.core.flows import Flow, Task
from pumasi.core.flows.together import Single
from pumasi.core.manage import (
    CONFIRM,
    FREE_RESTARTS,
    TELL_AGAIN,
    Abandon,
    Action,
    Begun,
    End,
    EndAsked,
    Ended,
    Event,
    Failing,
    Finish,
    Heard,
    Kill,
    Launch,
    Offered,
    Over,
    Phase,
    Place,
    Placed,
    Policy,
    Pull,
    Refused,
    Restarting,
    RoomChanged,
    RunState,
    Started,
    StopAsked,
    TaskState,
    Tick,
    TurnedAway,
    Waiting,
    Wake,
    begin,
    step,
)
from pumasi.core.outcome import Outcome, Verdict

DONE = Outcome(Verdict.DONE)
FAILED = Outcome(Verdict.FAILED, "Rank 2 on node-b exited with code 1.", rank=2, node="node-b", code=1)
LOST = Outcome(Verdict.LOST, "Rank 0 on node-a was killed for memory.", rank=0, node="node-a")
STOPPED = Outcome(Verdict.STOPPED, "Ended by SIGTERM.")
ROOM = {"node-a": 2, "node-b": 1}


class Actions(list[Action]):
    """Equal to others of the same kinds, where tuples alone would be equal to those of other kinds."""

    def __eq__(self, other: object) -> bool:
        kinds = [type(action) for action in other] if isinstance(other, list) else None
        return super().__eq__(other) and [type(action) for action in self] == kinds

    __hash__ = None


class Story:
    """A run to which one event after the other happens."""

    def __init__(self, policy: Policy | None = None, flow: Flow | None = None) -> None:
        self.flow = flow or Single()
        self.state: RunState = begin(policy or Policy())
        self.over: list[Over] = []
        self.pulls = 0

    def hears(self, *events: Event) -> Actions:
        """What it does about the last event, except for setting its alarm and for what it asks its flow."""
        actions: list[Action] = []
        for event in events:
            actions = self._steps(event)
        return Actions(action for action in actions if not isinstance(action, Wake | Pull | Over))

    def _steps(self, event: Event) -> list[Action]:
        """With what the flow's answers lead to."""
        self.state, actions = step(self.state, event)
        found = list(actions)
        for action in actions:
            if isinstance(action, Pull):
                self.pulls += 1
                found += self._steps(Offered(event.at, self.flow.next()))
            elif isinstance(action, Over):
                self.over.append(action)
                self.flow.ended(action.task, action.outcome)
                found += self._steps(Heard(event.at, action.task, action.attempt, self.flow.outcome()))
        return found

    def launched(self, at: float = 0, attempt: int = 0) -> Story:
        self.hears(Begun(at), Placed(at, "main", attempt, ROOM))
        return self

    def running(self, at: float = 0, attempt: int = 0) -> Story:
        self.launched(at, attempt).hears(Started(at, "main", attempt))
        return self


def finish(actions: list[Action]) -> Outcome:
    [last] = [action for action in actions if isinstance(action, Finish)]
    assert actions[-1] is last
    return last.outcome


def test_a_run_is_placed_launched_and_done() -> None:
    story = Story()
    assert story.state.summary == "queued"
    assert story.hears(Begun(0)) == [Place("main", 0)]
    assert story.state.summary == "queued"
    assert story.hears(Placed(1, "main", 0, ROOM)) == [Launch("main", 0, ROOM)]
    assert story.state.summary == "starting"
    assert story.hears(Started(2, "main", 0)) == []
    assert story.state.summary == "running"
    assert story.hears(Ended(3, "main", 0, DONE)) == [Finish(DONE)]
    assert story.state.summary == "done"


@pytest.mark.parametrize("outcome", [FAILED, LOST, STOPPED, Outcome(Verdict.TIMED_OUT, "Too long.")])
def test_without_restarts_the_outcome_of_the_gang_is_the_outcome_of_the_run(outcome: Outcome) -> None:
    assert Story().running().hears(Ended(3, "main", 0, outcome)) == [Finish(outcome)]


def test_a_gang_may_end_before_it_ever_said_that_it_was_whole() -> None:
    assert Story().launched().hears(Ended(1, "main", 0, DONE)) == [Finish(DONE)]


class TestRestarts:
    @pytest.mark.parametrize("outcome", [FAILED, LOST])
    def test_a_failed_or_lost_gang_is_planned_anew(self, outcome: Outcome) -> None:
        story = Story(Policy(restarts=1)).running()
        actions = story.hears(Ended(3, "main", 0, outcome))
        assert actions == [Restarting("main", 1, outcome.reason, spent=1), Place("main", 1)]
        assert story.state.summary == "queued"
        assert story.hears(Placed(4, "main", 1, ROOM)) == [Launch("main", 1, ROOM)]

    def test_restarts_are_used_up(self) -> None:
        story = Story(Policy(restarts=2))
        for attempt in range(2):
            story.running(attempt, attempt).hears(Ended(attempt, "main", attempt, FAILED))
        assert story.running(3, 2).hears(Ended(3, "main", 2, LOST)) == [Finish(LOST)]

    @pytest.mark.parametrize("outcome", [DONE, STOPPED, Outcome(Verdict.TIMED_OUT, "Too long.")])
    def test_what_was_done_stopped_or_timed_out_is_never_restarted(self, outcome: Outcome) -> None:
        story = Story(Policy(restarts=5)).running()
        assert story.hears(Ended(3, "main", 0, outcome, spends_restart=False)) == [Finish(outcome)]

    def test_a_gang_is_not_restarted_while_something_of_it_is_left(self) -> None:
        story = Story(Policy(restarts=1, grace=15)).running()
        assert story.hears(Failing(3, "main", 0, FAILED)) == []
        assert story.state.summary == "ending"
        assert story.hears(Tick(3 + 15)) == []
        restarting = Restarting("main", 1, FAILED.reason, spent=1)
        assert story.hears(Ended(20, "main", 0, FAILED)) == [restarting, Place("main", 1)]

    def test_what_was_nobodys_failure_costs_no_restart_but_a_growing_pause(self) -> None:
        story = Story().running()
        assert story.hears(Ended(3, "main", 0, LOST, spends_restart=False)) == [Restarting("main", 1, LOST.reason)]
        assert story.state.wake == 3 + 1
        assert story.hears(Tick(4)) == [Place("main", 1)]
        story.running(5, 1).hears(Ended(6, "main", 1, LOST, spends_restart=False))
        assert story.state.wake == 6 + 2

    def test_what_was_nobodys_failure_does_not_go_on_for_ever(self) -> None:
        story = Story()
        for attempt in range(FREE_RESTARTS):
            story.running(attempt * 100, attempt)
            story.hears(Ended(attempt * 100, "main", attempt, LOST, spends_restart=False), Tick(attempt * 100 + 30))
        story.running(100 * FREE_RESTARTS, FREE_RESTARTS)
        assert story.hears(Ended(100 * FREE_RESTARTS, "main", FREE_RESTARTS, LOST, spends_restart=False)) == [
            Finish(LOST)
        ]

    def test_waiting_for_room_starts_over_with_the_new_attempt(self) -> None:
        story = Story(Policy(restarts=1))
        story.hears(Begun(0), Refused(0, "main", 0, "busy"), Tick(1))
        story.hears(Placed(1, "main", 0, ROOM), Ended(2, "main", 0, FAILED))
        assert story.hears(Refused(3, "main", 1, "busy")) == [Waiting("main", 1, "busy")]
        assert story.state.wake == 4


class TestRoom:
    def test_a_run_waits_for_room_and_asks_less_and_less_often(self) -> None:
        story, now, pauses = Story(), 0.0, []
        story.hears(Begun(0))
        for _ in range(8):
            story.hears(Refused(now, "main", 0, "2 of 3 slots are free"))
            assert story.state.wake is not None
            pauses.append(story.state.wake - now)
            now = story.state.wake
            assert story.hears(Tick(now)) == [Place("main", 0)]
        assert pauses == [1, 2, 4, 8, 10, 10, 10, 10]

    def test_it_tells_why_it_waits_once_a_reason(self) -> None:
        story = Story()
        assert story.hears(Begun(0), Refused(0, "main", 0, "busy")) == [Waiting("main", 0, "busy")]
        assert story.hears(Tick(1), Refused(1, "main", 0, "busy")) == []
        assert story.hears(Tick(3), Refused(3, "main", 0, "busier")) == [Waiting("main", 0, "busier")]

    def test_who_waits_looks_again_as_soon_as_something_has_changed(self) -> None:
        story = Story()
        story.hears(Begun(0), Refused(0, "main", 0, "busy"))
        assert story.hears(RoomChanged(0.2)) == [Place("main", 0)]

    def test_what_changes_during_a_look_is_worth_another_one(self) -> None:
        story = Story()
        assert story.hears(Begun(0), RoomChanged(0.1)) == []
        assert story.hears(Refused(0.2, "main", 0, "busy")) == [Waiting("main", 0, "busy"), Place("main", 0)]
        assert story.hears(Refused(0.3, "main", 0, "busy")) == []

    def test_who_was_turned_away_keeps_its_pause_whatever_changes(self) -> None:
        story = Story().launched()
        story.hears(TurnedAway(5, "main", 0, "No place.", patience=1.5))
        assert story.hears(RoomChanged(5.1)) == []
        assert story.state.wake == 6.5

    def test_that_a_run_has_waited_for_long_does_not_stretch_its_first_pause(self) -> None:
        story = Story()
        story.hears(Begun(0))
        for at in range(8):
            story.hears(Refused(at, "main", 0, "busy"), RoomChanged(at))
        story.hears(Placed(9, "main", 0, ROOM), TurnedAway(10, "main", 0, "No place."))
        assert story.state.wake == 11

    def test_a_change_means_nothing_to_what_runs_or_starts_again_later(self) -> None:
        story = Story().running()
        assert story.hears(RoomChanged(1)) == []
        story.hears(Ended(2, "main", 0, LOST, spends_restart=False))
        assert story.hears(RoomChanged(2.1)) == []

    def test_who_holds_what_it_needs_is_told_again_when_that_changes(self) -> None:
        """Not when only the minutes have passed, and not too often."""
        story = Story()

        def told(at: float, waiting: str, gist: str) -> list[str]:
            refused = Refused(at, "main", 0, "busy", waiting=waiting, gist=gist)
            return [each.reason for each in story.hears(RoomChanged(at), refused) if isinstance(each, Waiting)]

        story.hears(Begun(0))
        assert told(0, "a, 1 min", "a") == ["a, 1 min"]
        assert told(TELL_AGAIN, "a, 2 min", "a") == []
        assert told(TELL_AGAIN, "b, 1 s", "b") == ["b, 1 s"]
        assert told(TELL_AGAIN + 1, "c, 1 s", "c") == []
        assert told(2 * TELL_AGAIN, "c, 5 s", "c") == ["c, 5 s"]

    def test_who_lost_a_race_learns_at_once_who_holds_what_it_needs(self) -> None:
        story = Story()
        story.hears(Begun(0), Refused(0, "main", 0, "Another run was faster."))
        holder = Refused(0.1, "main", 0, "busy", waiting="a, 1 s", gist="a")
        assert [each.reason for each in story.hears(RoomChanged(0.1), holder) if isinstance(each, Waiting)] == [
            "a, 1 s"
        ]

    def test_what_can_never_fit_fails_at_once_even_with_restarts(self) -> None:
        story = Story(Policy(restarts=3))
        refused = Refused(0, "main", 0, "9 slots of 3.", hopeless=True, hint="Ask for 3.")
        assert story.hears(Begun(0), refused) == [Finish(Outcome(Verdict.FAILED, "9 slots of 3.", "Ask for 3."))]

    def test_who_does_not_want_to_wait_fails_at_once(self) -> None:
        outcome = finish(Story(Policy(wait=False)).hears(Begun(0), Refused(0, "main", 0, "busy")))
        assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "busy")

    def test_a_pool_that_never_answers_ends_in_lost(self) -> None:
        story = Story(Policy(start_timeout=60))
        assert story.hears(Begun(0), Tick(59)) == []
        outcome = finish(story.hears(Tick(60)))
        assert outcome.verdict is Verdict.LOST
        assert "60 s" in outcome.reason


class TestTimeout:
    def test_it_ends_what_runs_with_grace_then_by_force(self) -> None:
        story = Story(Policy(timeout=100, grace=15)).running(at=10)
        assert story.state.wake == 110
        assert story.hears(Tick(109)) == []
        [end] = story.hears(Tick(110))
        assert isinstance(end, End)
        assert (end.grace, "100 s" in end.why) == (15, True)
        [kill] = story.hears(Tick(125))
        assert isinstance(kill, Kill)
        outcome = finish(story.hears(Ended(126, "main", 0, LOST)))
        assert outcome.verdict is Verdict.TIMED_OUT
        assert "100 s" in outcome.reason

    def test_it_counts_over_all_attempts(self) -> None:
        story = Story(Policy(timeout=100, restarts=9)).running()
        story.hears(Ended(60, "main", 0, FAILED), Placed(61, "main", 1, ROOM), Started(62, "main", 1))
        assert isinstance(story.hears(Tick(100))[0], End)
        assert finish(story.hears(Ended(101, "main", 1, FAILED))).verdict is Verdict.TIMED_OUT

    def test_it_counts_while_the_run_waits_for_room(self) -> None:
        story = Story(Policy(timeout=100))
        story.hears(Begun(0), Refused(99, "main", 0, "busy"))
        assert finish(story.hears(Tick(100))).verdict is Verdict.TIMED_OUT

    def test_room_that_is_found_too_late_is_not_used(self) -> None:
        story = Story(Policy(timeout=100))
        assert finish(story.hears(Begun(0), Placed(100, "main", 0, ROOM))).verdict is Verdict.TIMED_OUT

    def test_a_failure_after_which_there_is_no_time_to_restart_is_a_timeout(self) -> None:
        story = Story(Policy(timeout=100, restarts=1)).running()
        assert finish(story.hears(Ended(100, "main", 0, FAILED))).verdict is Verdict.TIMED_OUT

    def test_a_gang_that_was_done_just_in_time_is_done(self) -> None:
        story = Story(Policy(timeout=100)).running()
        assert story.hears(Tick(100), Ended(101, "main", 0, DONE)) == [Finish(DONE)]


class TestStartTimeout:
    def test_a_gang_that_is_never_whole_is_ended_and_lost(self) -> None:
        story = Story(Policy(start_timeout=600)).launched()
        assert story.state.wake == 600
        [end] = story.hears(Tick(600))
        assert isinstance(end, End)
        outcome = finish(story.hears(Ended(601, "main", 0, STOPPED)))
        assert outcome.verdict is Verdict.LOST
        assert "not whole within 600 s" in outcome.reason

    def test_and_is_restarted_if_restarts_are_left(self) -> None:
        story = Story(Policy(start_timeout=600, restarts=1)).launched()
        last = story.hears(Tick(600), Ended(601, "main", 0, STOPPED))[-1]
        assert Actions([last]) == [Place("main", 1)]

    def test_a_gang_that_is_whole_in_time_has_no_deadline_any_more(self) -> None:
        story = Story().running()
        assert story.state.wake is None
        assert story.hears(Tick(10**9)) == []


class TestStop:
    def test_it_may_have_another_reason_than_a_wish_and_then_that_is_told(self) -> None:
        gone = Outcome(Verdict.LOST, "Somebody deleted it.")
        story = Story(Policy(restarts=3)).running()
        assert story.hears(StopAsked(5, outcome=gone)) == [End("main", 0, 15, "Somebody deleted it.")]
        assert finish(story.hears(StopAsked(6), Ended(7, "main", 0, FAILED))) == gone

    def test_who_asked_for_it_is_told_though_the_gang_knows_only_that_it_was_stopped(self) -> None:
        by_kim = Outcome(Verdict.STOPPED, "Stopped by kim from laptop.")
        story = Story().running()
        story.hears(StopAsked(5, outcome=by_kim))
        assert finish(story.hears(Ended(7, "main", 0, Outcome(Verdict.STOPPED, "Stopped on request.")))) == by_kim

    def test_with_grace_then_by_force(self) -> None:
        story = Story(Policy(grace=15)).running()
        assert story.hears(StopAsked(5)) == [End("main", 0, 15, "Stopped on request.")]
        assert story.state.summary == "ending"
        assert story.state.wake == 20
        assert [type(action) for action in story.hears(Tick(20))] == [Kill]
        assert finish(story.hears(Ended(21, "main", 0, LOST))).verdict is Verdict.STOPPED
        assert story.state.summary == "stopped"

    def test_asked_twice_it_kills_at_once(self) -> None:
        story = Story().running()
        assert [type(action) for action in story.hears(StopAsked(5), StopAsked(6))] == [Kill]
        assert story.hears(StopAsked(7)) == []

    def test_with_force_it_kills_at_once(self) -> None:
        story = Story().running()
        assert [type(action) for action in story.hears(StopAsked(5, force=True))] == [Kill]

    def test_without_grace_it_kills_at_once(self) -> None:
        story = Story(Policy(grace=0)).running()
        assert [type(action) for action in story.hears(StopAsked(5))] == [Kill]

    def test_what_nobody_confirms_is_abandoned_and_told(self) -> None:
        story = Story(Policy(restarts=5)).running()
        story.hears(StopAsked(5, force=True))
        abandon, last = story.hears(Tick(5 + CONFIRM))
        assert Actions([abandon]) == [Abandon("main", 0)]
        assert isinstance(last, Finish)
        assert last.outcome.verdict is Verdict.STOPPED
        assert "may still run" in last.outcome.reason
        assert last.outcome.hint

    def test_before_the_run_began_nothing_ever_starts(self) -> None:
        story = Story()
        assert finish(story.hears(StopAsked(0))).verdict is Verdict.STOPPED
        assert story.hears(Begun(1)) == []

    def test_while_room_is_looked_for_nothing_is_launched(self) -> None:
        story = Story()
        story.hears(Begun(0))
        assert finish(story.hears(StopAsked(1))).verdict is Verdict.STOPPED
        assert story.hears(Placed(2, "main", 0, ROOM)) == []

    def test_while_it_waits_for_room_it_is_over_at_once(self) -> None:
        story = Story()
        story.hears(Begun(0), Refused(0, "main", 0, "busy"))
        assert finish(story.hears(StopAsked(0.5))).verdict is Verdict.STOPPED
        assert story.hears(Tick(1)) == []

    def test_while_it_starts_it_is_ended(self) -> None:
        story = Story().launched()
        assert [type(action) for action in story.hears(StopAsked(1))] == [End]
        assert story.hears(Started(2, "main", 0)) == []
        assert finish(story.hears(Ended(3, "main", 0, STOPPED))).verdict is Verdict.STOPPED

    def test_a_gang_that_was_done_before_the_stop_reached_it_is_done(self) -> None:
        assert Story().running().hears(StopAsked(5), Ended(6, "main", 0, DONE)) == [Finish(DONE)]

    def test_a_stopped_run_is_not_restarted(self) -> None:
        story = Story(Policy(restarts=9)).running()
        assert finish(story.hears(StopAsked(5), Ended(6, "main", 0, FAILED))).verdict is Verdict.STOPPED

    def test_a_failure_that_came_first_stays_the_outcome(self) -> None:
        story = Story().running()
        assert story.hears(Failing(4, "main", 0, FAILED), StopAsked(5)) == []
        assert story.hears(Ended(6, "main", 0, STOPPED)) == [Finish(FAILED)]

    def test_a_failure_that_would_have_been_restarted_ends_as_stopped(self) -> None:
        story = Story(Policy(restarts=1)).running()
        story.hears(Failing(4, "main", 0, FAILED), StopAsked(5))
        assert finish(story.hears(Ended(6, "main", 0, FAILED))).verdict is Verdict.STOPPED

    def test_during_the_grace_of_a_timeout_one_stop_changes_nothing_and_a_second_kills(self) -> None:
        story = Story(Policy(timeout=100)).running()
        assert story.hears(Tick(100), StopAsked(101)) == []
        assert [type(action) for action in story.hears(StopAsked(102))] == [Kill]
        assert finish(story.hears(Ended(103, "main", 0, STOPPED))).verdict is Verdict.TIMED_OUT

    def test_the_timeout_during_the_grace_of_a_stop_changes_nothing(self) -> None:
        story = Story(Policy(timeout=100, grace=15)).running()
        story.hears(StopAsked(99))
        assert story.state.wake == 114
        assert story.hears(Tick(100)) == []
        assert finish(story.hears(Ended(101, "main", 0, STOPPED))).verdict is Verdict.STOPPED


class TestFailing:
    def test_who_failed_first_is_the_outcome_whatever_the_echoes_say(self) -> None:
        story = Story().running()
        assert story.hears(Failing(4, "main", 0, FAILED), Failing(4, "main", 0, LOST)) == []
        assert story.hears(Ended(5, "main", 0, LOST)) == [Finish(FAILED)]

    def test_the_same_failure_told_in_full_at_the_end_is_the_outcome(self) -> None:
        full = Outcome(Verdict.FAILED, FAILED.reason, rank=2, node="node-b", code=1, tail=("ValueError: nan",))
        assert Story().running().hears(Failing(4, "main", 0, FAILED), Ended(5, "main", 0, full)) == [Finish(full)]

    def test_a_gang_that_does_not_come_to_its_end_is_killed_then_abandoned_and_never_restarted(self) -> None:
        story = Story(Policy(restarts=9, grace=15)).running()
        story.hears(Failing(0, "main", 0, FAILED))
        assert story.state.wake == 15 + CONFIRM
        assert [type(action) for action in story.hears(Tick(15 + CONFIRM))] == [Kill]
        abandon, last = story.hears(Tick(15 + 2 * CONFIRM))
        assert Actions([abandon]) == [Abandon("main", 0)]
        assert isinstance(last, Finish)
        assert last.outcome.verdict is Verdict.FAILED
        assert last.outcome.reason.startswith(FAILED.reason)

    def test_a_gang_whose_deciding_ranks_are_done_is_done_only_when_all_of_it_has_ended(self) -> None:
        story = Story(Policy(grace=15)).running()
        story.hears(Failing(0, "main", 0, DONE), Tick(15 + CONFIRM))
        assert finish(story.hears(Tick(15 + 2 * CONFIRM))).verdict is Verdict.LOST


class TestStrayEvents:
    def test_old_attempts_and_unknown_tasks_change_nothing(self) -> None:
        story = Story(Policy(restarts=1)).running()
        story.hears(Ended(1, "main", 0, FAILED))
        before = story.state
        for stray in (
            Ended(2, "main", 0, DONE),
            Placed(2, "main", 0, ROOM),
            Placed(2, "main", 2, ROOM),
            Placed(2, "other", 1, ROOM),
            Started(2, "main", 1),
            Ended(2, "main", 1, DONE),
            Begun(2),
        ):
            assert step(before, stray) == (before, ())

    def test_what_was_never_launched_has_not_ended_not_even_as_time_runs_out(self) -> None:
        story = Story(Policy(timeout=5))
        assert finish(story.hears(Begun(0), Ended(9, "main", 0, DONE))).verdict is Verdict.TIMED_OUT

    def test_events_told_twice_are_acted_on_once(self) -> None:
        story = Story()
        assert story.hears(Begun(0), Begun(0)) == []
        assert story.hears(Placed(1, "main", 0, ROOM), Placed(1, "main", 0, {"node-c": 3})) == []
        assert story.hears(Started(2, "main", 0), Placed(2, "main", 0, ROOM)) == []
        assert story.hears(Refused(2, "main", 0, "9 slots of 3.", hopeless=True)) == []
        assert story.hears(Ended(3, "main", 0, DONE), Ended(3, "main", 0, FAILED)) == []
        assert story.state.outcome == DONE

    def test_room_that_nobody_asked_for_is_not_used(self) -> None:
        story = Story()
        story.hears(Begun(0), Refused(0, "main", 0, "busy"))
        assert story.hears(Placed(0.5, "main", 0, ROOM)) == []
        assert story.hears(Tick(1)) == [Place("main", 0)]

    def test_nothing_is_done_before_the_run_has_begun(self) -> None:
        story = Story()
        assert story.hears(Tick(0)) == []
        assert story.hears(Placed(0, "main", 0, ROOM)) == []

    def test_a_tick_that_comes_early_sets_the_alarm_again(self) -> None:
        story = Story(Policy(start_timeout=600)).launched()
        _, actions = step(story.state, Tick(599.9))
        assert actions == (Wake(600),)


class TestTurnedAway:
    """The pool said that there was room, and then there was none: somebody else was faster."""

    def test_it_waits_its_turn_under_a_new_number(self) -> None:
        story = Story().launched()
        assert story.hears(TurnedAway(5, "main", 0, "No place.")) == [Waiting("main", 1, "No place.")]
        assert story.state.summary == "queued"
        assert Place("main", 1) in story.hears(Tick(6))

    def test_two_that_lost_the_race_ask_again_at_different_times(self) -> None:
        story = Story().launched()
        story.hears(TurnedAway(5, "main", 0, "No place.", patience=0.5))
        assert story.state.wake == 5.5

    def test_it_costs_no_restart(self) -> None:
        story = Story(Policy(restarts=1)).launched()
        story.hears(TurnedAway(5, "main", 0, "No place."), Tick(6))
        story.hears(Placed(6, "main", 1, ROOM), Started(7, "main", 1))
        assert Restarting("main", 2, FAILED.reason, spent=1) in story.hears(Ended(8, "main", 1, FAILED))

    def test_what_will_never_fit_is_the_end(self) -> None:
        story = Story().launched()
        assert finish(story.hears(TurnedAway(5, "main", 0, "No place.", hopeless=True))).verdict is Verdict.FAILED

    def test_without_waiting_it_is_the_end(self) -> None:
        story = Story(Policy(wait=False)).launched()
        assert finish(story.hears(TurnedAway(5, "main", 0, "No place."))).reason == "No place."

    def test_it_means_nothing_to_a_gang_that_runs(self) -> None:
        assert Story().running().hears(TurnedAway(5, "main", 0, "No place.")) == []

    def test_after_a_stop_it_is_the_stop_that_counts(self) -> None:
        story = Story().launched()
        story.hears(StopAsked(1))
        assert finish(story.hears(TurnedAway(2, "main", 0, "No place."))).verdict is Verdict.STOPPED


class TestAdoption:
    def test_a_new_manager_goes_on_with_the_gang_that_it_finds(self) -> None:
        story = Story()
        story.flow.next()
        found = [TaskState("main", 2, Phase.RUNNING, restarts=2)]
        story.state = begin(Policy(restarts=3, timeout=100), found)
        assert story.hears(Begun(0)) == []
        assert (story.state.wake, story.state.summary) == (100, "running")
        assert Place("main", 3) in story.hears(Ended(1, "main", 2, FAILED))
        story.hears(Placed(1, "main", 3, ROOM))
        assert story.hears(Ended(2, "main", 3, FAILED)) == [Finish(FAILED)]

    def test_what_is_new_in_an_old_run_has_all_its_time_and_the_run_only_what_is_left(self) -> None:
        story = Story(Policy(timeout=1000, start_timeout=60))
        assert story.hears(Begun(0, since=-900)) == [Place("main", 0)]
        assert story.state.wake == 60
        assert story.hears(Placed(59, "main", 0, ROOM)) == [Launch("main", 0, ROOM)]
        story.hears(Started(60, "main", 0))
        why = "The run was not done within its timeout of 1000 s."
        assert story.hears(Tick(100)) == [End("main", 0, 15.0, why)]

    def test_a_run_whose_flow_had_decided_already_is_over(self) -> None:
        story = Story()
        story.state = begin(Policy(), decided=FAILED)
        assert story.hears(Begun(0)) == [Finish(FAILED)]


class Scripted(Flow):
    """Tasks that are known beforehand, in groups that wait for each other; the first bad outcome is the run's."""

    def __init__(self, *groups: tuple[Task, ...]) -> None:
        self.groups = [list(group) for group in groups]
        self.open = {task.name for group in groups for task in group}
        self.waits: set[str] = set()
        self.given = 0
        self.bad: Outcome | None = None

    def next(self) -> Task | None:
        while self.groups and not self.groups[0] and not self.waits:
            self.groups.pop(0)
        if not self.groups or not self.groups[0]:
            return None
        task = self.groups[0].pop(0)
        self.waits.add(task.name)
        self.given += 1
        return task

    def ended(self, name: str, outcome: Outcome) -> None:
        self.waits.discard(name)
        self.open.discard(name)
        self.bad = self.bad or (None if outcome.verdict is Verdict.DONE else outcome)

    def outcome(self) -> Outcome | None:
        return self.bad or (None if self.open else DONE)


def Chain() -> Flow:  # noqa: N802
    """Two tasks at once, then one more."""
    return Scripted((Task("left"), Task("right")), (Task("last"),))


class Nothing(Flow):
    def next(self) -> Task | None:
        return None

    def ended(self, name: str, outcome: Outcome) -> None: ...

    def outcome(self) -> Outcome | None:
        return None


class TestFlows:
    def test_tasks_run_in_the_order_of_the_flow(self) -> None:
        story = Story(flow=Chain())
        assert story.hears(Begun(0)) == [Place("left", 0), Place("right", 0)]
        story.hears(Placed(1, "left", 0, ROOM), Placed(1, "right", 0, ROOM))
        assert story.hears(Ended(2, "right", 0, DONE)) == []
        assert story.hears(Ended(3, "left", 0, DONE)) == [Place("last", 0)]
        assert story.hears(Placed(4, "last", 0, ROOM), Ended(5, "last", 0, DONE)) == [Finish(DONE)]

    def test_who_does_not_want_to_wait_waits_for_tasks_of_the_same_run(self) -> None:
        story = Story(Policy(wait=False), Chain())
        story.hears(Begun(0), Placed(1, "left", 0, ROOM))
        assert story.hears(Refused(1, "right", 0, "busy")) == [Waiting("right", 0, "busy")]
        story.hears(Ended(2, "left", 0, DONE), Tick(3))
        assert finish(story.hears(Refused(4, "right", 0, "busy"))).reason == "busy"

    def test_a_decided_run_ends_when_everything_that_was_started_has_ended(self) -> None:
        story = Story(flow=Chain())
        story.hears(Begun(0), Placed(1, "left", 0, ROOM), Placed(1, "right", 0, ROOM))
        assert story.hears(Ended(2, "left", 0, FAILED)) == []
        assert story.hears(Ended(3, "right", 0, DONE)) == [Finish(FAILED)]

    def test_what_waits_for_room_when_the_flow_decides_is_not_started(self) -> None:
        story = Story(flow=Chain())
        story.hears(Begun(0), Placed(1, "left", 0, ROOM), Refused(1, "right", 0, "busy"))
        assert story.hears(Ended(1.5, "left", 0, FAILED)) == [Finish(FAILED)]
        assert [(over.task, over.outcome.verdict) for over in story.over] == [
            ("left", Verdict.FAILED),
            ("right", Verdict.STOPPED),
        ]

    def test_a_stop_starts_nothing_new(self) -> None:
        story = Story(flow=Chain())
        story.hears(Begun(0), Placed(1, "left", 0, ROOM), Ended(2, "left", 0, DONE), Placed(3, "right", 0, ROOM))
        story.hears(StopAsked(4))
        assert finish(story.hears(Ended(5, "right", 0, DONE))).verdict is Verdict.STOPPED

    def test_what_came_first_of_timeout_and_stop_is_the_outcome(self) -> None:
        story = Story(Policy(timeout=100), Chain())
        story.hears(Begun(0), Placed(1, "left", 0, ROOM), Ended(2, "left", 0, DONE), Placed(3, "right", 0, ROOM))
        story.hears(Tick(100), StopAsked(101))
        assert finish(story.hears(Ended(102, "right", 0, DONE))).verdict is Verdict.TIMED_OUT

    def test_a_flow_that_knows_no_way_on_does_not_hang_the_run(self) -> None:
        assert finish(Story(flow=Nothing()).hears(Begun(0))).verdict is Verdict.FAILED


def many(count: int) -> Scripted:
    return Scripted(tuple(Task(f"t-{number}") for number in range(count)))


class TestPull:
    def test_no_more_tasks_are_known_than_may_wait_for_room(self) -> None:
        flow = many(20_000)
        story = Story(Policy(most_waiting=3), flow)
        assert [action for action in story.hears(Begun(0)) if isinstance(action, Place)] == [
            Place("t-0", 0),
            Place("t-1", 0),
            Place("t-2", 0),
        ]
        assert (flow.given, len(story.state.tasks)) == (3, 3)

    def test_one_that_has_found_room_makes_place_for_one_more(self) -> None:
        story = Story(Policy(most_waiting=2), many(5))
        story.hears(Begun(0))
        assert story.hears(Placed(1, "t-0", 0, ROOM)) == [Launch("t-0", 0, ROOM), Place("t-2", 0)]
        assert story.hears(Refused(1, "t-1", 0, "busy")) == [Waiting("t-1", 0, "busy")]

    def test_a_flow_that_has_nothing_is_asked_again_when_a_task_has_ended_and_not_before(self) -> None:
        story = Story(flow=Chain())
        story.hears(Begun(0), Placed(1, "left", 0, ROOM))
        asked = story.pulls
        story.hears(Placed(1, "right", 0, ROOM), Tick(2), Started(3, "left", 0), RoomChanged(4))
        assert story.pulls == asked
        story.hears(Ended(5, "left", 0, DONE))
        assert story.pulls == asked + 1

    def test_a_task_that_nobody_asked_for_is_not_taken(self) -> None:
        story = Story(flow=Chain())
        story.hears(Begun(0))
        assert step(story.state, Offered(1, Task("other"))) == (story.state, ())

    def test_a_flow_that_gives_the_same_name_again_and_again_does_not_hang_the_manager(self) -> None:
        story = Story(flow=Scripted((Task("a"), Task("a"), Task("a"))))
        assert story.hears(Begun(0)) == [Place("a", 0)]
        assert story.pulls == 2

    def test_a_task_waits_for_those_that_it_needs(self) -> None:
        flow = Scripted((Task("first"), Task("second", needs=("first",)), Task("third", needs=("gone", "first"))))
        story = Story(flow=flow)
        assert story.hears(Begun(0)) == [Place("first", 0)]
        story.hears(Placed(1, "first", 0, ROOM), Tick(50))
        assert story.hears(Ended(60, "first", 0, DONE)) == [Place("second", 0), Place("third", 0)]

    def test_a_stop_ends_what_waits_for_another_task_too(self) -> None:
        story = Story(flow=Scripted((Task("first"), Task("second", needs=("first",)))))
        story.hears(Begun(0), Placed(1, "first", 0, ROOM), StopAsked(2))
        assert finish(story.hears(Ended(3, "first", 0, STOPPED))).verdict is Verdict.STOPPED
        assert {action.task for action in story.over} == {"first", "second"}


class TestTasksOfAFlow:
    def test_a_task_may_start_again_more_often_than_the_user_asks_for(self) -> None:
        story = Story(flow=Scripted((Task("main", restarts=1),))).running()
        assert Restarting("main", 1, FAILED.reason, spent=1) in story.hears(Ended(3, "main", 0, FAILED))
        assert story.running(4, 1).hears(Ended(5, "main", 1, FAILED)) == [Finish(FAILED)]

    def test_a_task_starts_again_only_after_what_it_names(self) -> None:
        task = Task("main", restarts=2, tries_again=frozenset((Verdict.LOST,)))
        story = Story(flow=Scripted((task,))).running()
        assert Restarting("main", 1, LOST.reason, spent=1) in story.hears(Ended(3, "main", 0, LOST))
        assert story.running(4, 1).hears(Ended(5, "main", 1, FAILED)) == [Finish(FAILED)]


class TestEarlyEnd:
    def test_a_task_that_its_flow_ends_early_counts_as_stopped_and_is_not_restarted(self) -> None:
        story = Story(Policy(restarts=5, grace=15)).running()
        assert story.hears(EndAsked(5, "main", 0, "Others are better.")) == [End("main", 0, 15, "Others are better.")]
        measured = Outcome(Verdict.FAILED, "Ended by SIGTERM.", metrics={"loss": 3.0})
        outcome = finish(story.hears(Ended(6, "main", 0, measured)))
        assert outcome == Outcome(Verdict.STOPPED, "Others are better.", metrics={"loss": 3.0})

    def test_the_others_go_on(self) -> None:
        story = Story(flow=Scripted((Task("left"), Task("right"))))
        story.hears(Begun(0), Placed(1, "left", 0, ROOM), Placed(1, "right", 0, ROOM))
        story.hears(EndAsked(2, "left", 0, "Enough."))
        assert story.hears(Ended(3, "right", 0, DONE)) == []
        assert story.hears(Ended(4, "left", 0, STOPPED))
        assert [(each.task, each.outcome.verdict) for each in story.over] == [
            ("right", Verdict.DONE),
            ("left", Verdict.STOPPED),
        ]

    def test_one_that_was_done_before_it_heard_is_done(self) -> None:
        story = Story().running()
        assert story.hears(EndAsked(5, "main", 0, "Enough."), Ended(6, "main", 0, DONE)) == [Finish(DONE)]

    def test_one_that_still_waits_never_starts(self) -> None:
        story = Story()
        story.hears(Begun(0))
        assert finish(story.hears(EndAsked(1, "main", 0, "Enough."))).verdict is Verdict.STOPPED

    def test_asked_twice_or_for_an_old_attempt_it_changes_nothing(self) -> None:
        story = Story(Policy(restarts=1)).running()
        story.hears(EndAsked(5, "main", 0, "Enough."))
        assert story.hears(EndAsked(6, "main", 0, "Enough.")) == []
        assert story.hears(EndAsked(6, "main", 1, "Enough.")) == []


class Counting(dict[str, TaskState]):
    """Live tasks that count how often one of them is looked at."""

    looks = 0

    def values(self) -> Any:
        Counting.looks += len(self)
        return super().values()

    def items(self) -> Any:
        Counting.looks += len(self)
        return super().items()


class TestCost:
    def test_what_has_ended_is_not_in_the_state_and_costs_nothing(self) -> None:
        """The live state, and how often its tasks are looked at, after 20 ends and after 2,000."""
        story = Story(Policy(most_waiting=2), many(2_100))
        story.hears(Begun(0))
        sizes, looks = [], []
        for number in range(2_010):
            Counting.looks = 0
            story.state = story.state._replace(tasks=Counting(story.state.tasks))
            story.hears(Placed(number, f"t-{number}", 0, ROOM))
            story.state = story.state._replace(tasks=Counting(story.state.tasks))
            story.hears(Ended(number, f"t-{number}", 0, DONE))
            looks.append(Counting.looks)
            sizes.append(len(pickle.dumps(story.state)))
        assert looks[20:30] == looks[2_000:2_010]
        assert max(sizes[2_000:]) < 1.05 * max(sizes[:30])
