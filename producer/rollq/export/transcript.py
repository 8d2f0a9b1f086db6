"""An exported trajectory as text for people: who said what, what the policy sampled, why it
stopped.

Reads only the exported form, so a job of the ledger and a line of a file look the same. Texts of
models and environments cannot control the terminal.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

COLOURS = {
    "system": "2",
    "user": "36",
    "assistant": "1;32",
    "tool": "33",
    "warning": "31",
    "label": "2",
}
"""ANSI codes by role."""
LONGEST = 1500
"""Number of characters that are shown of one message."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters: those that a terminal obeys or cannot show, except tab and newline. They
include changes of text direction.
"""


class Transcript:
    """One trajectory as text, with colours for a terminal if `colour` is set."""

    def __init__(self, record: Mapping[str, Any], *, colour: bool) -> None:
        self._record = record
        self._colour = colour
        self._steps_behind = steps_behind(record.get("steps") or ())

    def lines(self, facts: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
        """The whole transcript. `facts` are names and values to show below the head."""
        for name, value in (*self._head(), *facts):
            yield self._coloured("label", f"{name:<9}") + " " + clean(value)
        yield ""
        yield from self._conversation()

    def _head(self) -> Iterator[tuple[str, str]]:
        r = self._record
        yield (
            "job",
            f"{r['job']}   {r['env']}/{r['split']} task {r['task']}, attempt {r['attempt']}",
        )
        failure = f"   failure {r['failure']}" if r.get("failure") else ""
        yield (
            "stop",
            f"{r['stop'] or 'not yet'}   reward "
            f"{'-' if r['reward'] is None else r['reward']}{failure}",
        )
        sampled = [p for p, m in zip(r["logprobs"], r["mask"], strict=True) if m]
        low = (
            f"; logprobs mean {sum(sampled) / len(sampled):.3f}, lowest {min(sampled):.3f}"
            if sampled
            else ""
        )
        traces = f" in {len(r['traces'])} traces" if len(r.get("traces") or ()) > 1 else ""
        yield (
            "tokens",
            f"{len(sampled)} sampled of {len(r['tokens'])}{traces}, {r['turns']} turns{low}",
        )
        versions = sorted({str(v) for v in r["versions"] if v is not None})
        of = f" of adapter {r['adapter']}" if r.get("adapter") else ""
        yield "versions", (", ".join(versions) or "-") + of
        if r.get("labels"):
            yield "labels", clip(json.dumps(r["labels"], ensure_ascii=False))
        info = {
            name: value for name, value in (r.get("info") or {}).items() if name != "agent_output"
        }
        if info:
            yield "info", clip(json.dumps(info, ensure_ascii=False))

    def _conversation(self) -> Iterator[str]:
        r, spans = self._record, sampled_spans(self._record)
        asked = asked_for(r, spans)
        several = r.get("conversations") or ()
        numbers = [number for trace in several for number in trace["turns"]] or [*range(len(spans))]
        rewards = dict(enumerate(r.get("turn_rewards") or ()))
        notes = [
            (number, span_note(number, span, rewards.get(number)))
            for number, span in zip(numbers, spans, strict=True)
        ]
        for place, words in asked.items():
            notes[place] = notes[place][0], f"{notes[place][1]}; asked for {words}"
        yield from self._steps(None)
        if not several:
            yield from self._trace(r["messages"], notes, r.get("unanswered"))
        for number, trace in enumerate(several):
            yield self._coloured("label", f"-- {trace_words(number, trace)} --")
            own, notes = notes[: len(trace["turns"])], notes[len(trace["turns"]) :]
            yield from self._trace(trace["messages"], own, trace.get("unanswered"))
        if output := str((r.get("info") or {}).get("agent_output") or ""):
            yield self._coloured("label", "the agent wrote:")
            yield from (f"  {line}" for line in clean(clip(output)).splitlines())

    def _steps(self, turn: int | None) -> Iterator[str]:
        """What an agent program did in the environment behind this turn."""
        for step in self._steps_behind[turn]:
            call = (
                f"{step['action']['name'] or 'opens'} {json.dumps(step['action'].get('arguments'))}"
            )
            yield self._coloured("tool", "step") + f"      {clean(clip(call))}"
            yield from (
                f"  {self._coloured('tool', line)}"
                for line in clean(clip(step["text"])).splitlines()
            )

    def _trace(
        self, messages: Sequence[Any], notes: Sequence[Sequence[Any]], unanswered: str | None
    ) -> Iterator[str]:
        # Assistant messages of the prompt were not sampled, and a turn that nothing answered has no
        # message.
        said = sum(m["role"] == "assistant" for m in messages)
        given = max(0, said - len(notes) + (unanswered is not None))
        turns = iter(notes)
        for message in messages:
            role = str(message["role"])
            note, number = "", None
            if role == "assistant" and given:
                given -= 1
            elif role == "assistant" and (turn := next(turns, None)):
                number, note = turn
            yield from self._message(role, note, message)
            if number is not None:
                yield from self._steps(number)
        for number, note in turns:
            yield self._coloured("warning", f"{'assistant':<9}") + " " + note + " (never answered)"
            yield from self._steps(number)
        for line in clean(clip(unanswered or "")).splitlines():
            yield f"  {self._coloured('assistant', line)}"

    def _message(self, role: str, note: str, message: Mapping[str, Any]) -> Iterator[str]:
        yield self._coloured(role, f"{clean(role):<9}") + (
            f" {self._coloured('label', note)}" if note else ""
        )
        for line in clean(clip(shown_text(message.get("content")))).splitlines():
            yield f"  {self._coloured(role, line)}"
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            words = f"-> {function.get('name')}({function.get('arguments')})"
            yield f"  {self._coloured(role, clean(clip(words)))}"

    def _coloured(self, role: str, text: str) -> str:
        code = COLOURS.get(role)
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def steps_behind(
    steps: Sequence[Mapping[str, Any]],
) -> defaultdict[int | None, list[Mapping[str, Any]]]:
    """What an agent program did in the environment, by the turn before; None: before the first."""
    found: defaultdict[int | None, list[Mapping[str, Any]]] = defaultdict(list)
    for step in steps:
        found[step["turn"]].append(step)
    return found


def sampled_spans(record: Mapping[str, Any]) -> list[list[float]]:
    """The logprobs of each turn. A turn's sampled tokens are consecutive, and unsampled tokens lie
    between two turns.
    """
    pairs = zip(record["mask"], record["logprobs"], strict=True)
    return [[p for _, p in run] for mask, run in groupby(pairs, key=lambda pair: pair[0]) if mask]


def asked_for(record: Mapping[str, Any], turns: Sequence[Sequence[Any]]) -> dict[int, str]:
    """What an agent program asked for with a turn, by the turn's place among the sampled ones."""
    found: dict[int, str] = {}
    ends, sampled, place = [*accumulate(map(len, turns))], 0, 0
    for length, _, *asked in record.get("pieces") or ():
        while place < len(ends) and sampled >= ends[place]:
            place += 1
        sampled += length
        if asked:
            found[place] = ", ".join(
                f"{name} {json.dumps(value)}" for name, value in asked[0].items()
            )
    return found


