"""A rollout's page: the reasons for its reward, then the conversation, turn by turn.

A page is a plain JSON value. Texts are the models' and users' own, neither escaped nor shortened:
the page's script writes them as text only.
"""

import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollq.errors import ContractError
from rollq.events import Message
from rollq.export.facts import Record
from rollq.export.record import as_json as ascii_json
from rollq.export.transcript import steps_by_turn
from rollq.trajectory import Trajectory
from rollq_view.rows import last_line
from rollq_view.turns import Episode, Turn, add_journal, of_record

SHOWN_FIELDS = tuple(
    "job run group sample env split task queue adapter attempt stop failure reward turns "
    "began".split()
)
"""Fields of a record that the page has as they are."""
MAPPINGS = ("labels", "sampling", "template_kwargs")
"""Fields of a record that the page has as texts by name: its script would round large numbers."""
IMAGE_TYPES = ("image/png", "image/jpeg")
FAILED = ("error", "traceback", "exception")
"""Beginnings of the result of a call that failed."""


def page(
    record: Record,
    trajectory: Trajectory | None = None,
    *,
    images: Mapping[str, bytes] | None = None,
    faults: Sequence[str] = (),
    **facts: Any,
) -> dict[str, Any]:
    """The page of an exported record. With its `trajectory`, also what only a journal has. `facts`
    are added to it.

    `images`: files by sha256. `faults`: what is wrong with the record. Raises ContractError for a
    record that cannot be shown.
    """
    try:
        episode = of_record(record)
        if trajectory:
            add_journal(episode, trajectory)
        info = dict(record.get("info") or {})
        entries = [*_entries(episode, images or {})]
        return {
            **{name: record.get(name) for name in SHOWN_FIELDS},
            **{name: _texts(record.get(name)) for name in MAPPINGS},
            "parts": [*_parts(info)],
            "reason": str(info.get("reason") or ""),
            "reason_line": last_line(str(info.get("reason") or "")),
            "failed_calls": [*_failed_calls(entries, died=bool(record.get("failure")))],
            "tokens": _tokens(episode),
            "entries": entries,
            "tools": [*_tools(episode.tools)],
            "times": episode.times,
            "faults": list(faults),
            **facts,
        }
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as e:
        reason = "; ".join(faults) or f"{type(e).__name__} {e}"
        raise ContractError(f"{str(record.get('job'))[:300]} cannot be shown: {reason}") from e


