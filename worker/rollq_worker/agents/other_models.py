"""Turns of models that are not trained, in the episode of an agent program.

Their conversations have traces of their own, which the journal does not have: it has each reply, by
the request that it answers, so that an attempt that resumes is given it again.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from rollq.events import Event, Replied, Sampled
from rollq.job import Job
from rollq_worker.agents.traces import RendererOf, Trace, TraceTree, Turn
from rollq_worker.agents.turn_request import TurnRequest, request_key


class OtherModels:
    """The traces and the replies of these models in one attempt."""

    def __init__(self, job: Job, renderer_of: RendererOf, recorded: Sequence[Event]) -> None:
        """`recorded`: the events of an earlier attempt's journal."""
        self.tree = TraceTree(replace(job, routed_experts={}), renderer_of)
        self._waiting: defaultdict[str, deque[Replied]] = defaultdict(deque)
        """Replies that the agent was not given in this attempt, by request."""
        self._given: dict[int, Replied] = {}
        """Replies that it was given, by the number of the turn."""
        self._turns = 0
        for event in recorded:
            if isinstance(event, Replied):
                self._waiting[event.request].append(event)

    def begin(self, trace: Trace, job: Job) -> Turn:
        """The next turn of a trace. Its number is below those of the trained turns."""
        self._turns += 1
        return self.tree.begin(trace, -self._turns, job)

    def recorded(self, turn: Turn, request: TurnRequest) -> Sampled | None:
        """The tokens that an earlier attempt recorded; None: the engine must be asked."""
        waiting = self._waiting.get(request_key(request))
        if not waiting:
            return None
        reply = self._given[turn.number] = waiting.popleft()
        return Sampled(
            turn=turn.number,
            ids=reply.ids,
            logprobs=array("f", bytes(4 * len(reply.ids))),
            versions=(),
            finish=reply.finish,
            text=reply.text,
            at=reply.at,
            seconds=reply.seconds,
            trace=turn.trace.number,
            asked=request.options,
        )

    def replied(self, turn: Turn, request: TurnRequest) -> Replied:
        """Event for the journal of a turn that is over."""
        first = turn.pieces[0]
        last = turn.pieces[-1]
        reply = self._given[turn.number] = Replied(
            model=request.model,
            request=request_key(request),
            ids=turn.sampled,
            finish=last.finish,
            text="".join(piece.text for piece in turn.pieces),
            at=first.at,
            seconds=last.at + last.seconds - first.at,
        )
        return reply

    def not_delivered(self, turn: Turn) -> None:
        """The agent has hung up before it was given this turn."""
        reply = self._given[turn.number]
        self._waiting[reply.request].append(reply)
