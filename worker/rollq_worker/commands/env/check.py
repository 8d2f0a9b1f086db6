"""Checks an environment: its tasks are played by the worker's own agent loop, without a
model.

Engine and renderer are the fakes that ship with rollq, so the loop's own checks of tools,
observations and rewards are the checks here. A second play from the first one's journal shows
whether another worker could continue the episode.
"""

import contextlib
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from rollq.env import (
    RESPOND,
    STOP_MARKER,
    Action,
    Domain,
    Environment,
    Grade,
    Observation,
    Task,
    User,
)
from rollq.errors import EnvironmentFailure, RollqError
from rollq.events import Stop
from rollq.job import Budget, Job, Json
from rollq.trajectory import Trajectory
from rollq_worker.episode import loop
from rollq_worker.episode.messages import schemas_of
from rollq_worker.extensions.authors_line import line_of
from rollq_worker.failures import FOREIGN_ERRORS, Diverged
from rollq_worker.fakes import FakeEngine, FakeJournal, FakeRenderer
from rollq_worker.process.attempts.time_limits import (
    OPEN_LIMIT_S,
    STEP_LIMIT_S,
    TimedEnvironment,
    TimeLimits,
)
from rollq_worker.users.scripted import ScriptedUser

T = TypeVar("T")

SMALL_TALK = "Is there anything else that I can do for you?"
SPARE_TURNS = 10
"""Turns of small talk after the ground truth, in which an episode must end."""
MOST_CHARACTERS = 4_000_000
"""Most characters of an episode and of a turn: more than any has."""
TASK_FIELDS: dict[str, Any] = {
    "id": str,
    "hash": str,
    "instruction": str,
    "opening": str,
    "replies": Sequence,
    "moves": Sequence,
}


class Problem(NamedTuple):
    """Something wrong with a task."""

    task: int
    text: str
    kind: str
    """Problems of one kind in several tasks are shown once."""

    def __str__(self) -> str:
        return f"task {self.task}: {self.text}"


@dataclass
class Report:
    """Results of a check. Costs are seconds of CPU."""

    problems: list[Problem] = field(default_factory=list)
    played: int = 0
    steps: int = 0
    step_s: float = 0.0
    rewards: list[float] = field(default_factory=list)
    """Rewards of the ground truth."""
    idle_rewards: list[float] = field(default_factory=list)
    """Rewards of an agent that only talks."""
    tools: list[int] = field(default_factory=list)
    """The number of tools of each task that could be opened."""
    judged: int = 0
    """Tasks with assertions, which nothing here judges."""
    episodes: int = 0
    """Times that the environment was opened."""
    programs_s: float = 0.0
    """Seconds of the programs that it started, all episodes together."""
    cut_short: str = ""
    """Reason why not all tasks were played."""

    def add(self, other: "Report") -> None:
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def add_problem(self, task: int, text: str, kind: str = "") -> None:
        self.problems.append(Problem(task, text, kind or text))

    @property
    def lines(self) -> list[str]:
        """A line for each kind of problem: its first task, and how many others have it."""
        by_kind: dict[str, list[Problem]] = {}
        for problem in self.problems:
            by_kind.setdefault(problem.kind, []).append(problem)
        lines = []
        for first, *others in by_kind.values():
            tasks = len({other.task for other in others} - {first.task})
            lines.append(f"{first} (and {tasks} others)" if tasks else str(first))
        return lines

    @property
    def notes(self) -> list[str]:
        """Remarks that need not be a problem."""
        notes = [self.cut_short] if self.cut_short else []
        if self.idle_rewards and not self.rewards:
            notes.append(
                "no task has moves: whether a perfect agent earns the reward cannot be seen here "
                "(the replay engine makes random calls)"
            )
        if self.judged:
            notes.append(
                f"{self.judged} of these tasks have assertions that a model must judge: here they "
                "count as met"
            )
        idle = [reward for reward in self.idle_rewards if reward > 0]
        if idle:
            share = len(idle) / len(self.idle_rewards)
            notes.append(f"an agent that only talks earns a reward in {share:.0%} of these tasks")
        return notes


