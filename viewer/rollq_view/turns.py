"""An episode cut into turns, from an exported record; a journal adds what only it has: tools and
errors.

Pure. Raises KeyError, TypeError, ValueError and the like for a record that is none;
`conversation.page` turns them into one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rollq.events import Message, Observed, Prompt
from rollq.export.facts import Record
from rollq.export.transcript import trace_heading
from rollq.trajectory import Trajectory

PER_TOKEN = ("tokens", "mask", "logprobs", "versions")
"""Fields of a record with one entry per token."""


@dataclass(slots=True, kw_only=True)
class Opening:
    """Beginning of a trace."""

    words: str
    messages: Sequence[Message]
    prompt: int
    """Tokens before its first turn."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One turn of the policy, and what answered it."""

    ids: list[int] = field(default_factory=list)
    """Sampled tokens."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[list[Any]] = field(default_factory=list)
    """`[version, start, end]` of the sampled tokens."""
    pieces: list[list[Any]] = field(default_factory=list)
    """`[tokens, finish]` of the engine's replies; empty where they are not known."""
    masked: int = 0
    """Tokens between this turn and the next one: never trained."""
    message: Message | None = None
    """The turn as a message; None while nothing has answered it."""
    replies: Sequence[Message] = ()
    text: str = ""
    """The engine's text of a turn without a message."""
    reward: float | None = None
    """Reward of its actions, where the environment gave them one."""
    opens: Opening | None = None
    """The trace that it is the first turn of, where each is a conversation of its own."""
    number: int = 0
    """Number of the turn in the episode."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Options of an agent program's request."""
    notes: dict[str, Any] = field(default_factory=dict)
    """`engine_s`, `answer_s` and `answered_by` where times are known. Only a journal has `errors`
    and `extra_calls`.
    """


@dataclass(slots=True, kw_only=True)
class Episode:
    """The conversation before the first turn, and the turns."""

    opening: list[Message]
    prompt: int
    """Tokens before the first turn."""
    turns: list[Turn]
    tools: Sequence[Any] = ()
    times: list[list[Any]] = field(default_factory=list)
    """`[what, start, seconds, turn]` with what in engine, environment, user, agent."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """Actions of an agent program in the environment: `rollq.export.conversations.steps`."""


def of_record(record: Record) -> Episode:
    """The turns of an exported record."""
    if record.get("conversations"):
        episode = _of_traces(record)
    else:
        episode = _of_conversation(record)
    episode.steps = list(record.get("steps") or ())
    _add_times(episode, record.get("times") or ())
    return episode


def _of_conversation(record: Record) -> Episode:
    """The turns of one conversation, without times and steps."""
    prompt, turns = _sampled_turns(record)
    for number, turn in enumerate(turns):
        turn.number = number
    _add_pieces(turns, record.get("pieces") or ())
    messages = list(record["messages"])
    opening = _add_messages(turns, messages, has_unanswered="unanswered" in record)
    for turn, reward in zip(turns, record.get("turn_rewards") or (), strict=False):
        turn.reward = reward
    if turns and turns[-1].message is None:
        turns[-1].text = str(record.get("unanswered") or "")
    return Episode(opening=messages[:opening], prompt=prompt, turns=turns)


def _add_messages(
    turns: Sequence[Turn], messages: Sequence[Message], *, has_unanswered: bool
) -> int:
    """Gives each turn its message and the replies to it. Returns the number of messages before the
    first turn.
    """
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    # Assistant messages of the first prompt were not sampled, and a turn that nothing answered has
    # no message.
    of_prompt = max(0, len(answers) - len(turns) + has_unanswered)
    starts = answers[of_prompt:]
    ends = [*starts[1:], len(messages)]
    for turn, start, end in zip(turns, starts, ends, strict=False):
        turn.message = messages[start]
        turn.replies = messages[start + 1 : end]
    return starts[0] if starts else len(messages)


def _of_traces(record: Record) -> Episode:
    """The turns of an episode whose traces are conversations of their own, trace by trace."""
    episode = Episode(opening=[], prompt=0, turns=[])
    pieces = iter(record.get("pieces") or ())
    start = 0
    for number, trace in enumerate(record["conversations"]):
        end = start + record["traces"][number]
        per_token = {name: record[name][start:end] for name in PER_TOKEN}
        own_pieces = _take_pieces(pieces, sum(per_token["mask"]))
        part = _of_conversation({**trace, **per_token, "pieces": own_pieces})
        for turn, turn_number in zip(part.turns, trace["turns"], strict=True):
            turn.number = int(turn_number)
        if part.turns:
            heading = trace_heading(number, trace)
            part.turns[0].opens = Opening(words=heading, messages=part.opening, prompt=part.prompt)
        elif episode.turns:
            episode.turns[-1].masked += part.prompt
        else:
            episode.prompt += part.prompt
        episode.turns += part.turns
        start = end
    return episode


def _take_pieces(pieces: Iterator[Any], tokens: int) -> list[Any]:
    """The next pieces with so many tokens."""
    taken: list[Any] = []
    while sum(piece[0] for piece in taken) < tokens:
        piece = next(pieces, None)
        if piece is None:
            break
        taken.append(piece)
    return taken


def _add_times(episode: Episode, times: Sequence[Any]) -> None:
    """Adds the times of `rollq.export.times`, and their sums at the turns."""
    by_number = {turn.number: turn for turn in episode.turns}
    for kind, start, duration, number in times:
        seconds = float(duration)
        episode.times.append([str(kind), float(start), seconds, int(number)])
        if number not in by_number:
            continue
        notes = by_number[number].notes
        if kind in ("engine", "agent"):
            notes[f"{kind}_s"] = notes.get(f"{kind}_s", 0.0) + seconds
        elif "engine_s" in notes:  # else it opened the episode
            notes["answer_s"] = notes.get("answer_s", 0.0) + seconds
            notes["answered_by"] = str(kind)


def _sampled_turns(record: Record) -> tuple[int, list[Turn]]:
    """The number of tokens before the first turn, and turns with their tokens only."""
    ids, logprobs, versions = record["tokens"], record["logprobs"], record["versions"]
    turns: list[Turn] = []
    prompt = 0
    start = 0
    for sampled, run in groupby(record["mask"]):
        end = start + sum(1 for _ in run)
        if sampled:
            spans = version_spans(versions[start:end])
            turns.append(Turn(ids=ids[start:end], logprobs=logprobs[start:end], versions=spans))
        elif turns:
            turns[-1].masked += end - start
        else:
            prompt = end
        start = end
    return prompt, turns


def version_spans(versions: Iterable[Any]) -> list[list[Any]]:
    """`[version, start, end]` of runs of equal versions."""
    spans = []
    start = 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        spans.append([version, start, end])
        start = end
    return spans


def _add_pieces(turns: Sequence[Turn], pieces: Sequence[Any]) -> None:
    left = iter(pieces)
    for turn in turns:
        for length, finish, *options in _take_pieces(left, len(turn.ids)):
            turn.pieces.append([length, finish])
            turn.asked |= dict(*options)


def add_journal(episode: Episode, trajectory: Trajectory) -> None:
    """Adds errors and tools, which only a journal has, to the turns of its record."""
    by_number = {turn.number: turn for turn in episode.turns}
    tools = list(episode.tools)
    for event in trajectory.events:
        if isinstance(event, Observed) and event.turn in by_number:
            notes = by_number[event.turn].notes
            notes["errors"] = list(event.errors)
            notes["extra_calls"] = event.extra_calls
        elif isinstance(event, Prompt):
            tools += [tool for tool in event.tools if tool not in tools]
    episode.tools = tools
