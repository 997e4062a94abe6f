"""The contract of a flow: what kind of run it is, and which task of one comes next.

A `FlowType` is what the registry has: one object a kind of run, which knows what users may ask of it. It opens a `Flow`
for one run. The manager pulls one task after the other from it while there is room for one more, and tells it what
became of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.core.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

MAIN = "main"
"""The only task of most runs, and the program that the user named."""
AGAIN = frozenset((Verdict.FAILED, Verdict.LOST))


def log_of(task: str, attempt: int) -> int:
    """Which of the run's logs an attempt writes to: its own, or the one that several tasks have in common."""
    return attempt if task == MAIN else 0


class Task(NamedTuple):
    """A task is data. Its name is unique in the run: letters, digits and dashes, 40 at most.

    It runs one of the run's programs, with these values for its placeholders and these arguments after them; `slots` of
    it, or as many as the run asks for. `env` is added to the run's. `options` override options of the run by their
    names (image, cpus, memory, labels, …); a pool ignores those that it does not have. `needs` are tasks that were
    offered before and must have ended, however they did, before this one is placed. A step is something that the flow
    does itself, by its step program. `makes` is a file without which the task is not done: where it is written, and
    where it goes then. `restarts` is how often the task may start again where the user asks for less, `tries_again`
    after which verdicts."""

    name: str
    program: str = MAIN
    values: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    slots: int | None = None
    options: Mapping[str, Any] = {}
    needs: tuple[str, ...] = ()
    is_step: bool = False
    makes: tuple[str, str] | None = None
    restarts: int = 0
    tries_again: frozenset[Verdict] = AGAIN


class Flow(ABC):
    """One run of a kind. Required of it: the same calls in the same order get the same answers, whoever calls; it does
    no I/O and uses no clock and no dice. So a manager that takes over repeats what stands in the journal (`next` and
    `ended`, in their order) and goes on from there.

    Guaranteed to it: `ended` is called once for each task that `next` gave, unless `resumed` has named it again;
    `started` and `measured` come only between the two, and may come again after a change of manager.

    `title` is the whole of it in a few words, empty where its only task says all."""

    title: str = ""

    @abstractmethod
    def next(self) -> Task | None:
        """One more task to start; called when there is room for it. None: nothing for now. It is asked again whenever a
        task has ended. A flow that answers None while nothing runs and has no outcome ends its run as failed."""

    def attempt(self, task: Task, number: int) -> Task:
        """What that attempt of a task is, where it needs something of its own, such as a file that no other writes. The
        name, `slots` and `options` must stay."""
        return task

    def started(self, name: str) -> None:  # noqa: B027
        """All processes of that task run."""

    def measured(self, name: str, values: Mapping[str, float]) -> str:
        """The first process of that task has told these metrics. A reason to end it early, or "": such a task counts as
        stopped, not as failed, and does not start again. What was measured is not in the journal: what matters later
        has to be in the outcome, whose metrics are the last ones."""
        return ""

    @abstractmethod
    def ended(self, name: str, outcome: Outcome) -> None:
        """That task has ended for good, restarts and all."""

    @abstractmethod
    def outcome(self) -> Outcome | None:
        """The run's outcome, or None while it is open. Once it is there, no further task is started: what waits for
        room ends as stopped, and the run is over when all that runs has ended."""

    def report(self) -> Mapping[str, Any] | None:
        """What the user should see at the end, besides the outcome, as JSON has it. Any of these has a meaning:
        `headline` is a sentence, `table` has `columns` (names) and `rows` (numbers, texts or None), `remarks` are
        sentences, `final` is the path of the result. All else is for programs."""
        return None

    def resumed(self) -> Iterable[Task]:
        """Called once, after a run whose manager died with all its tasks was read from the journal: tasks that have
        ended and have to be done once more, since what they depend on may have changed. `ended` is called for them
        again; all that had not ended waits for them."""
        return ()


class Words(NamedTuple):
    """A command of a run beside the main one: the user's own words, located as those of the main command are; or those
    for the step program."""

    words: tuple[str, ...]
    is_step: bool = False


class FlowType(ABC):
    """One kind of run, as the registry has it. Methods that take a spec get one that was parsed; they are pure.

    `name` is what users write after --strategy, as are `synonyms`; `summary` says in a few words what it does.
    `options` is the section of its options, if it has any. `is_single`: there is one task, named MAIN, and no other; so
    a file can be such a run, and nothing is worth resuming. `shares_files`: tasks hand files over to each other, and
    need a place that all of them see. `steps` is the module whose `main(words)` is the step program, `step_modules` are
    the modules and packages that it imports: they go along to where the tasks are, where nothing may be installed."""

    name: str
    summary: str
    synonyms: tuple[str, ...] = ()
    options: Any = None
    is_single: bool = False
    shares_files: bool = False
    steps: str = ""
    step_modules: tuple[str, ...] = ()

    @abstractmethod
    def open(self, spec: Spec, folder: str) -> Flow:
        """For one run. `folder` is where it keeps files that its tasks share. Raises SpecError where `check` does."""

    def check(self, spec: Spec) -> None:  # noqa: B027
        """Raises SpecError for what can't work, whoever waits."""

    def settle(self, spec: Spec, environ: Mapping[str, str]) -> Spec:
        """With what it takes from the environment of whoever starts the run."""
        return spec

    def at_once(self, spec: Spec) -> int:
        """How many slots there have to be at the same time."""
        return spec.slots

    def size(self, asked: Mapping[str, Any]) -> int | None:
        """How many processes the run will have at least, as far as its spec (as JSON has it) tells; None: as many as
        its only task has. With more than one, each line of output is shown with the name of its task."""
        return None if self.is_single else 2

    def programs(self, spec: Spec) -> Mapping[str, Words]:
        """The commands beside the main one, by the names that tasks have for them."""
        return {}

    def words(self, spec: Spec, command: Sequence[str]) -> tuple[str, ...]:
        """A command of the user's as tasks have it, before its placeholders are filled."""
        return tuple(command)

    def files(self, spec: Spec) -> Mapping[str, str]:
        """Files of this machine that a run elsewhere needs: where they go in the run's folder there, and their paths
        here."""
        return {}

    def reads(self, spec: Spec) -> Mapping[str, bool]:
        """Files of this machine that have to be there; True for one that may be a folder."""
        return {}

    def writes(self, spec: Spec) -> Iterable[str]:
        """Files of this machine that have to be writable."""
        return ()

    def notes(self, spec: Spec) -> Iterable[str]:
        """What the user should know before it starts."""
        return ()

    def sample(self, spec: Spec) -> Spec:
        """A smaller run of this kind, whose tasks show what all of them are."""
        return spec