def check_environment(
    domain: Domain,
    split: str,
    tasks: Sequence[int],
    show: Callable[[Report], object] = lambda report: None,
    limits: Callable[[int], TimeLimits] = lambda index: TimeLimits(),
) -> Report:
    """Plays these tasks of the split: the ground truth twice, wrong calls, and small talk. `show`
    gets the report after each of them; `limits` has the foreign calls of a task.
    """
    openings: dict[str, int] = {}
    report = Report()
    began = _programs_s()

    def check(index: int) -> Report:
        return _check_index(domain, split, openings, index, limits(index))

    for task_report in _reports(check, tasks, began):
        report.add(task_report)
        report.programs_s = _programs_s() - began
        show(report)
    return report


def _reports(
    check: Callable[[int], Report], tasks: Sequence[int], began: float
) -> Iterator[Report]:
    """Reports in the order of the tasks. An environment that starts programs waits for them, so
    some of its tasks are played at once, after the first one. Then only that one tells what a turn
    costs.
    """
    yield from map(check, tasks[:1])
    if _programs_s() == began:
        yield from map(check, tasks[1:])
        return
    with ThreadPoolExecutor(4) as pool:
        for task_report in pool.map(check, tasks[1:]):
            task_report.steps = 0
            task_report.step_s = 0.0
            yield task_report


def _programs_s() -> float:
    """Seconds of CPU of the programs that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _check_index(
    domain: Domain, split: str, openings: dict[str, int], index: int, limits: TimeLimits
) -> Report:
    report = Report(played=1)
    try:
        with limits.call(EnvironmentFailure, f"task({split!r}, {index})", OPEN_LIMIT_S):
            task, again = domain.task(split, index), domain.task(split, index)
        wrong = _wrong_fields(task)
        if wrong:
            report.add_problem(index, wrong)
            return report
        if task != again:
            what = f"task({split!r}, {index}) returns another task the second time"
            report.add_problem(index, what, "another task")
        first = openings.setdefault(task.opening, index)
        if first != index:
            what = f"it has the same opening as task {first}, and openings must be unique"
            report.add_problem(index, what, "opening")
        report.judged = int(bool(task.assertions))
        _check_task(domain, split, index, task, report, limits)
    except Diverged as e:
        what = f"the same actions gave other results the second time: seed it from env_args ({e})"
        report.add_problem(index, what, "diverged")
    except RollqError as e:
        _add_error(report, index, str(e), e.__cause__ or e)
    except FOREIGN_ERRORS as e:
        _add_error(report, index, f"{type(e).__name__}: {e}", e)
    return report


def _add_error(report: Report, index: int, text: str, error: BaseException) -> None:
    """Adds an error with the author's line that raised it, and the call that it was raised in."""
    line = line_of(error)
    facts = ", ".join(filter(None, [line, *getattr(error, "__notes__", ())]))
    report.add_problem(
        index, f"{text} ({facts})" if facts else text, f"{type(error).__name__} {line or text}"
    )


def choose_tasks(count: int, shown: int = 20) -> list[int]:
    """Up to `shown` of `count` tasks, from all over them."""
    shown = min(count, shown)
    return [round(n * (count - 1) / max(1, shown - 1)) for n in range(shown)]


def _wrong_fields(task: Any) -> str:
    if not isinstance(task, Task):
        return f"task() returns a {type(task).__name__}, not a rollq.env.Task"
    for name, kind in TASK_FIELDS.items():
        value = getattr(task, name)
        if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
            return f"Task.{name} is {value!r:.60}, not a {kind.__name__}"
    if not task.opening:
        return "Task.opening is empty: the user's first message"
    if not any(STOP_MARKER in reply for reply in task.replies[-1:]):
        return f"the last of Task.replies must contain {STOP_MARKER}, which ends the conversation"
    moves: Sequence[Any] = task.moves
    for move in moves:
        if not isinstance(move, Action):
            return f"Task.moves holds {move!r:.60}, not a rollq.env.Action"
    return ""


def _check_task(
    domain: Domain, split: str, index: int, task: Task, report: Report, limits: TimeLimits
) -> None:
    player = _Player(domain, split, index, task, report, limits)
    if task.moves:
        began = time.process_time()
        first = player.play([_as_turn(move) for move in task.moves])
        report.step_s += time.process_time() - began
        report.steps += first.turns
        report.rewards.append(first.reward or 0.0)
        if first.stop is not Stop.DONE:
            report.add_problem(
                index, f"the episode does not end within {SPARE_TURNS} turns of its last move"
            )
        elif first.reward != 1.0:
            why = json.dumps(dict(first.info), default=str)
            what = f"the ground truth earns {first.reward}, not 1.0: {why:.300}"
            report.add_problem(index, what, "ground truth")
        again = player.play([_as_turn(move) for move in task.moves], recorded=first)
        if again.reward != first.reward:
            what = f"the same actions earn {first.reward}, and then {again.reward}"
            report.add_problem(index, what, "same actions")
    report.idle_rewards.append(player.play([SMALL_TALK]).reward or 0.0)
    player.play([_as_turn(call) for call in _wrong_calls(player.tools)], group="mistakes")


