"""An exported trajectory as text for people: the conversation, the policy's tokens, the end.

Reads only the exported form, so a job of the ledger and a line of a file look the same. Texts of
models and environments cannot control the terminal.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from rollq.export.facts import Record

COLOURS = {
    "system": "2",
    "user": "36",
    "assistant": "1;32",
    "tool": "33",
    "warning": "31",
    "label": "2",
}
"""ANSI codes by role."""
LONGEST_TEXT = 1500
"""Number of characters that are shown of one message."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters: those that a terminal obeys or cannot show, except tab and newline. They
include changes of text direction.
"""

Steps = defaultdict[int | None, list[Mapping[str, Any]]]


class Note(NamedTuple):
    """A turn's line beside the role."""

    turn: int
    text: str


class Transcript:
    """One trajectory as text, with colours for a terminal if `colour` is set."""

    def __init__(self, record: Record, *, colour: bool) -> None:
        self._record = record
        self._colour = colour
        self._steps_by_turn = steps_by_turn(record.get("steps") or ())

    def lines(self, facts: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
        """The transcript. `facts` are names and values to show below the head."""
        for name, value in (*self._head(), *facts):
            yield self._coloured("label", f"{name:<9}") + " " + clean(value)
        yield ""
        yield from self._conversation()

    def _head(self) -> Iterator[tuple[str, str]]:
        r = self._record
        task = f"{r['env']}/{r['split']} task {r['task']}"
        yield "job", f"{r['job']}   {task}, attempt {r['attempt']}"
        yield "stop", self._stop()
        yield "tokens", self._tokens()
        versions = sorted({str(version) for version in r["versions"] if version is not None})
        adapter = f" of adapter {r['adapter']}" if r.get("adapter") else ""
        yield "versions", (", ".join(versions) or "-") + adapter
        if r.get("labels"):
            yield "labels", clip(json.dumps(r["labels"], ensure_ascii=False))
        info = dict(r.get("info") or {})
        info.pop("agent_output", None)  # it is shown at the end
        if info:
            yield "info", clip(json.dumps(info, ensure_ascii=False))

    def _stop(self) -> str:
        r = self._record
        reward = "-" if r["reward"] is None else r["reward"]
        text = f"{r['stop'] or 'not yet'}   reward {reward}"
        return f"{text}   failure {r['failure']}" if r.get("failure") else text

    def _tokens(self) -> str:
        r = self._record
        sampled = [logprob for turn in sampled_logprobs(r) for logprob in turn]
        text = f"{len(sampled)} sampled of {len(r['tokens'])}"
        traces = len(r.get("traces") or ())
        if traces > 1:
            text += f" in {traces} traces"
        text += f", {r['turns']} turns"
        if sampled:
            mean = sum(sampled) / len(sampled)
            text += f"; logprobs mean {mean:.3f}, lowest {min(sampled):.3f}"
        return text

    def _conversation(self) -> Iterator[str]:
        notes = self._notes()
        yield from self._steps(None)
        conversations = self._record.get("conversations") or ()
        if not conversations:
            yield from self._trace(self._record["messages"], notes, self._record.get("unanswered"))
        for number, trace in enumerate(conversations):
            yield self._coloured("label", f"-- {trace_heading(number, trace)} --")
            turns = len(trace["turns"])
            yield from self._trace(trace["messages"], notes[:turns], trace.get("unanswered"))
            notes = notes[turns:]
        output = str((self._record.get("info") or {}).get("agent_output") or "")
        if output:
            yield self._coloured("label", "the agent wrote:")
            yield from (f"  {line}" for line in clean(clip(output)).splitlines())

    def _notes(self) -> list[Note]:
        """A note for each turn that was sampled, in the order of the tokens."""
        turns = sampled_logprobs(self._record)
        numbers = [*range(len(turns))]
        conversations = self._record.get("conversations") or ()
        if conversations:
            numbers = [number for trace in conversations for number in trace["turns"]]
        rewards = dict(enumerate(self._record.get("turn_rewards") or ()))
        options = request_options(self._record, turns)
        notes = []
        for place, (number, logprobs) in enumerate(zip(numbers, turns, strict=True)):
            text = turn_note(number, logprobs, rewards.get(number))
            if place in options:
                text += f"; asked for {options[place]}"
            notes.append(Note(number, text))
        return notes

    def _steps(self, turn: int | None) -> Iterator[str]:
        """Actions of an agent program in the environment behind this turn."""
        for step in self._steps_by_turn[turn]:
            name = step["action"]["name"] or "opens"
            call = f"{name} {json.dumps(step['action'].get('arguments'))}"
            yield self._coloured("tool", "step") + f"      {clean(clip(call))}"
            yield from self._indented("tool", step["text"])

    def _trace(
        self, messages: Sequence[Any], notes: Sequence[Note], unanswered: str | None
    ) -> Iterator[str]:
        left = [*notes]
        for message, is_sampled in _sampled_messages(messages, len(notes), unanswered):
            note = left.pop(0) if is_sampled and left else None
            yield from self._message(str(message["role"]), note.text if note else "", message)
            if note:
                yield from self._steps(note.turn)
        for note in left:
            label = self._coloured("warning", f"{'assistant':<9}")
            yield f"{label} {note.text} (never answered)"
            yield from self._steps(note.turn)
        yield from self._indented("assistant", unanswered or "")

    def _message(self, role: str, note: str, message: Mapping[str, Any]) -> Iterator[str]:
        label = self._coloured(role, f"{clean(role):<9}")
        yield f"{label} {self._coloured('label', note)}" if note else label
        yield from self._indented(role, shown_text(message.get("content")))
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            text = f"-> {function.get('name')}({function.get('arguments')})"
            yield f"  {self._coloured(role, clean(clip(text)))}"

    def _indented(self, role: str, text: str) -> Iterator[str]:
        for line in clean(clip(text)).splitlines():
            yield f"  {self._coloured(role, line)}"

    def _coloured(self, role: str, text: str) -> str:
        code = COLOURS.get(role)
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def _sampled_messages(
    messages: Sequence[Any], turns: int, unanswered: str | None
) -> Iterator[tuple[Any, bool]]:
    """Each message, and True where it is a turn of the policy.

    Assistant messages of the prompt were not sampled, and a turn that nothing answered has no
    message.
    """
    assistants = sum(message["role"] == "assistant" for message in messages)
    of_prompt = max(0, assistants - turns + (unanswered is not None))
    for message in messages:
        is_assistant = message["role"] == "assistant"
        yield message, is_assistant and not of_prompt
        if is_assistant and of_prompt:
            of_prompt -= 1


def steps_by_turn(steps: Sequence[Mapping[str, Any]]) -> Steps:
    """Steps of an agent program, by the turn before them. None for those before the first."""
    by_turn: Steps = defaultdict(list)
    for step in steps:
        by_turn[step["turn"]].append(step)
    return by_turn


def sampled_logprobs(record: Record) -> list[list[float]]:
    """The logprobs of each turn. A turn's sampled tokens are consecutive, and unsampled tokens lie
    between two turns.
    """
    pairs = zip(record["mask"], record["logprobs"], strict=True)
    turns = []
    for sampled, run in groupby(pairs, key=lambda pair: pair[0]):
        if sampled:
            turns.append([logprob for _, logprob in run])
    return turns


def request_options(record: Record, turns: Sequence[Sequence[Any]]) -> dict[int, str]:
    """Options of an agent program's requests, by the turn's place among the sampled ones."""
    options: dict[int, str] = {}
    ends = [*accumulate(map(len, turns))]
    sampled = 0
    place = 0
    for length, _, *more in record.get("pieces") or ():
        while place < len(ends) and sampled >= ends[place]:
            place += 1
        sampled += length
        if more:
            values = (f"{name} {json.dumps(value)}" for name, value in more[0].items())
            options[place] = ", ".join(values)
    return options


def trace_heading(number: int, trace: Mapping[str, Any]) -> str:
    """A heading for one of several traces: its kind, its beginning, and its tools."""
    told = ", ".join(str(trace[key]) for key in ("model", "kind") if key in trace)
    text = f"trace {number} ({told})" if told else f"trace {number}"
    behind = trace.get("behind")
    if behind:
        text += f", which begins like trace {behind[0]} up to the end of turn {behind[1]}"
    tools = ", ".join(map(str, trace.get("tools") or ())) or "none"
    return clean(clip(f"{text}; tools: {tools}"))


def turn_note(turn: int, logprobs: Sequence[float], reward: float | None = None) -> str:
    mean = sum(logprobs) / len(logprobs)
    text = (
        f"turn {turn}: {len(logprobs)} sampled, logprob mean {mean:.3f}, lowest {min(logprobs):.3f}"
    )
    return text if reward is None else f"{text}; reward {reward:g}"


def shown_text(content: Any) -> str:
    """The text of a message's content; an image is its size and the start of its hash."""
    if not isinstance(content, list):
        return str(content or "")
    lines = []
    for part in content:
        text = str(part.get("text") or "")
        if part.get("type") == "image":
            size = f"{part.get('width')} x {part.get('height')}"
            text = f"[image {size}, sha256 {str(part.get('sha256'))[:12]}]"
        lines.append(text)
    return "\n".join(lines)


def clip(text: str) -> str:
    """The first characters of a long text."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} ... ({len(text) - LONGEST_TEXT} more characters: --json)"


def clean(text: str) -> str:
    """The text with its control characters as escapes."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
