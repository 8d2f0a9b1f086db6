"""Spans of OpenTelemetry: one for each attempt, turn and request, and for each call of an environment or a user.

They are made when an attempt has ended, from its journal, which has the times of all turns. So a turn costs the same
with traces and without; only calls of environments and users are timed on the way, and only with traces. The invariant:
an attribute is a number, a checked name or one of a fixed list, never a text of a model, a tool, a user or an error.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from rollq.env import RESPOND, Action, Environment, Grade, Observation, User
from rollq.events import Event, Observed, Sampled
from rollq.job import Json
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.job_task import JobRunner, Summary

log = logging.getLogger(__name__)

LONGEST = 100
"""Number of characters of an attribute. Names of runs and groups are no longer."""
UNKNOWN = "unknown"
"""In place of the name of a tool that does not exist, which the model made up."""

Attributes = Mapping[str, str | int | float]


class Call(NamedTuple):
    """A call of the environment or the user. Times are Unix seconds."""

    name: str
    tool: str
    """The tool of a step."""
    began: float
    ended: float
    error: str
    """The type of what it raised."""


@dataclass(slots=True)
class Turn:
    """What an attempt played of one turn."""

    number: int
    requests: list[Sampled]
    observed: Observed | None = None

    @property
    def began(self) -> float:
        return self.requests[0].at if self.requests else self.observed.at if self.observed else 0.0

    def ended(self, attempt_ended: float) -> float:
        return attempt_ended if self.observed is None else self.observed.at + self.observed.seconds


class AttemptTraces:
    """Makes the spans of a worker's attempts."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._calls: dict[Attempt, list[Call]] = {}
        """Of the attempts that are being played."""

    def attach(self, runner: JobRunner) -> None:
        """Trace all attempts of this worker from now on."""
        runner.episodes.watch = self.watch
        runner.on_end.append(self.end)

    def watch(self, attempt: Attempt, environment: Environment, user: User) -> tuple[Environment, User]:
        """The same environment and user; their calls are timed."""
        calls = self._calls[attempt] = []
        return WatchedEnvironment(environment, calls), WatchedUser(user, calls)

    def end(self, attempt: Attempt, summary: Summary) -> None:
        """Make the spans of an attempt that has ended. Logs every error, because a job is worth more than its trace."""
        calls = self._calls.pop(attempt, [])
        try:
            self._trace(attempt, summary, calls)
        except Exception:
            log.exception("%s: attempt %d was not traced", attempt.job.id, attempt.number)

    def _trace(self, attempt: Attempt, summary: Summary, calls: Sequence[Call]) -> None:
        now = time.time()
        episode = self._span("rollout", None, now - attempt.age_s, _of_attempt(attempt, summary))
        if episode.is_recording():  # else it was not sampled
            for turn in turns(*attempt.events()):
                began, ended = turn.began, turn.ended(now)
                span = self._span("turn", episode, began, _of_turn(turn))
                for request in turn.requests:
                    sampling = self._span("engine.generate", span, request.at, _of_request(request))
                    sampling.end(_ns(request.at + request.seconds))
                within = [call for call in calls if began <= call.began <= ended]
                calls = [call for call in calls if call not in within]
                self._call_spans(span, within)
                span.end(_ns(ended))
            self._call_spans(episode, calls)
        if failure := summary.get("failure"):
            episode.set_status(Status(StatusCode.ERROR, str(failure)))
        episode.end(_ns(now))

    def _call_spans(self, parent: Span, calls: Sequence[Call]) -> None:
        for call in calls:
            span = self._span(call.name, parent, call.began, {"rollq.tool": call.tool} if call.tool else {})
            if call.error:
                span.set_status(Status(StatusCode.ERROR, call.error))
            span.end(_ns(call.ended))

    def _span(self, name: str, parent: Span | None, began: float, attributes: Attributes) -> Span:
        context = None if parent is None else set_span_in_context(parent)
        short = {key: value[:LONGEST] if isinstance(value, str) else value for key, value in attributes.items()}
        return self._tracer.start_span(name, context, attributes=short, start_time=_ns(began))


def turns(events: Sequence[Event], earlier: int) -> list[Turn]:
    """The turns among an attempt's events, without those that `earlier` attempts played; the last one may be
    unfinished."""
    found: dict[int, Turn] = {}  # those of several traces are recorded in turns
    for event in events[earlier:]:
        if isinstance(event, Sampled | Observed):
            turn = found.setdefault(event.turn, Turn(event.turn, []))
            if isinstance(event, Sampled):
                turn.requests.append(event)
            else:
                turn.observed = event
    return [*found.values()]


def _of_attempt(attempt: Attempt, summary: Summary) -> Attributes:
    job = attempt.job
    known = {f"rollq.{name}": summary[name] for name in ("stop", "reward", "failure", "then") if name in summary}
    return known | {
        "rollq.job": job.id,
        "rollq.run": job.run,
        "rollq.group": job.group,
        "rollq.sample": job.sample,
        "rollq.attempt": attempt.number,
        "rollq.env": job.env,
        "rollq.split": job.split,
        "rollq.task": job.task,
        "rollq.turns": attempt.turns,
    }


def _of_turn(turn: Turn) -> Attributes:
    counts = {"rollq.turn": turn.number, "rollq.sampled_tokens": sum(len(request.ids) for request in turn.requests)}
    if turn.observed is not None:
        counts |= {"rollq.actions": len(turn.observed.actions), "rollq.errors": len(turn.observed.errors)}
    return counts


def _of_request(request: Sampled) -> Attributes:
    return {
        "rollq.sampled_tokens": len(request.ids),
        "rollq.cached_tokens": request.cached_tokens,
        "rollq.finish": request.finish.value,
        "rollq.weight_version": request.versions[-1].version if request.versions else "",
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


@contextmanager
def _timed(calls: list[Call], name: str, tool: str = "") -> Iterator[None]:
    began, error = time.time(), ""
    try:
        yield
    except BaseException as e:
        error = type(e).__name__
        raise
    finally:
        calls.append(Call(name, tool, began, time.time(), error))


class WatchedEnvironment:
    """An environment, and when it was called."""

    def __init__(self, environment: Environment, calls: list[Call]) -> None:
        self._environment = environment
        self._calls = calls
        self._names: frozenset[str] = frozenset()

    @property
    def tools(self) -> Sequence[Json]:
        return self._environment.tools

    @property
    def system_prompt(self) -> str:
        return self._environment.system_prompt

    def reset(self, user: User) -> str | Observation:
        self._names = frozenset(tool["function"]["name"] for tool in self.tools) | {RESPOND}
        with _timed(self._calls, "environment.reset"):
            return self._environment.reset(user)

    def step(self, action: Action) -> Observation:
        with _timed(self._calls, "environment.step", action.name if action.name in self._names else UNKNOWN):
            return self._environment.step(action)

    def grade(self) -> Grade:
        with _timed(self._calls, "environment.grade"):
            return self._environment.grade()


class WatchedUser:
    """A user, and when it was asked."""

    def __init__(self, user: User, calls: list[Call]) -> None:
        self._calls = calls
        self._user = user
        self.recall: Callable[[str | None, str], None] = user.recall

    def open(self) -> str:
        with _timed(self._calls, "user.open"):
            return self._user.open()

    def reply(self, message: str) -> str:
        with _timed(self._calls, "user.reply"):
            return self._user.reply(message)
