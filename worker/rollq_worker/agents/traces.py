"""The traces of an agent program's episode, as a tree, and where a request goes on in it.

A request whose conversation is an earlier one and new replies behind it extends that trace: what
was sampled stays as ids, and only a bridge is added. A conversation that leaves an earlier one
behind one of its turns opens a trace whose prompt begins with the same ids. Any other conversation
opens a trace that the chat template writes. So each sampled token is sampled, and trained, in
exactly one trace. It knows no engine, no journal and no HTTP.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import time
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Protocol, cast

from rollq.errors import JobFailure
from rollq.events import Message, Observed, Prompt, Sampled
from rollq.job import Job, Json
from rollq_worker.agents.turn_request import (
    ONE_CALL,
    RequestRefused,
    TurnRequest,
    digest_of,
    likeness,
    longer,
    opening_digest,
)
from rollq_worker.agents.unreadable_calls import unreadable_call
from rollq_worker.episode.messages import CallIds, assistant_message
from rollq_worker.episode.next_prompt import bridge_behind
from rollq_worker.episode.token_checks import TokenChecks
from rollq_worker.failures import errors_become
from rollq_worker.protocols import ReadTurn, Renderer


@dataclass(slots=True)
class Turn:
    """One turn, sampled or being sampled."""

    number: int
    trace: Trace
    digest: bytes
    """Digest of the conversation that it answers."""
    begin: int
    """Number of ids in its trace before it."""
    behind: int
    """Number of its trace's messages before it."""
    job: Job
    """The job with the options of its request."""
    pieces: list[Sampled] = field(default_factory=list)
    message: Message | None = None
    """The reply to the agent, once the turn is over."""
    read: ReadTurn | None = None
    end: int = 0
    """Number of ids in its trace up to its end."""
    answered: bool = False
    """True once its trace goes on behind it, or is over."""
    ended_at: float = 0.0
    cut: bool = False
    """True if it ended because a budget of tokens was spent."""
    stop_text: str | None = None
    """The text at which the agent asked it to stop, if it ended there."""

    @property
    def sampled(self) -> array[int]:
        count = sum(len(piece.ids) for piece in self.pieces)
        return self.trace.ids[self.begin : self.begin + count]

    @property
    def text(self) -> str:
        """The turn's words to the agent, once it is over."""
        assert self.message is not None, "it is over"
        return str(self.message["content"])

    @property
    def calls(self) -> Sequence[Json]:
        """The turn's calls in the agent's message, once it is over."""
        assert self.message is not None, "it is over"
        return cast("Sequence[Json]", self.message.get("tool_calls", ()))

    @property
    def conversation(self) -> list[Message]:
        """The messages that it answers."""
        return self.trace.messages[: self.behind]

    def observed(
        self, replies: Sequence[Message], ids: array[int], seconds: float = 0.0
    ) -> Observed:
        """Event that ends the turn, which is over: the replies, and the bridge behind them."""
        assert self.message is not None and self.read is not None, "it is over"
        return Observed(
            turn=self.number,
            message=self.message,
            actions=[],
            replies=replies,
            ids=ids,
            errors=tuple(self.read.errors),
            extra_calls=max(0, len(self.read.calls) - len(self.calls)),
            at=self.ended_at,
            seconds=seconds,
            trace=self.trace.number,
        )


class RendererOf(Protocol):
    def __call__(
        self, tools: Sequence[Json], *, several: bool = False, cut: bool = False
    ) -> Renderer:
        """The renderer for these tools. Raises JobFailure when the template cannot be trusted with
        them, with `several` results of one turn, or with replies to a turn that was `cut`.
        """
        ...


class Trace:
    """One token sequence that the engine sees, append-only."""

    def __init__(
        self,
        number: int,
        prompt: Prompt,
        renderer: Renderer,
        job: Job,
    ) -> None:
        self.number = number
        self.renderer = renderer
        self.model = prompt.model
        self.tools = list(prompt.tools)
        self.messages: list[Message] = list(prompt.messages)
        self.digest = digest_of(prompt)
        """Digest of the conversation so far, without a turn that has no answer."""
        self.ids = array("I", prompt.ids)
        self.checks = TokenChecks(job, renderer)
        self.checks.check_event(prompt)
        self.turn: Turn | None = None
        """The last turn; None before the first one."""


