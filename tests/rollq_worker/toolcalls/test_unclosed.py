"""A call without its end tag: carried out, noted in the journal, counted, and replayed
as it was.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array

from rollq.events import Observed
from rollq.token_stats import count_tokens
from rollq.trajectory import Trajectory
from rollq.wire.events import decode_event, encode_event
from rollq_worker.fakes import END, FakeRenderer
from rollq_worker.protocols import ReadTurn
from rollq_worker.toolcalls import PARSERS
from tests.rollq_worker.episode.episodes import play_with_fakes, run

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
OPEN = CALL.removesuffix("</tool_call>")


class Hermes(FakeRenderer):
    """The fake renderer, with calls in Hermes' format."""

    def read(self, ids: array[int]) -> ReadTurn:
        return PARSERS["hermes"]("".join(chr(id) for id in ids if id != END))


def observed(trajectory: Trajectory) -> list[Observed]:
    return [event for event in trajectory.events if isinstance(event, Observed)]


def test_it_is_carried_out_and_noted():
    trajectory = run(OPEN, CALL, "bye", renderer=Hermes())
    first, second, _ = observed(trajectory)
    assert first.actions == [{"name": "add", "arguments": {"a": 1}, "unclosed": True}]
    assert second.actions == [{"name": "add", "arguments": {"a": 1}}]
    assert (first.replies, first.errors) == ([replace_id(second.replies[0], "call_0")], ())
    assert count_tokens(trajectory).unclosed_turns == 1
    assert count_tokens(trajectory).malformed_turns == 0


def replace_id(reply: dict[str, str], id: str) -> dict[str, str]:
    return {**reply, "tool_call_id": id}


def test_only_a_call_that_is_carried_out_counts():
    trajectory = run(CALL + OPEN, "bye", renderer=Hermes())
    assert observed(trajectory)[0].extra_calls == 1
    assert count_tokens(trajectory).unclosed_turns == 0


def test_the_journal_keeps_it_and_a_replay_agrees():
    first = observed(run(OPEN, "bye", renderer=Hermes()))[0]
    read = decode_event(encode_event(first, "j"), "j")
    assert isinstance(read, Observed) and read.actions == first.actions
    events = run(OPEN, OPEN, "bye", renderer=Hermes()).events[:-1]
    again = play_with_fakes(OPEN, OPEN, "bye", renderer=Hermes(), recorded=events[:4])
    assert [event.actions for event in observed(again)][:1] == [first.actions]