def as_json(value: Any) -> str:
    """The value as records of exported files are written. Numbers that JSON cannot say become
    texts.
    """
    try:
        return ascii_json(value)
    except ValueError:
        return ascii_json(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _texts(values: Any) -> Any:
    """The values of a mapping as texts."""
    if not isinstance(values, Mapping):
        return values
    return {
        str(name): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }


def _parts(info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The grader's facts, one at a time. `ok` is None where neither good nor bad is known."""
    for name, value in info.items():
        if name in ("reason", "failures"):  # which have places of their own
            continue
        is_bool = isinstance(value, bool)
        is_plain = value is None or (isinstance(value, str | int | float) and not is_bool)
        yield {
            "name": name,
            "value": str(value) if is_plain else json.dumps(value, ensure_ascii=False),
            "ok": value if is_bool else None,
            "empty": value in ([], {}, "", None),
        }


def _failed_calls(entries: Sequence[Mapping[str, Any]], *, died: bool) -> Iterator[dict[str, Any]]:
    """Turns that could not be read, calls that failed, and the turn in which an attempt died."""
    turn = None
    for entry in entries:
        if entry["turn"] is not None:
            turn = entry["turn"]
        text = entry["text"][:1000]
        for error in entry.get("errors", ()):
            yield {"turn": turn, "what": "the turn could not be read", "text": error}
        if entry["failed"]:
            yield {"turn": turn, "what": entry["call"] or entry["role"], "text": text}
        if died and entry.get("answered") is False:
            yield {"turn": turn, "what": "the attempt failed in this turn", "text": text}


def _tokens(episode: Episode) -> dict[str, Any]:
    logprobs = [logprob for turn in episode.turns for logprob in turn.logprobs]
    versions: Counter[str] = Counter()
    spans: list[list[Any]] = [[episode.prompt, 0, None]]
    for turn in episode.turns:
        for version, start, end in turn.versions:
            versions[str(version)] += end - start
        if turn.opens:
            spans.append([turn.opens.prompt, 0, None])
        spans += [[len(turn.ids), 1, turn.number], [turn.masked, 0, turn.number]]
    return {
        "sampled": len(logprobs),
        "total": sum(length for length, _, _ in spans),
        "mean": sum(logprobs) / len(logprobs) if logprobs else None,
        "lowest": min(logprobs, default=None),
        "versions": dict(versions),
        "spans": spans,
    }


def _entries(episode: Episode, images: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    yield from _opening_entries(episode.opening, episode.prompt, images)
    steps = steps_by_turn(episode.steps)
    yield from _step_entries(steps[None], images)
    for turn in episode.turns:
        if turn.opens is not None:
            yield _entry({"role": "trace", "content": turn.opens.words}, images)
            yield from _opening_entries(turn.opens.messages, turn.opens.prompt, images)
        yield _turn_entry(turn, images)
        yield from _step_entries(steps[turn.number], images)
        yield from _reply_entries(turn, images)


def _opening_entries(
    messages: Sequence[Message], tokens: int, images: Mapping[str, bytes]
) -> Iterator[dict[str, Any]]:
    """Messages before the first turn of a trace. The last one has the number of their tokens."""
    last = len(messages) - 1
    for place, message in enumerate(messages):
        yield _entry(message, images) | {"masked": tokens if place == last else None}


def _turn_entry(turn: Turn, images: Mapping[str, bytes]) -> dict[str, Any]:
    message = turn.message or {"role": "assistant", "content": turn.text}
    return _entry(message, images) | {
        "turn": turn.number,
        "answered": turn.message is not None,
        "ids": turn.ids,
        "logprobs": [round(logprob, 4) for logprob in turn.logprobs],
        "versions": turn.versions,
        "pieces": turn.pieces,
        "reward": turn.reward,
        "asked": _texts(turn.asked),
        **turn.notes,
    }


def _reply_entries(turn: Turn, images: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """Replies to a turn. A tool's reply names its call, by id or else by its place."""
    calls = (turn.message or {}).get("tool_calls") or ()
    names = [_name(call) for call in calls]
    by_id = {str(call.get("id")): _name(call) for call in calls}
    last = len(turn.replies) - 1
    for place, reply in enumerate(turn.replies):
        entry = _entry(reply, images)
        if entry["role"] == "tool":
            by_place = names[place] if place < len(names) else ""
            entry["call"] = by_id.get(str(reply.get("tool_call_id"))) or by_place
        entry["masked"] = turn.masked if place == last else None
        yield entry


def _step_entries(
    steps: Sequence[Mapping[str, Any]], images: Mapping[str, bytes]
) -> Iterator[dict[str, Any]]:
    """Actions of an agent program in the environment behind a turn."""
    for step in steps:
        action = step["action"]
        entry = _entry({"role": "step", "content": step["text"]}, images)
        if action["name"]:
            arguments = json.dumps(action.get("arguments") or {}, ensure_ascii=False)
            entry["calls"] = [{"name": str(action["name"]), "arguments": arguments}]
        entry["failed"] = _is_failure(entry["text"])
        yield entry


def _entry(message: Mapping[str, Any], images: Mapping[str, bytes]) -> dict[str, Any]:
    content = message.get("content")
    role = str(message["role"])
    parts = content if isinstance(content, list) else []
    text = _text(parts) if parts else str(content or "")
    calls = [
        {"name": _name(call), "arguments": _arguments(call)}
        for call in message.get("tool_calls") or ()
    ]
    return {
        "role": role,
        "turn": None,
        "text": text,
        "reasoning": str(message.get("reasoning_content") or ""),
        "calls": calls,
        "images": [_image(part, images) for part in parts if part.get("type") == "image"],
        "call": "",
        "failed": role == "tool" and _is_failure(text),
        "masked": None,
    }


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(part.get("text") or "") for part in parts if part.get("type") == "text")


def _name(call: Mapping[str, Any]) -> str:
    return str((call.get("function") or {}).get("name") or "")


def _arguments(call: Mapping[str, Any]) -> str:
    """Arguments as the message has them, which is JSON where the model wrote JSON."""
    arguments = (call.get("function") or {}).get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _is_failure(text: str) -> bool:
    """True if the result of a call says that it failed, in one of the usual ways."""
    start = text[:200].lstrip(" \"'{[*").lower()
    return start.startswith(FAILED)


def _image(part: Mapping[str, Any], images: Mapping[str, bytes]) -> dict[str, Any]:
    data, mime = images.get(str(part.get("sha256"))), part.get("mime")
    url = ""
    if data is not None and mime in IMAGE_TYPES:
        url = f"data:{mime};base64,{b64encode(data).decode()}"
    return {
        "url": url,
        "size": f"{part.get('width')} × {part.get('height')}",
        "sha256": str(part.get("sha256"))[:12],
    }


def _tools(tools: Sequence[Any]) -> Iterator[dict[str, str]]:
    for tool in tools:
        function = tool.get("function") or tool
        yield {"name": str(function.get("name")), "text": str(function.get("description") or "")}
