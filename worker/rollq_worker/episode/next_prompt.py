"""Prepares the prompt of the next turn: a bridge in the same trace, or the prompt of a new one.

A trace is left where the chat template writes its history differently and the job wants that, and
where the job's context shortens it. Sampled tokens stay trainable in the trace that is left. In the
new one they are context.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollq.errors import JobFailure
from rollq.events import Message, Prompt, Stop
from rollq.job import History, Job
from rollq_worker.episode.resume import Recording
from rollq_worker.episode.sampler import room
from rollq_worker.failures import errors_become
from rollq_worker.protocols import Context, Engine, Renderer


@dataclass(frozen=True, slots=True)
class NextPrompt:
    """Continuation behind a turn."""

    replies: list[Message]
    """The replies to it, and the context's request."""
    bridge: array[int] = field(default_factory=lambda: array("I"))
    opened: Prompt | None = None
    stop: Stop | None = None
    """Reason why there is no room for another turn."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The present trace, up to a turn that is over."""

    ids: array[int]
    messages: list[Message]
    sampled: array[int]
    """The ids of the turn."""


class NextPrompts:
    """Prepares the prompts of one episode."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        renderer: Renderer,
        recording: Recording,
        context: Context | None,
    ) -> None:
        self.summing_up = False
        """True while the policy owes the answer to the context's request."""
        self._job = job
        self._engine = engine
        self._renderer = renderer
        self._recording = recording
        self._context = context
        self._first: Prompt

    def begin(self, first: Prompt) -> None:
        """Raises JobFailure for a first prompt that the context would have to shorten."""
        self._first = first
        length = len(first.ids)
        over = self._context.over if self._context else 0
        if 0 < over < length:
            raise JobFailure(
                f"the first prompt of {length} tokens is longer than over={over} in the job's "
                "context"
            )

    def behind(self, trace: Trace, replies: list[Message], turns_left: int) -> NextPrompt:
        """The continuation behind the turn that these replies answer, with so many turns left.
        Raises TurnRefused.
        """
        ids, opened = self._go_on(trace, replies)
        context = self._context
        if context is not None:
            tokens = len(opened.ids) if opened else len(trace.ids) + len(ids)
            request = ""
            if replies and turns_left > 1 and not self.summing_up:
                request = context.request_for(tokens)
            if request:
                self.summing_up = True
                replies = [*replies, {"role": "user", "content": request}]
                ids, opened = self._go_on(trace, replies)
            else:
                shorter = self._shortened(context, [*trace.messages, *replies], tokens)
                if shorter:
                    ids = array("I")
                    opened = self._opened(shorter)
        length = len(opened.ids) if opened else len(trace.ids) + len(ids)
        if not self._fits(length, new_trace=opened is not None):
            return NextPrompt(replies, stop=Stop.LENGTH)
        return NextPrompt(replies, ids, opened)

    def _go_on(self, trace: Trace, replies: Sequence[Message]) -> tuple[array[int], Prompt | None]:
        """The bridge behind the turn, or the prompt of the trace that the template's rewriting
        opens. Neither without replies.
        """
        if not replies:
            return array("I"), None
        opened = self._rewritten(trace, replies)
        if opened is not None:
            return array("I"), opened
        with errors_become(JobFailure, "rendering the bridge"):
            return bridge_behind(self._renderer, trace.ids[-1], trace.messages[-1], replies), None

    def _rewritten(self, trace: Trace, replies: Sequence[Message]) -> Prompt | None:
        """The prompt of a new trace; None unless the job wants history as the template writes it,
        and that differs from the sampled tokens.

        Raises TurnRefused when the template cannot write the turn.
        """
        if self._job.history is not History.TEMPLATE:
            return None
        with errors_become(JobFailure, "rendering the conversation again"):
            ids = self._renderer.rewritten(
                trace.messages, trace.sampled, replies, self._first.tools
            )
        if ids is None:
            return None
        return self._prompt(ids, [*trace.messages, *replies])

    def _shortened(
        self, context: Context, messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        """The messages that take the place of these; None if they stay."""
        with errors_become(context.failure, "the context"):
            return self._recording.opened(
                lambda: context.shorten(self._first.messages, messages, tokens)
            )

    def _opened(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a trace that begins with these messages. Raises TurnRefused."""
        with errors_become(JobFailure, "rendering the shortened conversation"):
            return self._prompt(self._renderer.reopen(messages, self._first.tools), messages)

    def _prompt(self, ids: array[int], messages: Sequence[Message]) -> Prompt:
        return Prompt(ids=ids, messages=messages, tools=self._first.tools, at=time.time())

    def _fits(self, length: int, new_trace: bool) -> bool:
        """True if there is room for another turn."""
        recorded = self._recording.another_turn_followed(new_trace)
        if recorded is None:
            return room(self._job, self._engine, length) > 0
        return recorded


def bridge_behind(
    renderer: Renderer,
    last: int,
    message: Message,
    replies: Sequence[Message],
) -> array[int]:
    """The tokens between the turn `message`, whose last token is `last`, and the next one. They
    also close a turn that has no end token. Raises JobFailure.
    """
    ids = array("I")
    if not renderer.is_end(last):
        last = renderer.close(message, replies)
        ids.append(last)
    ids.extend(renderer.bridge(message, replies, last))
    return ids
