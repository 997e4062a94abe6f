"""What the manager does next: a state and an event go in, the new state and actions come out.

    queued ─► placing ─► launching ─► running ─► ending ─► killing ─► ended        (a task's phases)
       ▲         │           └───────────┴──────────┴─────────┤
       └─────────┴──── no room: ask again · restart ──────────┘

Restarts, timeouts and stops are races between what the user wants and what the pool tells. They are decided here, where
they can be tested by the thousand without a process, a clock or a wait. The flow is asked, never called: `Pull` asks it
for one more task, as long as few enough wait for room, and `Over` tells it that one has ended for good; `Offered` and
`Heard` are its answers. The state has the tasks that are on their way and no others: what a step costs does not depend
on how many have ended. These rules hold it together:

- An event counts only while it is waited for. Late, repeated, reordered or foreign ones change nothing.
- Whatever decided first that an attempt ends is its cause, and the outcome tells it. Only a gang that says it was done
  is believed over a cause: it had finished before the stop reached it.
- Every phase but running has a deadline. The last one gives the attempt up: something of it may still be alive, so it
  is never restarted, and the run's outcome says so.

Events and actions are named tuples: those of different types with equal fields compare equal, so they are told apart by
their type.
"""

from pumasi.core.manage.actions import (
    Abandon,
    Action,
    Actions,
    End,
    Finish,
    Kill,
    Launch,
    Over,
    Place,
    Pull,
    Restarting,
    TaskAction,
    Waiting,
    Wake,
)
from pumasi.core.manage.events import (
    STOPPED,
    Begun,
    EndAsked,
    Ended,
    Event,
    Failing,
    Heard,
    Offered,
    Placed,
    Refused,
    RoomChanged,
    Started,
    StopAsked,
    TaskEvent,
    Tick,
    TurnedAway,
)
from pumasi.core.manage.machine import step
from pumasi.core.manage.state import CONFIRM, MOST_WAITING, Phase, Policy, RunState, TaskState, begin, task_state
from pumasi.core.manage.task import FREE_RESTARTS, TELL_AGAIN

__all__ = [
    "CONFIRM",
    "FREE_RESTARTS",
    "MOST_WAITING",
    "STOPPED",
    "TELL_AGAIN",
    "Abandon",
    "Action",
    "Actions",
    "Begun",
    "End",
    "EndAsked",
    "Ended",
    "Event",
    "Failing",
    "Finish",
    "Heard",
    "Kill",
    "Launch",
    "Offered",
    "Over",
    "Phase",
    "Place",
    "Placed",
    "Policy",
    "Pull",
    "Refused",
    "Restarting",
    "RoomChanged",
    "RunState",
    "Started",
    "StopAsked",
    "TaskAction",
    "TaskEvent",
    "TaskState",
    "Tick",
    "TurnedAway",
    "Waiting",
    "Wake",
    "begin",
    "step",
    "task_state",
]
