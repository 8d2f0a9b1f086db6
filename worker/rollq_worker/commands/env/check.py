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
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import rollq
import rollq_worker
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
from rollq_worker.failures import errors_become
from rollq_worker.fakes import FakeEngine, FakeJournal, FakeRenderer
from rollq_worker.users.scripted import ScriptedUser

T = TypeVar("T")

OURS = (*(str(Path(package.__path__[0])) for package in (rollq, rollq_worker)), contextlib.__file__)
"""Where the lines of a traceback are not the author's. What `open()` raises passes through
contextlib.
"""
SMALL_TALK = "Is there anything else that I can do for you?"
SPARE_TURNS = 10
"""Turns of small talk after the ground truth, in which an episode must end."""
LONGEST = 4_000_000
"""Most characters of an episode and of a turn: more than any has."""
TASK_FIELDS: dict[str, Any] = {
    "id": str,
    "hash": str,
    "instruction": str,
    "opening": str,
    "replies": Sequence,
    "moves": Sequence,
}


@dataclass
class Report:
    """Results of a check. Costs are seconds of CPU."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks that need be no problem."""
    played: int = 0
    steps: int = 0
    step_s: float = 0.0
    rewards: list[float] = field(default_factory=list)
    """Of the ground truth."""
    idle_rewards: list[float] = field(default_factory=list)
    """Of an agent that only talks."""
    tools: list[int] = field(default_factory=list)
    """The number of tools of each task that could be opened."""
    judged: int = 0
    """Tasks with assertions, which nothing here judges."""
    episodes: int = 0
    """Times that the environment was opened."""
    programs_s: float = 0.0
    """Of the programs that it started, all episodes together."""

    def add(self, other: "Report") -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


def check_environment(
    domain: Domain,
    split: str,
    tasks: Sequence[int],
    played: Callable[[int], object] = lambda tasks: None,
) -> Report:
    """Play these tasks of the split: the ground truth twice, wrong calls, and small talk. `played`
    is told how many of them have been.
    """
    openings: dict[str, int] = {}
    report, began = Report(), _programs_s()
    for one in _reports(partial(_check_index, domain, split, openings), tasks, began):
        report.add(one)
        played(report.played)
    report.programs_s = _programs_s() - began
    _sum_up(report)
    return report


def _reports(
    check: Callable[[int], Report], tasks: Sequence[int], began: float
) -> Iterator[Report]:
    """In the order of the tasks. An environment that starts programs waits for them, so some of its
    tasks are played at once, after the first one. Then only that one tells what a turn costs.
    """
    yield from map(check, tasks[:1])
    if _programs_s() == began:
        yield from map(check, tasks[1:])
        return
    with ThreadPoolExecutor(4) as pool:
        for one in pool.map(check, tasks[1:]):
            one.steps, one.step_s = 0, 0.0
            yield one


def _programs_s() -> float:
    """Seconds of CPU of the programs that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _check_index(domain: Domain, split: str, openings: dict[str, int], index: int) -> Report:
    report = Report(played=1)
    try:
        task, again = domain.task(split, index), domain.task(split, index)
        wrong = _wrong_fields(task)
        if wrong:
            report.problems.append(f"task {index}: {wrong}")
            return report
        if task != again:
            report.problems.append(
                f"task {index}: task({split!r}, {index}) returns another task the second time"
            )
        first = openings.setdefault(task.opening, index)
        if first != index:
            report.problems.append(
                f"tasks {first} and {index} have the same opening, and it must be unique"
            )
        report.judged = int(bool(task.assertions))
        _check_task(domain, split, index, task, report)
    except RollqError as e:
        report.problems.append(f"task {index}: {e}{_place(e.__cause__ or e)}")
    except (Exception, SystemExit) as e:  # other people's code
        report.problems.append(f"task {index}: {type(e).__name__}: {e}{_place(e)}")
    return report


def _place(error: BaseException) -> str:
    """The author's line that raised it, and the call that it was raised in."""
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS)
    ]
    # The innermost line of the author's own folder: what it calls may be a library's.
    own = [
        frame for frame in theirs if Path(frame.filename).parent == Path(theirs[0].filename).parent
    ]
    lines = [f"{own[-1].filename}:{own[-1].lineno}"] if own else []
    facts = ", ".join([*lines, *getattr(error, "__notes__", ())])
    return f" ({facts})" if facts else ""


