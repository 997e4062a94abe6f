"""Whatever happens, in whatever order: what must hold for every run.

A simulated pool answers late, twice, out of order or not at all, as a string of bytes tells it; when the bytes are used
up it becomes a good pool, so that every story has an end. A witness keeps its own books, from events and actions alone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from pumasi.core.flows import Flow, Task
from pumasi.core.flows.together import Single
from pumasi.core.manage import (
    CONFIRM,
    FREE_RESTARTS,
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
    TaskAction,
    TaskEvent,
    Tick,
    TurnedAway,
    Waiting,
    Wake,
    begin,
    step,
)
from pumasi.core.outcome import Outcome, Verdict

_E = TypeVar("_E")
Key = tuple[str, int]

DONE, FAILED, LOST, TIMED_OUT, STOPPED = (
    Outcome(verdict, f"The gang says: {verdict.value}.")
    for verdict in (Verdict.DONE, Verdict.FAILED, Verdict.LOST, Verdict.TIMED_OUT, Verdict.STOPPED)
)


class Fan(Flow):
    """Some tasks, then one that needs them all; the first bad outcome is the run's. Some end early, if that is asked
    for."""

    def __init__(self, width: int) -> None:
        self.names = [f"part-{number}" for number in range(width)]
        self.left = set(self.names)
        self.result: Outcome | None = None
        self.is_last = False

    def next(self) -> Task | None:
        if self.names:
            return Task(self.names.pop(0))
        if self.left or self.is_last:
            return None
        self.is_last = True
        return Task("last", needs=("part-0",))

    def ended(self, name: str, outcome: Outcome) -> None:
        self.left.discard(name)
        if outcome.verdict is not Verdict.DONE or name == "last":
            self.result = self.result or outcome

    def outcome(self) -> Outcome | None:
        return self.result


class Gone(NamedTuple):
    """Not told to the manager: the moment in which the last process of a gang really ends."""

    key: Key
    outcome: Outcome


class Pool:
    """Where gangs really live and die, and from where news of it comes as it likes."""

    def __init__(self, whims: bytes) -> None:
        self.whims = iter(whims)
        self.order = count()
        self.due: list[tuple[float, int, Event | Gone]] = []
        self.alive: set[Key] = set()
        self.told: list[TaskEvent] = []
        self.alarm: float | None = None

    def whim(self, *choices: object) -> int:
        """Which of the choices; the first is the good one."""
        return next(self.whims, 0) % len(choices)

    def after(self, *delays: float) -> float:
        return delays[self.whim(*delays)]

    def send(self, at: float, event: Event | Gone) -> None:
        heapq.heappush(self.due, (at, next(self.order), event))

    def tell(self, now: float, event: Event) -> None:
        """Once, late, twice or never."""
        for delay in ((0.0,), (0.1,), (0.5,), (25.0,), (0.0, 0.0), (1.0, 700.0), (2.0,), ())[self.whim(*range(8))]:
            self.send(now + delay, event._replace(at=now + delay))

    def obey(self, now: float, action: Action) -> None:
        match action:
            case Place():
                self.place(now, action.task, action.attempt)
            case Launch():
                self.launch(now, action.task, action.attempt)
            case End():
                fate = self.whim("obeys", "slow", "deaf")
                self.end(now + (0.1, 14.0, 0.0)[fate], action, deaf=fate == 2)
            case Wake():
                self.alarm = action.at
            case Kill():
                fate = self.whim("dies", "slow", "out of reach")
                self.end(now + (0.1, 30.0, 0.0)[fate], action, deaf=fate == 2)
            case _:
                pass

    def place(self, now: float, task: str, attempt: int) -> None:
        placed = Placed(now, task, attempt, {"node-a": attempt + 1})
        refused = Refused(now, task, attempt, ("busy", "busier")[self.whim(1, 2)])
        hopeless = refused._replace(hopeless=True)
        answers: list[tuple[Event, ...]] = [*[(placed,)] * 8, (refused,), (refused,), (refused, placed), (hopeless,)]
        for answer in answers[self.whim(*answers)]:
            self.tell(now, answer)

    def launch(self, now: float, task: str, attempt: int) -> None:
        self.alive.add((task, attempt))
        self.tell(now + self.after(0, 1, 50), Started(now, task, attempt))
        if self.whim(False, False, False, True):
            self.tell(now + self.after(3, 0, 60), EndAsked(now, task, attempt, "Others are better."))
        outcomes = (DONE, FAILED, LOST, FAILED, LOST, STOPPED, TIMED_OUT, None)
        outcome = outcomes[self.whim(*outcomes)]
        if outcome is None:
            return
        end = now + self.after(2, 0, 40, 3000)
        if self.whim(False, True):
            self.tell(end, Failing(end, task, attempt, outcome))
            end += self.after(1, 20, 100)
        self.send(end, Gone((task, attempt), outcome))

    def end(self, at: float, action: TaskAction, deaf: bool) -> None:
        if not deaf:
            outcomes = (STOPPED, FAILED, LOST, DONE)
            self.send(at, Gone((action.task, action.attempt), outcomes[self.whim(*outcomes)]))

    def bury(self, now: float, gone: Gone) -> None:
        if gone.key in self.alive:
            self.alive.remove(gone.key)
            self.tell(now, Ended(now, *gone.key, gone.outcome, spends_restart=not self.whim(False, True)))


class Witness:
    """Keeps books and objects."""

    def __init__(self, policy: Policy, pool: Pool) -> None:
        self.policy = policy
        self.pool = pool
        self.heard: dict[tuple[type[Event], Key], Event] = {}
        self.acted: dict[tuple[type[Action], Key], float] = {}
        self.open_questions: Counter[Key] = Counter()
        self.restarts: Counter[str] = Counter()
        self.never_whole: set[Key] = set()
        self.waits: dict[Key, str] = {}
        self.stops: list[float] = []
        self.forced: float | None = None
        self.begun: float | None = None
        self.finished: Outcome | None = None
        self.finished_at = 0.0
        self.over: dict[str, Over] = {}

    def hears(self, event: Event) -> None:
        if isinstance(event, TaskEvent):
            self.heard.setdefault((type(event), (event.task, event.attempt)), event)
        if isinstance(event, Refused):
            self.open_questions[event.task, event.attempt] = 0
        if isinstance(event, Begun) and self.begun is None:
            self.begun = event.at
        if isinstance(event, StopAsked):
            self.stops.append(event.at)
            if self.forced is None and (event.force or len(self.stops) == 2):
                self.forced = event.at

    def did(self, kind: type[Action], key: Key) -> bool:
        return (kind, key) in self.acted

    def knows(self, kind: type[Event], key: Key) -> bool:
        return (kind, key) in self.heard

    def sees(self, now: float, action: Action) -> None:
        assert self.finished is None, "nothing is done after the end"
        if isinstance(action, TaskAction):
            key = action.task, action.attempt
            if not isinstance(action, Place | Waiting):
                assert not self.did(type(action), key), "no action twice"
            self.sees_over(action, key)
            self.sees_task(now, action, key)
            self.acted[type(action), key] = now
        elif isinstance(action, Finish):
            self.finished, self.finished_at = action.outcome, now
            self.sees_finish()

    def sees_task(self, now: float, action: TaskAction, key: Key) -> None:
        if isinstance(action, Place | Launch | Restarting):
            assert not self.must_close(now), "nothing new after a stop or the timeout"
        match action:
            case Place():
                assert not self.did(Launch, key)
                assert self.open_questions[key] == 0, "one question at a time"
                assert key[1] == 0 or self.did(Restarting, key)
                self.open_questions[key] += 1
            case Waiting():
                assert self.waits.get(key) != action.reason, "a reason is told once"
                self.waits[key] = action.reason
            case Restarting():
                self.sees_restart(key)
            case Launch():
                assert not any(task == key[0] for task, _ in self.pool.alive - {key}), "an older attempt may still run"
                placed = self.heard[Placed, key]
                assert isinstance(placed, Placed)
                assert action.placement == placed.placement
            case End() | Kill():
                assert self.did(Launch, key)
                assert not self.knows(Ended, key)
                if not self.knows(Started, key):
                    self.never_whole.add(key)
                in_time = self.forced is not None or self.policy.grace == 0
                if isinstance(action, Kill) and self.did(End, key) and not in_time:
                    assert now >= self.acted[End, key] + self.policy.grace, "grace is given"
            case Abandon():
                assert now >= self.acted[Kill, key] + CONFIRM, "the pool has time to answer"

    def sees_over(self, action: TaskAction, key: Key) -> None:
        assert action.task not in self.over, "what is over is over"
        if isinstance(action, Over):
            assert self.knows(Ended, key) or self.did(Abandon, key) or not self.did(Launch, key)
            self.over[action.task] = action

    def sees_restart(self, key: Key) -> None:
        self.restarts[key[0]] += 1
        old = key[0], key[1] - 1
        assert self.knows(Ended, old) or not self.did(Launch, old)
        assert not self.did(Abandon, old)
        free = sum(
            isinstance(event, Ended) and event.task == key[0] and not event.spends_restart
            for event in self.heard.values()
        )
        assert self.restarts[key[0]] - min(free, FREE_RESTARTS) <= self.policy.restarts

    def sees_finish(self) -> None:
        launched = {key for kind, key in self.acted if kind is Launch}
        abandoned = {key for key in launched if self.did(Abandon, key)}
        assert all(self.knows(Ended, key) for key in launched - abandoned)
        assert self.pool.alive <= abandoned, "nothing is left but what was given up"
        if abandoned:
            assert self.finished is not None
            assert "may still run" in self.finished.reason

    def must_close(self, now: float) -> bool:
        return bool(self.stops) or now >= self.time_limit

    @property
    def time_limit(self) -> float:
        return float("inf") if self.begun is None or self.policy.timeout is None else self.begun + self.policy.timeout

    def checks_deadlines(self, now: float) -> None:
        if self.finished is not None:
            return
        closed = min([self.time_limit, *self.stops])
        assert now < closed + self.policy.grace + 2 * CONFIRM, "a stop has an end"
        assert self.forced is None or now < max(self.forced, closed) + CONFIRM, "and with force a near one"
        for kind, key in self.acted:
            if kind is Launch and not any(self.knows(event, key) for event in (Started, Failing, Ended)):
                in_time = now < self.acted[Launch, key] + self.policy.start_timeout
                assert in_time or self.did(End, key) or self.did(Kill, key), "a gang is whole in time"

    def checks_verdict(self) -> None:
        """For a run of one task: what is said is what happened."""
        assert self.finished is not None
        verdict = self.finished.verdict
        key = "main", self.over["main"].attempt if self.over else 0
        told = {
            e.outcome.verdict for e in self.heard.values() if isinstance(e, Failing | Ended) and e.attempt == key[1]
        }
        ended = self.heard.get((Ended, key))
        was_done = isinstance(ended, Ended) and ended.outcome.verdict is Verdict.DONE
        assert (verdict is Verdict.DONE) == was_done
        if self.did(End, key):
            told &= {Verdict.DONE}  # What else a gang says after it was told to end is no news.
        possible = {
            Verdict.STOPPED: bool(self.stops) or self.knows(EndAsked, key),
            Verdict.TIMED_OUT: self.finished_at >= self.time_limit,
            Verdict.FAILED: self.knows(Refused, key) and not self.did(Launch, key),
            Verdict.LOST: not self.did(Launch, key) or key in self.never_whole or Verdict.DONE in told,
        }
        assert verdict in told or possible[verdict]


def made(kind: Callable[..., _E], *values: st.SearchStrategy[Any]) -> st.SearchStrategy[_E]:
    """Fields beyond these keep their defaults: `st.builds` would vary all those of a named tuple."""
    return st.tuples(*values).map(lambda drawn: kind(*drawn))


policies = st.builds(
    Policy,
    restarts=st.integers(0, 3),
    timeout=st.sampled_from([None, 5.0, 60.0, 1000.0]),
    start_timeout=st.sampled_from([10.0, 600.0]),
    grace=st.sampled_from([15.0, 0.0]),
    wait=st.sampled_from([True, True, False]),
    confirm=st.just(CONFIRM),
    most_waiting=st.sampled_from([1, 2, 16]),
)
flows = st.sampled_from([Single, Single, lambda: Fan(1), lambda: Fan(3)])
stops = st.lists(made(StopAsked, st.sampled_from([0.0, 1.5, 2.5, 30.0, 60.0, 400.0]), st.booleans()), max_size=2)


def live(flow: Flow, policy: Policy, pool: Pool, witness: Witness) -> RunState:
    """A run from its beginning to the last word about it, long after its end."""
    state, now = begin(policy), 0.0
    event: Event | Gone
    for _ in range(5000):
        if pool.alarm is not None and (not pool.due or pool.alarm <= pool.due[0][0]):
            early = pool.alarm - 0.01 if pool.whim("in time", "early") else pool.alarm
            event, pool.alarm = Tick(max(now, early)), None
        elif pool.due:
            event = heapq.heappop(pool.due)[2]
        elif state.outcome is not None:
            return state
        else:
            waiting = {task.phase for task in state.tasks.values() if not task.needs}
            assert waiting == {Phase.RUNNING}, "only a gang that runs may be without a deadline"
            event = StopAsked(now + 1)
        if isinstance(event, Gone):
            pool.bury(now, event)
            continue
        now = max(now, event.at)
        state = happen(flow, state, event, pool, witness)
        if pool.told and pool.whim("nothing", "nothing", "nothing", "an echo") == 3:
            state = happen(flow, state, pool.told[pool.whim(*pool.told)]._replace(at=now), pool, witness)
        witness.checks_deadlines(now)
    raise AssertionError("the run goes round in circles")


def happen(flow: Flow, state: RunState, event: Event, pool: Pool, witness: Witness) -> RunState:
    """With the flow's answers, which come at once."""
    if isinstance(event, TaskEvent) and not isinstance(event, Heard):
        pool.told.append(event)
    if witness.finished is None:
        witness.hears(event)
    state, actions = step(state, event)
    answers: list[Event] = []
    for action in actions:
        witness.sees(event.at, action)
        pool.obey(event.at, action)
        if isinstance(action, Pull):
            answers.append(Offered(event.at, flow.next()))
        elif isinstance(action, Over):
            flow.ended(action.task, action.outcome)
            answers.append(Heard(event.at, action.task, action.attempt, flow.outcome()))
    for answer in answers:
        state = happen(flow, state, answer, pool, witness)
    return state


