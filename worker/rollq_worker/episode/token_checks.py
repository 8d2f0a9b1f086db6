"""Invariants of an episode's tokens, checked before each event is recorded.

The invariant: a trajectory that passes may be trained on. A check takes time in proportion to the
event, never to the history. A breach is a typed failure: EngineBreach for what was sampled,
JobBreach for what rollq made. The checks know events, and which tokens end a turn. They know
nothing of engines or the wire.

    I1   each request sends what was sent before, plus what was sampled, plus a bridge
    I2   one logprob for each sampled token, and no more tokens than were asked for: checked where
         the engine's reply is read
    I3   a trace is a prompt, then sampled tokens and bridges in turn, without gap or overlap
    I4   `stop` by a token ends in a stop token, and nothing is sampled after one; a stop token may
         also come with another finish reason, because an engine tests the length first
    I5   a bridge starts right after a token that ends a turn, or with one
         (rollq_worker.tokens.injection_guard keeps texts from becoming control tokens)
    I6   logprobs are finite and not above 0: checked where the engine's reply is read
    I7   the order of versions is counted (`rollq.token_stats`), not enforced: a router may send a
         turn to an older server
    I8   ids that rollq makes are inside the vocabulary; sampled ones may be a model's padding ids
    I9   each turn is sampled in one trace, and answered once
    I10  the wire gives back what it was given: checked in tests of `rollq.wire.codec`
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from functools import lru_cache

from rollq.errors import EngineBreach, JobBreach
from rollq.events import Event, Finish, Observed, Prompt, Sampled
from rollq.job import Job
from rollq_worker.episode.sampler import end_ids, ends_anywhere
from rollq_worker.protocols import Renderer


class TokenChecks:
    """The checks of one episode. Every event is checked, in order."""

    def __init__(self, job: Job, renderer: Renderer) -> None:
        self.vocabulary = renderer.vocab_size
        self.is_end = renderer.is_end
        self._stop_ids = renderer.stop_ids
        self.sampled_as(job)
        self.length = 0
        """Tokens in the present trace."""
        self.read = 0
        """Tokens that the engine has read: all up to the last sampled one, without that."""
        self.turn = 0
        self.last: Event | None = None
        self.last_id = -1

    def sampled_as(self, job: Job) -> None:
        """The next turn is sampled with this job's parameters."""
        self.job = job
        self.end_ids = end_ids(job, self._stop_ids)
        self.ends_anywhere = ends_anywhere(job)

    def check_request(self, ids: array[int]) -> None:
        """I1: the ids about to be sent are those of the events so far. Raises JobBreach."""
        if len(ids) != self.length or not ids or ids[-1] != self.last_id:
            raise JobBreach(
                f"{self._at()}: {len(ids)} ids are about to be sent, the events hold {self.length}"
            )
        if not self._may_sample():
            raise JobBreach(
                f"{self._at()}: nothing may be sampled after {type(self.last).__name__}"
            )

    def check_event(self, event: Event) -> None:
        """Raises EngineBreach or JobBreach."""
        if isinstance(event, Prompt):
            self._prompt(event)
        elif isinstance(event, Sampled):
            self._sampled(event)
        elif isinstance(event, Observed):
            self._observed(event)
        self.last = event

    def _prompt(self, event: Prompt) -> None:
        rewritten = isinstance(self.last, Observed) and not self.last.ids
        if self.last is not None and not rewritten:
            raise JobBreach(f"{self._at()}: a trace was opened after {type(self.last).__name__}")
        if not event.ids:
            raise JobBreach(f"{self._at()}: the prompt is empty")
        self._inside(_highest(event.ids), "the prompt")
        self.length = self.read = 0
        self._extend(event.ids)

    def _sampled(self, event: Sampled) -> None:
        """Checks I3, I4 and I9."""
        if not self._may_sample() or event.turn != self.turn:
            last = type(self.last).__name__
            raise JobBreach(f"{self._at()}: tokens of turn {event.turn} were sampled after {last}")
        ended = event.ids[-1] in self.end_ids
        if event.finish is Finish.STOP and not (ended or self.ends_anywhere):
            raise self._breach(f"says stop and ends in token {event.ids[-1]}, which ends no turn")
        if not self.end_ids.isdisjoint(event.ids[:-1]):
            raise self._breach("goes on after a stop token")
        self._extend(event.ids)
        self.read = self.length - 1

    def _observed(self, event: Observed) -> None:
        """Checks I5, I8 and I9."""
        if not isinstance(self.last, Sampled) or event.turn != self.turn:
            raise JobBreach(
                f"{self._at()}: turn {event.turn} was answered after {type(self.last).__name__}"
            )
        if event.ids:
            if not (self.is_end(self.last_id) or self.is_end(event.ids[0])):
                raise JobBreach(
                    f"{self._at()}: the bridge starts after token {self.last_id}, which ends no "
                    "turn"
                )
            self._inside(max(event.ids), "the bridge")
            self._extend(event.ids)
        self.turn += 1

    def _may_sample(self) -> bool:
        """True if the policy may sample now: after a prompt, a bridge, or a generation that was
        interrupted before its end.
        """
        if isinstance(self.last, Sampled):
            return self.last.finish is Finish.ABORT and self.last_id not in self.end_ids
        return isinstance(self.last, Prompt) or (
            isinstance(self.last, Observed) and len(self.last.ids) > 0
        )

    def _inside(self, highest: int, what: str) -> None:
        """I8: the ids are inside the vocabulary. Arrays of type I hold nothing below 0."""
        if highest >= self.vocabulary:
            raise JobBreach(
                f"{self._at()}: {what} holds id {highest}, beyond the vocabulary of "
                f"{self.vocabulary}"
            )

    def _extend(self, ids: array[int]) -> None:
        self.length += len(ids)
        self.last_id = ids[-1]

    def _breach(self, what: str) -> EngineBreach:
        return EngineBreach(f"{self._at()}: the engine's reply {what}")

    def _at(self) -> str:
        return f"{self.job.id}, turn {self.turn}, token {self.length}"


def _highest(ids: array[int]) -> int:
    blocks = [ids[start : start + 256] for start in range(0, len(ids), 256)]
    return max(_highest_of(block.tobytes()) for block in blocks)


@lru_cache(512)  # first prompts mostly begin alike
def _highest_of(block: bytes) -> int:
    return max(array("I", block))