class TraceTree:
    """All traces of one episode."""

    def __init__(self, job: Job, renderer_of: RendererOf) -> None:
        self.traces: list[Trace] = []
        self.job = job
        self._renderer_of = renderer_of
        self._waiting: dict[bytes, list[Trace]] = {}
        """Traces whose next turn was not begun, by the digest of their conversation. Equal requests
        have one each.
        """
        self._prompts: dict[bytes, tuple[Trace, int]] = {}
        """Trace and number of ids at which each conversation that was sampled from ends."""
        self._turns: dict[bytes, Turn] = {}
        """Finished turns by the digest of the conversation that ends with them."""
        self._replies: defaultdict[bytes, dict[bytes, Message]] = defaultdict(dict)
        """Replies to the agent by the digest of the conversation that ends with them, for each
        `likeness`.
        """
        self._call_ids = CallIds()

    def recognised(self, request: TurnRequest) -> TurnRequest:
        """The request with the policy's own turns as they were sampled, whatever its client made of
        them, the results of calls in the calls' order, and with its digests.
        """
        digests = [opening_digest(request.tools, request.model)]
        messages: list[Message] = []
        ids: list[str] = []
        for role, run in groupby(request.messages, itemgetter("role")):
            together = list(run)
            if role == "tool":
                together.sort(key=lambda result: ids.index(result["tool_call_id"]))
            for message in together:
                digest = longer(digests[-1], message)
                if role == "assistant":
                    if digest not in self._turns:
                        message = self._as_sampled(digests[-1], message)
                        digest = longer(digests[-1], message)
                    ids = [call["id"] for call in message.get("tool_calls", ())]
                messages.append(message)
                digests.append(digest)
        return replace(request, messages=messages, digests=digests)

    def _as_sampled(self, before: bytes, message: Message) -> Message:
        alike = list(self._replies.get(likeness(before, message), {}).values())
        if len(alike) != 1:
            return message  # not the policy's, or one of several that are alike
        [reply] = alike
        thought = {key: message[key] for key in ("reasoning_content",) if key in message}
        return {**{key: reply[key] for key in reply if key != "reasoning_content"}, **thought}

    def prompt_for(self, request: TurnRequest) -> Trace | Prompt | tuple[Turn, Observed]:
        """The place at which the request goes on: a trace that waits for its next turn, the prompt
        of a new trace, or the turn that is to be answered and its answer. Changes nothing. Raises
        RequestRefused when the template cannot write it.
        """
        waiting = self._waiting.get(request.digests[-1])
        if waiting:
            return waiting[0]
        try:
            return self._prompt_for(request)
        except JobFailure as e:
            raise RequestRefused(
                f"the chat template cannot write this conversation: {e}", param="messages"
            ) from e

    def _prompt_for(self, request: TurnRequest) -> Prompt | tuple[Turn, Observed]:
        with errors_become(JobFailure, "rendering the conversation"):
            same = self._prompts.get(request.digests[-1])
            if same is not None:
                trace, length = same
                return self._prompt(trace.ids[:length], request)
            for count in range(len(request.messages) - 1, 0, -1):
                turn = self._turns.get(request.digests[count])
                if turn is not None:
                    continuation = self._behind(turn, request, request.messages[count:])
                    if continuation is not None:
                        return continuation
            renderer = self._renderer_of(request.tools)
            ids = renderer.open(request.messages, request.tools)
            return self._prompt(ids, request)

    def _prompt(self, ids: array[int], request: TurnRequest) -> Prompt:
        return Prompt(
            ids=ids,
            messages=request.messages,
            tools=request.tools,
            at=time.time(),
            model=request.model,
        )

    def _behind(
        self, turn: Turn, request: TurnRequest, replies: Sequence[Message]
    ) -> Prompt | tuple[Turn, Observed] | None:
        """Continuation of the conversation behind a finished turn; None where only the template can
        write it.
        """
        trace = turn.trace
        message = turn.message
        assert message is not None, "it is over"
        last = trace.ids[turn.end - 1]
        if not trace.renderer.replying_roles(last).issuperset(
            str(reply["role"]) for reply in replies
        ):
            return None
        try:
            with errors_become(JobFailure, "rendering the bridge"):
                several = len(replies) > 1
                if several or turn.cut:
                    # whether it can be trusted
                    self._renderer_of(trace.tools, several=several, cut=turn.cut)
                ids = bridge_behind(trace.renderer, last, message, replies)
        except JobFailure:
            return None
        if turn.answered:
            return self._prompt(trace.ids[: turn.end] + ids, request)
        return turn, turn.observed(replies, ids, seconds=time.time() - turn.ended_at)

    def open(self, prompt: Prompt) -> Trace:
        """A new trace."""
        renderer = self._renderer_of(prompt.tools)
        trace = Trace(len(self.traces), prompt, renderer, self.job)
        self.traces.append(trace)
        self._waits(trace)
        return trace

    def answer(self, event: Observed) -> Trace:
        """A turn is answered, so its trace waits for the next one, or is over."""
        trace = self.traces[event.trace or 0]
        turn = trace.turn
        assert turn is not None and turn.message is not None, "its turn is over"
        trace.checks.check_event(event)
        turn.answered = True
        trace.ids.extend(event.ids)
        for message in (turn.message, *event.replies):
            trace.messages.append(message)
            trace.digest = longer(trace.digest, message)
        if len(event.ids) > 0:
            self._waits(trace)
        return trace

    def begin(self, trace: Trace, number: int, job: Job) -> Turn:
        """The next turn of a trace that waits for one. `job` has the options of its request."""
        waiting = self._waiting.pop(trace.digest, [])
        others = [other for other in waiting if other is not trace]
        if others:
            self._waiting[trace.digest] = others
        trace.turn = Turn(number, trace, trace.digest, len(trace.ids), len(trace.messages), job)
        trace.checks.sampled_as(job)
        trace.checks.turn = number
        return trace.turn

    def add(self, turn: Turn, piece: Sampled) -> None:
        """The engine's reply, or a part of it."""
        turn.trace.checks.check_event(piece)
        turn.trace.ids.extend(piece.ids)
        turn.pieces.append(piece)

    def end(self, turn: Turn, *, cut: bool) -> Message:
        """The turn is over. Returns it as the message that the agent is given."""
        turn.cut = cut
        trace = turn.trace
        options = turn.pieces[-1].asked
        with errors_become(JobFailure, "reading the sampled turn"):
            read = turn.read = trace.renderer.read(turn.sampled)
        turn.end = len(trace.ids)
        turn.ended_at = time.time()
        calls = read.calls[:1] if ONE_CALL in options else read.calls
        unreadable = unreadable_call(read, trace.tools)
        if unreadable is not None:
            calls = [unreadable]
            read = replace(read, content="")
        ids = self._call_ids.of(trace.renderer, read, calls)
        turn.message = assistant_message(read, list(zip(ids, calls, strict=True)))
        stops = options.get("stop", ())
        for stop in [stops] if isinstance(stops, str) else stops:
            content, matched, _ = turn.message["content"].partition(stop)
            turn.message["content"] = content
            turn.stop_text = matched or turn.stop_text
        digest = longer(turn.digest, turn.message)
        self._turns[digest] = turn
        self._replies[likeness(turn.digest, turn.message)][digest] = turn.message
        return turn.message

    def _waits(self, trace: Trace) -> None:
        self._waiting.setdefault(trace.digest, []).append(trace)
        self._prompts[trace.digest] = trace, len(trace.ids)

    def leaves(self) -> list[Observed]:
        """Event that ends each trace whose last turn is over and has no answer."""
        last = [trace.turn for trace in self.traces if trace.turn is not None]
        return [
            turn.observed([], array("I"))
            for turn in last
            if turn.message is not None and not turn.answered
        ]