@settings(max_examples=3000, database=None)
@given(policies, flows, stops, st.binary(min_size=120, max_size=120))
def test_every_run_comes_to_one_true_end_whatever_the_pool_does(
    policy: Policy, make_flow: Callable[[], Flow], asked: list[StopAsked], whims: bytes
) -> None:
    flow = make_flow()
    pool = Pool(whims)
    witness = Witness(policy, pool)
    pool.send(0.0, Begun(0.0))
    for stop in asked:
        pool.send(stop.at, stop)
    state = live(flow, policy, pool, witness)
    assert witness.finished is not None
    assert state.summary == witness.finished.verdict.value
    if isinstance(flow, Single):
        witness.checks_verdict()


times = st.sampled_from([0.0, 1.0, 9.0, 10.0, 11.0, 26.0, 700.0])
names = st.sampled_from(["main", "part-0", "last", "stranger"])
attempts = st.sampled_from([0, 0, 1, 2, -1])
outcomes = st.sampled_from([DONE, FAILED, LOST, TIMED_OUT, STOPPED])
events = st.one_of(
    made(Begun, times),
    made(Tick, times),
    made(StopAsked, times, st.booleans()),
    made(RoomChanged, times),
    made(Placed, times, names, attempts, st.just({"node-a": 1})),
    made(Refused, times, names, attempts, st.sampled_from(["busy", "busier"]), st.booleans()),
    made(TurnedAway, times, names, attempts, st.sampled_from(["busy", "busier"]), st.booleans()),
    made(Started, times, names, attempts),
    made(Failing, times, names, attempts, outcomes),
    made(Ended, times, names, attempts, outcomes, st.booleans()),
    made(EndAsked, times, names, attempts, st.just("Others are better.")),
    made(Heard, times, names, attempts, st.none() | outcomes),
    made(Offered, times, st.none()),
)


