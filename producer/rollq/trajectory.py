"""A trajectory is its journal: a header and the events of one episode.

Tokens, loss mask, logprobs, versions and messages are derived from the events, never stored beside
them, so they cannot disagree. A `Prompt` opens a trace; a trace is one token sequence that the
engine has seen, append-only:

    Prompt.ids  Sampled.ids  Observed.ids  Sampled.ids  Observed.ids ...

An agent program may go on in an earlier trace, or in several at once; its events then say which
trace they continue. Only sampled tokens are trained. Pure values, standard library only.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat

from rollq.errors import ContractError, FailureClass, FunctionError
from rollq.events import GRADED, Closed, Event, Message, Observed, Prompt, Sampled, Stop, TokenEvent
from rollq.job import Job, Json
from rollq.teachers import is_score, teacher_of
from rollq.traces import Kind, trace_kinds
from rollq.trajectory_extras import Extra, little_endian

AGENT_REWARDS = "agent_rewards"
"""Key of `Closed.info`: `Grade.rewards`."""
Traces = str | Callable[[Sequence["Segment"]], Sequence["Segment"]]
"""Traces to train on: `all`, `main`, `longest`, or a function of a trajectory's segments that
returns some of them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Everything a trajectory was made with, enough to tell whether two may be mixed."""

    attempt: int
    """Number of the claim that played it, from 1."""
    worker: str = ""
    """Name of the worker."""
    rollq: str = ""
    """Version of rollq."""
    env_version: str = ""
    """The environment's package and version."""
    task_hash: str = ""
    """Hash of the task's content (`Task.hash`)."""
    template_hash: str = ""
    """Hash of the chat template and what else shapes a prompt."""
    tokenizer_hash: str = ""
    """Hash of the vocabulary and its rules."""
    history: str = "keep"
    """`keep`: append-only. `template`: an edge that rewrites history opens a new trace."""
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Options given to the chat template, for example to keep earlier reasoning."""
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One trace as a row to train on: the prompt, and the response of policy and environment in
    turn.

    What is derived of the response has one entry per response token; tokens of the prompt are never
    trained.
    """

    prompt_ids: array[int]
    """array('I'), the buffer of the Prompt."""
    events: Sequence[Sampled | Observed]
    """The response. It holds at least one sampled token."""
    prompt: Prompt | None = None
    """The event that opened the trace."""
    trace: int
    """Number of the trace, from 0."""
    trajectory: Trajectory = field(repr=False, compare=False)
    """The episode that it is of."""

    @property
    def model(self) -> str:
        """Name in `Job.models` of the agent whose trace it is. "" for the policy."""
        return self.prompt.model if self.prompt else ""

    @property
    def kind(self) -> Kind:
        """`main`: of the agent's own conversation. `helper`: a sub-agent's, a title, a summary.
        Reading it decodes texts.
        """
        return self.trajectory.kinds[self.trace]

    @cached_property
    def scores(self) -> Mapping[str, Extra]:
        """The teachers' extras (`rollq.teachers`) of this trajectory: one row for each sampled
        token of the trace.
        """
        before = sum(self.trajectory.traces[: self.trace])
        first = self.trajectory.mask[:before].count(1)
        return {
            name: extra.rows(first, self.sampled_tokens)
            for name, extra in self.trajectory.extras.items()
            if is_score(name)
        }

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(len(event.ids) for event in self.events if isinstance(event, Sampled))

    @property
    def prompt_messages(self) -> list[Message]:
        """The trace's conversation before its first turn."""
        return list(self.prompt.messages) if self.prompt else []

    @property
    def messages(self) -> list[Message]:
        """The finished turns, and the messages that answered them."""
        return [*_answers(self.events)]

    @cached_property
    def response_ids(self) -> array[int]:
        """array('I'): sampled tokens and bridges."""
        return array("I", b"".join(event.ids for event in self.events))

    @cached_property
    def mask(self) -> bytes:
        """1 where the policy sampled the token, else 0."""
        return _mask(self.events)

    @cached_property
    def logprobs(self) -> array[float]:
        """array('f'): 0.0 where the mask is 0."""
        return _logprobs(self.events)

    @cached_property
    def teacher_logprobs(self) -> Mapping[str, array[float]]:
        """array('f') by the teacher's name: 0.0 where the mask is 0."""
        return _teacher_logprobs(self.scores, self.mask)

    @cached_property
    def versions(self) -> list[str | None]:
        """The weight version that sampled the token, None where the mask is 0."""
        return _versions(self.events)

    @cached_property
    def turns(self) -> array[int]:
        """array('I'): number of the turn that the token belongs to; a bridge belongs to the turn
        that it answers.
        """
        return array(
            "I", (turn for event in self.events for turn in repeat(event.turn, len(event.ids)))
        )


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One episode, finished or not. The derived sequences run over all traces, end to end, and have
    equal length.

    Train on `segments()`: with several traces, no model has seen the tokens end to end.
    """

    job: Job
    """The job that was played."""
    header: Header
    """Versions that it was played with."""
    events: Sequence[Event]
    """The journal behind its header, in the order in which things happened."""
    extras: Mapping[str, Extra] = field(default_factory=dict)
    """Arrays beside the journal, by name: those that were asked for and that the episode has."""

    @property
    def closed(self) -> Closed | None:
        """The last event once the episode has ended."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Closed) else None

    @property
    def stop(self) -> Stop | None:
        """Why it ended; None while it is being played."""
        return self.closed.stop if self.closed else None

    @property
    def reward(self) -> float | None:
        """The reward; None when it was not graded, or is being played."""
        return self.closed.reward if self.closed else None

    @property
    def rewards(self) -> Mapping[str, float]:
        """Rewards of single agents (`Grade.rewards`), by their names in `Job.models`."""
        return self.info.get(AGENT_REWARDS, {}) if self.job.models else {}

    @property
    def failure(self) -> FailureClass | None:
        """Party at fault, where it failed."""
        return self.closed.failure if self.closed else None

    @property
    def info(self) -> Mapping[str, Json]:
        """The grader's facts; for a failure, the reason."""
        return self.closed.info if self.closed else {}

    @property
    def graded(self) -> bool:
        """True if it has a reward and may be trained on."""
        return self.stop in GRADED

    @cached_property
    def tokens(self) -> array[int]:
        """array('I'): every token of every trace."""
        return array("I", b"".join(event.ids for event in self.spans))

    @cached_property
    def mask(self) -> bytes:
        """One byte per token: 1 where the policy sampled it, else 0."""
        return _mask(self.spans)

    @cached_property
    def logprobs(self) -> array[float]:
        """array('f'), one per token: 0.0 where the mask is 0."""
        return _logprobs(self.spans)

    @cached_property
    def teacher_logprobs(self) -> Mapping[str, array[float]]:
        """array('f') by the teacher's name, one per token: 0.0 where the mask is 0. Empty without
        `Job.teachers`.
        """
        return _teacher_logprobs(self.extras, self.mask)

    @cached_property
    def versions(self) -> list[str | None]:
        """One entry per token: the weight version that sampled it, None where the mask is 0."""
        return _versions(self.spans)

    @cached_property
    def traces(self) -> list[int]:
        """Lengths of the traces; their sum is the number of tokens."""
        return [
            len(prompt.ids) + sum(len(event.ids) for event in response)
            for prompt, response in self.trace_events()
        ]

    @cached_property
    def spans(self) -> Sequence[TokenEvent]:
        """The events that have tokens, in the order of `tokens`: trace by trace."""
        return [event for prompt, response in self.trace_events() for event in (prompt, *response)]

    @property
    def turns(self) -> int:
        """Number of turns that the policy finished."""
        return sum(isinstance(event, Observed) for event in self.events)

    @property
    def turn_rewards(self) -> list[float | None]:
        """`Observed.reward` of each finished turn, by its number. Reading it decodes texts."""
        finished = [event for event in self.events if isinstance(event, Observed)]
        return [event.reward for event in sorted(finished, key=lambda event: event.turn)]

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled, over all traces."""
        return sum(len(event.ids) for event in self.events if isinstance(event, Sampled))

    @cached_property
    def messages(self) -> list[Message]:
        """The conversation in OpenAI's form. Of an agent program's: that of the first trace, and of
        each later one that goes on from all of it; `conversations` has the others.
        """
        messages: list[Message] = []
        for n, (prompt, response) in enumerate(self.trace_events()):
            if not self.of_agent:  # the traces are one conversation
                messages += [*(() if n else prompt.messages), *_answers(response)]
            elif list(prompt.messages[: len(messages)]) == messages:
                messages = [*prompt.messages, *_answers(response)]
        return messages

    @cached_property
    def conversations(self) -> list[list[Message]]:
        """The conversation of each trace in OpenAI's form: its prompt, its finished turns, and the
        messages that answered them.
        """
        return [[*prompt.messages, *_answers(response)] for prompt, response in self.trace_events()]

    @cached_property
    def of_agent(self) -> bool:
        """True if an agent program played it. Then each trace is a conversation of its own."""
        return any(isinstance(event, Sampled) and event.trace is not None for event in self.events)

    @cached_property
    def kinds(self) -> list[Kind]:
        """The kind of each trace: `main` or `helper` (`rollq.traces`). Reading it decodes texts."""
        if self.of_agent:
            return trace_kinds(self.events)
        return ["main" for _ in self.traces]  # one conversation, shortened or written again

    def segments(self, traces: Traces = "all") -> list[Segment]:
        """The rows to train on: one per trace in which the policy sampled something, of those that
        `traces` chooses. `longest` is the one in which it sampled most.

        Each sampled token is in exactly one segment of `all`. With `history=template` or a
        `context` the prompt of a later trace repeats earlier turns as the template writes them, or
        their summary; that is prompt there, and not trained a second time.

        Raises ContractError for another name, and FunctionError when a function raises or does not
        return segments of the trajectory.
        """
        segments = [
            Segment(
                prompt_ids=prompt.ids,
                events=response,
                prompt=prompt,
                trace=number,
                trajectory=self,
            )
            for number, (prompt, response) in enumerate(self.trace_events())
            if any(isinstance(event, Sampled) and event.ids for event in response)
        ]
        if callable(traces):
            return self._chosen_by(traces, segments)
        if traces == "main":
            return [segment for segment in segments if segment.kind == "main"]
        if traces == "longest":
            return sorted(segments, key=lambda segment: -segment.sampled_tokens)[:1]
        if traces != "all":
            raise ContractError(
                f"no traces {traces!r}: there is all, main, longest, or a function of a "
                "trajectory's segments"
            )
        return segments

    def _chosen_by(
        self, choose: Callable[[Sequence[Segment]], Sequence[Segment]], segments: list[Segment]
    ) -> list[Segment]:
        try:
            chosen = list(choose(tuple(segments)))
            if not all(any(choice is segment for segment in segments) for choice in chosen):
                raise TypeError("it returned something else than segments that it was given")
        except (Exception, SystemExit) as e:
            raise FunctionError(
                f"job {self.job.id}: the function of traces: {type(e).__name__}: {e}"
            ) from e
        return [segment for segment in segments if any(choice is segment for choice in chosen)]

    def trace_events(self) -> list[tuple[Prompt, list[Sampled | Observed]]]:
        """Each trace as its prompt and the events that follow it. The events of several traces may
        be recorded in turns.
        """
        traces: list[tuple[Prompt, list[Sampled | Observed]]] = []
        for event in self.events:
            if isinstance(event, Prompt):
                traces.append((event, []))
            elif isinstance(event, Sampled | Observed):
                traces[-1 if event.trace is None else event.trace][1].append(event)
        return traces


def _answers(events: Iterable[Event]) -> Iterator[Message]:
    for event in events:
        if isinstance(event, Observed):
            yield from (event.message, *event.replies)


def _mask(spans: Iterable[TokenEvent]) -> bytes:
    return b"".join(
        (b"\1" if isinstance(event, Sampled) else b"\0") * len(event.ids) for event in spans
    )


def _logprobs(spans: Iterable[TokenEvent]) -> array[float]:
    parts = (
        event.logprobs if isinstance(event, Sampled) else bytes(4 * len(event.ids))
        for event in spans
    )
    return array("f", b"".join(parts))


def _teacher_logprobs(extras: Mapping[str, Extra], mask: bytes) -> Mapping[str, array[float]]:
    """The logprobs of each teacher among the extras, one per token of the mask."""
    by_name = {}
    for name, extra in extras.items():
        if teacher := teacher_of(name):
            scores = iter(little_endian("f", extra.data))
            by_name[teacher] = array(
                "f", (next(scores) if is_sampled else 0.0 for is_sampled in mask)
            )
    return by_name


def _versions(spans: Iterable[TokenEvent]) -> list[str | None]:
    versions: list[str | None] = []
    for event in spans:
        if isinstance(event, Sampled):
            for span in event.versions:
                versions += [span.version] * (span.end - span.start)
        else:
            versions += [None] * len(event.ids)
    return versions