def chosen(count: int, shown: int = 20) -> list[int]:
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


def _check_task(domain: Domain, split: str, index: int, task: Task, report: Report) -> None:
    player = _Player(domain, split, index, task, report)
    if task.moves:
        began = time.process_time()
        first = player.play([_as_turn(move) for move in task.moves])
        report.step_s += time.process_time() - began
        report.steps += first.turns
        report.rewards.append(first.reward or 0.0)
        if first.stop is not Stop.DONE:
            report.problems.append(
                f"task {index}: the episode does not end within {SPARE_TURNS} turns of its last "
                "move"
            )
        elif first.reward != 1.0:
            why = json.dumps(dict(first.info), default=str)
            report.problems.append(
                f"task {index}: the ground truth earns {first.reward}, not 1.0: {why:.300}"
            )
        again = player.play([_as_turn(move) for move in task.moves], recorded=first)
        if again.reward != first.reward:
            report.problems.append(
                f"task {index}: the same actions earn {first.reward}, and then {again.reward}"
            )
    report.idle_rewards.append(player.play([SMALL_TALK]).reward or 0.0)
    player.play([_as_turn(call) for call in _wrong_calls(player.tools)], group="mistakes")


@contextlib.contextmanager
def opened(domain: Domain, split: str, index: int) -> Iterator[Environment]:
    environment = domain.open(split, index, {})
    try:
        yield environment
    finally:
        getattr(environment, "close", lambda: None)()


class _Player:
    """Plays one task."""

    def __init__(self, domain: Domain, split: str, index: int, task: Task, report: Report) -> None:
        self._domain, self._split, self._index = domain, split, index
        self._task, self._report = task, report
        with self._opened() as environment, errors_become(EnvironmentFailure, "environment.tools"):
            self.tools = schemas_of(environment)
        report.tools.append(len(self.tools))

    def play(
        self, turns: Sequence[str], recorded: Trajectory | None = None, group: str = "moves"
    ) -> Trajectory:
        """An episode in which the policy says these turns, and then small talk."""
        budget = Budget(
            max_turns=len(turns) + SPARE_TURNS, max_new_tokens=LONGEST, max_tokens=LONGEST
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
        with self._opened() as environment:
            return loop.play(
                job,
                engine=FakeEngine([*turns, SMALL_TALK], context=2 * LONGEST),
                renderer=FakeRenderer(),
                environment=_Typed(environment),
                user=ScriptedUser(self._task.opening, self._task.replies),
                journal=FakeJournal(),
                recorded=events,
            )

    def _opened(self) -> contextlib.AbstractContextManager[Environment]:
        self._report.episodes += 1
        return opened(self._domain, self._split, self._index)


class _Typed:
    """An environment whose wrong return types are said plainly."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.tools = environment.tools

    @property
    def system_prompt(self) -> str:
        return self.environment.system_prompt  # it may be known only after reset()

    def reset(self, user: User) -> str | Observation:
        return _of_type("reset() returns", self.environment.reset(user), (str, Observation))

    def step(self, action: Action) -> Observation:
        try:
            observation = _of_type("step() returns", self.environment.step(action), (Observation,))
            _of_type("Observation.done is", observation.done, (bool,))
        except (Exception, SystemExit) as e:  # other people's code
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
        raise TypeError(
            f"{what} a {type(value).__name__}, not {' or '.join(kind.__name__ for kind in kinds)}"
        )
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
        parameters = tool["function"].get("parameters", {}).get("properties", {})
        calls += [Action(name, {}), Action(name, {"no_such_argument": 1})]
        odd: tuple[Json, ...] = (None, [], {"a": 1}, "", -1)
        calls += [Action(name, dict.fromkeys(parameters, value)) for value in odd]
    return calls


def _sum_up(report: Report) -> None:
    if report.idle_rewards and not report.rewards:
        report.notes.append(
            "no task has moves: whether a perfect agent earns the reward cannot be seen here (the "
            "replay engine makes random calls)"
        )
    if report.judged:
        report.notes.append(
            f"{report.judged} of these tasks have assertions that a model must judge: here they "
            "count as met"
        )
    idle = [reward for reward in report.idle_rewards if reward > 0]
    if idle:
        share = len(idle) / len(report.idle_rewards)
        report.notes.append(
            f"an agent that only talks earns a reward in {share:.0%} of these tasks"
        )
