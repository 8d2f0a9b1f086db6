"""The journal of an agent program's episode, and the turns that an earlier attempt recorded.

The program is started again from the beginning. As long as it repeats its requests, it is answered
from the journal. Its steps are replayed by `rollq_worker.episode.resume`. It knows no HTTP.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from rollq.events import Event, Message, Observed, Prompt, Sampled
from rollq.job import Job
from rollq_worker.agents.traces import TraceTree, Turn
from rollq_worker.agents.turn_request import TurnRequest, longer, options_key, with_options
from rollq_worker.episode.sampler import Sampler
from rollq_worker.failures import Diverged
from rollq_worker.protocols import Journal

HINT = (
    "an agent that is to resume must ask the same again: no clocks, random ids or unordered "
    "results of parallel calls in its messages"
)


class AgentJournal(Journal, Protocol):
    """The record of an attempt's events."""

    def hold_back(self, event: Event) -> None:
        """Records an event, which `write` or the journal itself makes durable soon."""
        ...

    def write(self) -> None:
        """Makes everything that is held back durable. Raises Fenced."""
        ...


def replayed(
    recorded: Sequence[Event],
    job: Job,
    tree: TraceTree,
    sampler_of: Callable[[Turn], Sampler],
) -> dict[int, Turn]:
    """The recorded turns by their numbers, with the traces of `tree` as they were where the journal
    ends.
    """
    turns: dict[int, Turn] = {}
    for event in recorded:
        if isinstance(event, Prompt):
            tree.open(event)
        elif isinstance(event, Sampled):
            turn = turns.get(event.turn)
            if turn is None:
                trace = tree.traces[event.trace or 0]
                turn = turns[event.turn] = tree.begin(
                    trace, event.turn, with_options(job, event.asked)
                )
            tree.add(turn, event)
            sampler = sampler_of(turn)
            if sampler.is_over(event):
                tree.end(turn, cut=not sampler.is_complete(event))
        elif isinstance(event, Observed):
            turn = turns[event.turn]
            if turn.message is None:  # interrupted, and then there was no room
                tree.end(turn, cut=True)
            tree.answer(event)
    return turns


class Answers:
    """Finished turns that the agent has not been given in this attempt, by request."""

    def __init__(self) -> None:
        self._turns: defaultdict[tuple[bytes, str], deque[Turn]] = defaultdict(deque)
        self._recorded: dict[int, Turn] = {}
        """Turns of an earlier attempt, by their number."""
        self._overlap = False
        """True once the agent had several requests under way."""
        self._ended_at = 0.0

    def add(self, turn: Turn, *, recorded: bool) -> None:
        options = turn.pieces[-1].asked
        self._turns[turn.digest, options_key(options)].append(turn)
        if recorded:
            first = turn.pieces[0]
            last = turn.pieces[-1]
            self._overlap = self._overlap or first.at < self._ended_at
            self._ended_at = last.at + last.seconds
            self._recorded[turn.number] = turn

    def take(self, request: TurnRequest) -> Turn | None:
        """The turn that answers the request; None if the engine must be asked."""
        key = request.digests[-1], options_key(request.options)
        waiting = self._turns.get(key)
        if not waiting:
            return None
        turn = waiting.popleft()
        self._recorded.pop(turn.number, None)
        return turn

    def divergence(self, request: TurnRequest) -> Diverged | None:
        """The error of a request that no turn answers, if the agent makes one request at a time;
        None when all turns were requested, or some were under way at once.
        """
        if not self._recorded or self._overlap:
            return None
        return Diverged(f"{_difference(next(iter(self._recorded.values())), request)}; {HINT}")

    def check_finished(self) -> None:
        """Raises Diverged when the agent has ended without asking all that it asked before."""
        if self._recorded:
            count = len(self._recorded)
            raise Diverged(
                f"the agent did not ask again for {count} of the turns in its journal; {HINT}"
            )


def _difference(turn: Turn, request: TurnRequest) -> str:
    """The difference between a request and the one that a turn answered."""
    conversation = turn.conversation
    for n, (was, now) in enumerate(zip(conversation, request.messages, strict=False)):
        if longer(b"", was) != longer(b"", now):
            return f"message {n} of the agent's request was {_brief(was)} and is {_brief(now)} now"
    if len(conversation) != len(request.messages):
        count = len(request.messages)
        return f"the agent's request had {len(conversation)} messages and has {count} now"
    options = turn.pieces[-1].asked
    if options_key(options) != options_key(request.options):
        return (
            f"the agent's request asked for {options!r:.200} and asks for {request.options!r:.200} "
            "now"
        )
    return "the agent's request has other tools than before"


def _brief(message: Message) -> str:
    text = f"{message['role']}: {message['content'] or message.get('tool_calls', '')}"
    return repr(text if len(text) <= 160 else f"{text[:80]} ... {text[-80:]}")