class _Player:
    """Plays one task."""

    def __init__(
        self,
        domain: Domain,
        split: str,
        index: int,
        task: Task,
        report: Report,
        limits: TimeLimits,
    ) -> None:
        self._domain, self._split, self._index = domain, split, index
        self._task, self._report, self._limits = task, report, limits
        with self._open_environment() as environment:
            self.tools = environment.tools
        report.tools.append(len(self.tools))

    def play(
        self, turns: Sequence[str], recorded: Trajectory | None = None, group: str = "moves"
    ) -> Trajectory:
        """An episode in which the policy says these turns, and then small talk."""
        budget = Budget(
            max_turns=len(turns) + SPARE_TURNS,
            max_new_tokens=MOST_CHARACTERS,
            max_tokens=MOST_CHARACTERS,
        )
        job = Job(
            run="check",
            group=group,
            env="checked",
            split=self._split,
            task=self._index,
            budget=budget,
        )
        events = recorded.events[:-1] if recorded else ()
        with self._open_environment() as environment:
            return loop.play(
                job,
                engine=FakeEngine([*turns, SMALL_TALK], context=2 * MOST_CHARACTERS),
                renderer=FakeRenderer(),
                environment=environment,
                user=ScriptedUser(self._task.opening, self._task.replies),
                journal=FakeJournal(),
                recorded=events,
            )

    @contextlib.contextmanager
    def _open_environment(self) -> Iterator[TimedEnvironment]:
        self._report.episodes += 1
        longest_s = float(getattr(self._domain, "longest_open_s", OPEN_LIMIT_S))
        with self._limits.call(EnvironmentFailure, "open()", longest_s):
            environment = self._domain.open(self._split, self._index, {})
        try:
            with self._limits.call(EnvironmentFailure, "environment.tools", STEP_LIMIT_S):
                tools = schemas_of(environment)
            yield TimedEnvironment(_Typed(environment), self._limits, STEP_LIMIT_S, tools)
        finally:
            with self._limits.call(EnvironmentFailure, "close()", STEP_LIMIT_S):
                getattr(environment, "close", lambda: None)()


class _Typed:
    """An environment whose wrong return types are said plainly."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def reset(self, user: User) -> str | Observation:
        return _of_type("reset() returns", self.environment.reset(user), (str, Observation))

    def step(self, action: Action) -> Observation:
        try:
            observation = _of_type("step() returns", self.environment.step(action), (Observation,))
            _of_type("Observation.done is", observation.done, (bool,))
        except FOREIGN_ERRORS as e:
            e.add_note(
                "in the call "
                f"{action.name}({json.dumps(dict(action.arguments), ensure_ascii=False):.200})"
            )
            raise
        return observation

    def grade(self) -> Grade:
        grade = _of_type("grade() returns", self.environment.grade(), (Grade,))
        _of_type("Grade.info is", grade.info, (Mapping,))
        return grade


def _of_type(what: str, value: T, kinds: tuple[type, ...]) -> T:
    if not isinstance(value, kinds):
        kind = type(value)
        # numpy has a bool of its own
        name = (
            kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        )
        raise TypeError(f"{what} a {name}, not {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _as_turn(action: Action) -> str:
    """The turn as the fake renderer reads it. What would look like a call to it gets a space."""
    if action.name == RESPOND:
        text = str(action.arguments["content"])
        return f" {text}" if text.startswith(("{", "[")) else text
    return json.dumps({"name": action.name, "arguments": dict(action.arguments)})


def _wrong_calls(tools: Sequence[Json]) -> list[Action]:
    """Calls that a policy may make by mistake: no arguments, unknown ones, wrong types, an unknown
    tool.
    """
    calls = [Action("no_such_tool", {})]
    for tool in tools:
        name = tool["function"]["name"]
        parameters = tool["function"].get("parameters", {}).get("properties") or {}
        calls += [Action(name, {}), Action(name, {"no_such_argument": 1})]
        odd: tuple[Json, ...] = (None, [], {"a": 1}, "", -1)
        calls += [Action(name, dict.fromkeys(parameters, value)) for value in odd]
    return calls