def trace_words(number: int, trace: Mapping[str, Any]) -> str:
    """A heading for one of several traces: what it goes on from, and which tools it was shown."""
    behind = trace.get("behind")
    where = (
        f", which begins like trace {behind[0]} up to the end of turn {behind[1]}" if behind else ""
    )
    tools = ", ".join(map(str, trace.get("tools") or ())) or "none"
    return clean(clip(f"trace {number}{where}; tools: {tools}"))


def span_note(turn: int, logprobs: Sequence[float], reward: float | None = None) -> str:
    mean, earned = sum(logprobs) / len(logprobs), "" if reward is None else f"; reward {reward:g}"
    return (
        f"turn {turn}: {len(logprobs)} sampled, logprob mean {mean:.3f}, lowest "
        f"{min(logprobs):.3f}{earned}"
    )


def shown_text(content: Any) -> str:
    """The text of a message's content; an image is its size and the start of its hash."""
    if not isinstance(content, list):
        return str(content or "")
    lines = []
    for part in content:
        size = f"{part.get('width')} x {part.get('height')}, sha256 {str(part.get('sha256'))[:12]}"
        lines.append(
            f"[image {size}]" if part.get("type") == "image" else str(part.get("text") or "")
        )
    return "\n".join(lines)


def clip(text: str) -> str:
    return (
        text
        if len(text) <= LONGEST
        else f"{text[:LONGEST]} ... ({len(text) - LONGEST} more characters: --json)"
    )


def clean(text: str) -> str:
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
