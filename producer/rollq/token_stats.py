"""Counts that show how faithful a trajectory's tokens are to what the engine saw, derived from its
events.

None of them is an error. A growing count says that something upstream changed: a template rewrites
history, a policy writes unreadable calls or unusual tokens, or the servers of a fleet disagree
about the weights.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import ne
from zlib import crc32

from rollq.events import Event, Observed, Prompt, Sampled
from rollq.trajectory import Trajectory

REENCODE_EVERY = 8
"""One job in so many has its turns encoded again, because that costs as much as a twentieth of all
else that a worker does.
"""
RECENT = 4
"""Number of earlier prompts that a new one is compared with."""
WORDS = 80
"""Characters that are told of the words that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """The counts of a run are the sums of its trajectories' counts."""

    sent_tokens: int = 0
    """Tokens of all prompts that were sent, from a trajectory's second request on. History counts
    each time it is sent.
    """
    kept_tokens: int = 0
    """Sent tokens that the engine had seen or sampled before in the same place: in a trace, all but
    the bridges.
    """
    traces: int = 0
    malformed_turns: int = 0
    """Number of turns with an unreadable call."""
    unclosed_turns: int = 0
    """Number of turns that ended without the end tag of a call that was carried out."""
    reencoded_turns: int = 0
    """Number of turns whose text was encoded again, all of one job in REENCODE_EVERY."""
    drifted_turns: int = 0
    """Reencoded turns that became other tokens."""
    version_breaks: int = 0
    """Number of times that older weights came back in a trajectory after newer ones."""
    changed_prompts: int = 0
    """Number of traces that go on with an earlier one's conversation under another system
    prompt.
    """

    @property
    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def extension_ratio(self) -> float | None:
        """Share of what was sent that was history kept as it was; None when nothing was
        sent twice.
        """
        return self.kept_tokens / self.sent_tokens if self.sent_tokens else None


def count_tokens(
    trajectory: Trajectory,
    reencode: Callable[[Sequence[array[int]]], Sequence[array[int]]] | None = None,
) -> TokenStats:
    """Counts in one pass over the events. `reencode` decodes the ids of each turn and encodes the
    text, of jobs that their ids choose; without it no drift is counted.
    """
    sent = kept = traces = malformed = unclosed = 0
    turns: list[array[int]] = []
    length = 0  # of the trace so far
    # Tokens of this trace that the engine has seen; None before the first request.
    seen: int | None = None
    turn = array("I")
    for event in trajectory.spans:
        if isinstance(event, Sampled):
            if seen is not None:
                sent += length
                kept += seen
            length += len(event.ids)
            seen = length
            turn.extend(event.ids)
        elif isinstance(event, Observed):
            malformed += bool(event.errors)
            unclosed += any("unclosed" in action for action in event.actions)
            turns.append(turn)
            length += len(event.ids)
            turn = array("I")
        elif isinstance(event, Prompt):
            traces += 1
            turn = array("I")
            length = len(event.ids)
            if seen is not None:
                seen = 0  # a new trace keeps nothing
    reencoded = reencode(turns) if reencode and is_reencoded(trajectory.job.id) else []
    return TokenStats(
        sent_tokens=sent,
        kept_tokens=kept,
        traces=traces,
        malformed_turns=malformed,
        unclosed_turns=unclosed,
        reencoded_turns=len(reencoded),
        drifted_turns=sum(map(ne, turns, reencoded)),
        version_breaks=_version_breaks(trajectory),
        changed_prompts=sum(1 for _ in changed_prompts(trajectory.events)),
    )


def is_reencoded(job_id: str) -> bool:
    """True if this job's turns are encoded again, in each attempt."""
    return crc32(job_id.encode()) % REENCODE_EVERY == 0


def changed_prompts(events: Iterable[Event]) -> Iterator[str]:
    """The words that differ, for each trace that goes on with an earlier one's conversation under
    another system prompt.
    """
    earlier = deque[Prompt](maxlen=RECENT)
    for event in events:
        if not isinstance(event, Prompt):
            continue
        before = next((prompt for prompt in earlier if _differ_in_the_system(prompt, event)), None)
        if before is not None:
            was, now = (str(prompt.messages[0]["content"]) for prompt in (before, event))
            yield _difference(was, now)
        earlier.appendleft(event)


def _differ_in_the_system(before: Prompt, now: Prompt) -> bool:
    was = before.messages
    messages = now.messages
    return (
        before.model == now.model
        and 1 < len(was) < len(messages)
        and was[0]["role"] == messages[0]["role"] == "system"
        and was[0] != messages[0]
        and list(was[1:]) == list(messages[1 : len(was)])
    )


def _difference(was: str, now: str) -> str:
    old, new = was.split(), now.split()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    before, after = (" ".join(words)[:WORDS] for words in (old, new))
    return f"{before!r} became {after!r}"


def _version_breaks(trajectory: Trajectory) -> int:
    """Breaks in the order in which tokens were sampled, which is not that of the traces."""
    breaks = 0
    current = ""
    earlier: set[str] = set()
    for event in trajectory.events:
        if not isinstance(event, Sampled):
            continue
        for span in event.versions:
            if span.version != current:
                current = span.version
                breaks += current in earlier
                earlier.add(current)
    return breaks