@settings(max_examples=1000, database=None)
@given(policies, flows, st.lists(events, min_size=8, max_size=40))
def test_senseless_events_in_any_order_never_raise_and_never_act_twice(
    policy: Policy, make_flow: Callable[[], Flow], senseless: list[Event]
) -> None:
    flow = make_flow()
    state, seen = begin(policy), Counter[tuple[type[Action], Key]]()
    over, ended, waiting = False, list[Over](), [Begun(0.0), *senseless]
    while waiting:
        event = waiting.pop(0)
        assert step(state, event) == step(state, event), "the same comes of the same"
        state, actions = step(state, event)
        assert not (over and actions)
        over = over or any(isinstance(action, Finish) for action in actions)
        assert over == (state.outcome is not None)
        assert [type(action) for action in actions].count(Wake) <= 1
        seen.update((type(a), (a.task, a.attempt)) for a in actions if isinstance(a, TaskAction))
        ended += [action for action in actions if isinstance(action, Over)]
        waiting[:0] = [Offered(event.at, flow.next()) for action in actions if isinstance(action, Pull)]
    done = [each for each in ended if each.outcome.verdict is Verdict.DONE]
    assert all(seen[Launch, (each.task, each.attempt)] for each in done)
    once = [times for (kind, _), times in seen.items() if kind not in (Place, Waiting)]
    assert all(times == 1 for times in once)
    assert all(seen[Launch, key] for kind, key in seen if kind in (End, Kill, Abandon))
