"""An episode cut into turns, from an exported record; a journal adds what only it has: tools and
errors.

Pure. Raises KeyError, TypeError, ValueError and the like for a record that is none;
`conversation.page` turns them into one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rollq.events import Message, Observed, Prompt
from rollq.export.transcript import trace_words
from rollq.trajectory import Trajectory


@dataclass(slots=True, kw_only=True)
class Opening:
    """How a trace begins."""

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
    """What the engine wrote, of a turn without a message."""
    reward: float | None = None
    """Of its actions, where the environment gave them one."""
    opens: Opening | None = None
    """The trace that it is the first turn of, where each is a conversation of its own."""
    number: int = 0
    """Of the turn in the episode."""
    asked: dict[str, Any] = field(default_factory=dict)
    """What an agent program's request asked for."""
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
    """What an agent program did in the environment: `rollq.export.record.steps`."""


def of_record(record: Mapping[str, Any]) -> Episode:
    """The turns of an exported record."""
    if record.get("conversations"):
        return _of_traces(record)
    prompt, turns = _sampled_runs(record)
    for number, turn in enumerate(turns):
        turn.number = number
    _divide_pieces(turns, record.get("pieces") or ())
    messages = list(record["messages"])
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    # Assistant messages of the first prompt were not sampled, and a turn that nothing answered has
    # no message.
    first = max(0, len(answers) - len(turns) + ("unanswered" in record))
    answers = answers[first:]
    for turn, start, end in zip(turns, answers, [*answers[1:], len(messages)], strict=False):
        turn.message, turn.replies = messages[start], messages[start + 1 : end]
    rewards = record.get("turn_rewards") or ()
    for turn, reward in zip(turns, rewards, strict=False):
        turn.reward = reward
    if turns and turns[-1].message is None:
        turns[-1].text = str(record.get("unanswered") or "")
    episode = Episode(
        opening=messages[: answers[0]] if answers else messages, prompt=prompt, turns=turns
    )
    episode.steps = list(record.get("steps") or ())
    return _with_times(episode, record.get("times") or ())


def _of_traces(record: Mapping[str, Any]) -> Episode:
    """The turns of an episode whose traces are conversations of their own, trace by trace."""
    episode, pieces, at = (
        Episode(opening=[], prompt=0, turns=[]),
        iter(record.get("pieces") or ()),
        0,
    )
    for number, (trace, length) in enumerate(
        zip(record["conversations"], record["traces"], strict=True)
    ):
        own = {
            name: record[name][at : at + length]
            for name in ("tokens", "mask", "logprobs", "versions")
        }
        taken, left = [], sum(own["mask"])
        while left > 0 and (piece := next(pieces, None)):
            taken.append(piece)
            left -= piece[0]
        found = of_record({**trace, **own, "pieces": taken})
        opening = Opening(
            words=trace_words(number, trace), messages=found.opening, prompt=found.prompt
        )
        for turn, name in zip(found.turns, trace["turns"], strict=True):
            turn.number = int(name)
        if found.turns:
            found.turns[0].opens = opening
        else:
            _add_masked(episode, found.prompt)
        episode.turns += found.turns
        at += length
    episode.steps = list(record.get("steps") or ())
    return _with_times(episode, record.get("times") or ())


def _with_times(episode: Episode, times: Sequence[Any]) -> Episode:
    """The times of `rollq.export.record.times_of`, and their sums at the turns."""
    by_number = {turn.number: turn for turn in episode.turns}
    for what, at, seconds, number in times:
        episode.times.append([str(what), float(at), float(seconds), int(number)])
        if number not in by_number:
            continue
        notes = by_number[number].notes
        if what == "engine":
            notes["engine_s"] = notes.get("engine_s", 0.0) + float(seconds)
        elif what == "agent":
            notes["agent_s"] = notes.get("agent_s", 0.0) + float(seconds)
        elif "engine_s" in notes:  # else it opened the episode
            notes |= {
                "answer_s": notes.get("answer_s", 0.0) + float(seconds),
                "answered_by": str(what),
            }
    return episode


def _sampled_runs(record: Mapping[str, Any]) -> tuple[int, list[Turn]]:
    """The number of tokens before the first turn, and turns with their tokens only."""
    ids, logprobs, versions = record["tokens"], record["logprobs"], record["versions"]
    prompt, at, turns = 0, 0, list[Turn]()
    for sampled, run in groupby(record["mask"]):
        end = at + sum(1 for _ in run)
        if sampled:
            spans = version_spans(versions[at:end])
            turns.append(Turn(ids=ids[at:end], logprobs=logprobs[at:end], versions=spans))
        elif turns:
            turns[-1].masked += end - at
        else:
            prompt = end
        at = end
    return prompt, turns


def version_spans(versions: Iterable[Any]) -> list[list[Any]]:
    """`[version, start, end]` of runs of equal versions."""
    spans, at = [], 0
    for version, run in groupby(versions):
        end = at + sum(1 for _ in run)
        spans.append([version, at, end])
        at = end
    return spans


def _divide_pieces(turns: Sequence[Turn], pieces: Sequence[Any]) -> None:
    left = iter(pieces)
    for turn in turns:
        length = 0
        while length < len(turn.ids) and (piece := next(left, None)):
            length += piece[0]
            turn.pieces.append(list(piece[:2]))
            turn.asked |= dict(*piece[2:])


def add_journal(episode: Episode, trajectory: Trajectory) -> None:
    """Adds what only a journal has to the turns of its record."""
    by_number = {turn.number: turn for turn in episode.turns}
    for event in trajectory.events:
        if isinstance(event, Observed) and event.turn in by_number:
            by_number[event.turn].notes |= {
                "errors": list(event.errors),
                "extra_calls": event.extra_calls,
            }
        elif isinstance(event, Prompt):
            episode.tools = [
                *episode.tools,
                *(tool for tool in event.tools if tool not in episode.tools),
            ]


def _add_masked(episode: Episode, tokens: int) -> None:
    if episode.turns:
        episode.turns[-1].masked += tokens
    else:
        episode.prompt += tokens
