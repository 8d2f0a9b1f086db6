"""One rollout as its page shows it: why it scored what it scored, then the conversation, turn by
turn.

A page is a plain JSON value. Texts are the models' and users' own, neither escaped nor shortened:
the page's script writes them as text only.
"""

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollq.errors import ContractError
from rollq.export.record import as_json as ascii_json
from rollq.export.transcript import steps_behind
from rollq.trajectory import Trajectory
from rollq_view.rows import last_line
from rollq_view.turns import Episode, Turn, add_journal, of_record

SHOWN = (
    *(
        "job",
        "run",
        "group",
        "sample",
        "env",
        "split",
        "task",
        "queue",
        "labels",
        "sampling",
        "template_kwargs",
    ),
    *("adapter", "attempt", "stop", "failure", "reward", "turns", "began"),
)
"""Fields of a record that the page has as they are."""
IMAGE_TYPES = ("image/png", "image/jpeg")
FAILED = ("error", "traceback", "exception")
"""What the result of a call that failed begins with."""


def page(
    record: Mapping[str, Any],
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
            **{name: record.get(name) for name in SHOWN},
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
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        said = "; ".join(faults) or f"{type(e).__name__} {e}"
        raise ContractError(f"{str(record.get('job'))[:300]} cannot be shown: {said}") from e


def as_json(value: Any) -> str:
    """As the record of an exported file is written. Numbers that JSON cannot say become texts."""
    try:
        return ascii_json(value)
    except ValueError:
        return ascii_json(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _parts(info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the grader says, one thing at a time. `ok` is None where neither good nor bad
    is known.
    """
    for name, value in info.items():
        if name in ("reason", "failures"):  # which have places of their own
            continue
        ok = value if isinstance(value, bool) else None
        plain = isinstance(value, (str, int, float, bool)) or value is None
        text = (
            str(value)
            if plain and not isinstance(value, bool)
            else json.dumps(value, ensure_ascii=False)
        )
        yield {"name": name, "value": text, "ok": ok, "empty": value in ([], {}, "", None)}


def _failed_calls(entries: Sequence[Mapping[str, Any]], *, died: bool) -> Iterator[dict[str, Any]]:
    """Turns that could not be read, calls that failed, and the turn in which an attempt died."""
    turn = None
    for entry in entries:
        turn = entry["turn"] if entry["turn"] is not None else turn
        for error in entry.get("errors", ()):
            yield {"turn": turn, "what": "the turn could not be read", "text": error}
        if entry["failed"]:
            yield {
                "turn": turn,
                "what": entry["call"] or entry["role"],
                "text": entry["text"][:1000],
            }
        if died and entry.get("answered") is False:
            yield {
                "turn": turn,
                "what": "the attempt failed in this turn",
                "text": entry["text"][:1000],
            }


def _tokens(episode: Episode) -> dict[str, Any]:
    logprobs = [p for turn in episode.turns for p in turn.logprobs]
    versions: dict[str, int] = {}
    for turn in episode.turns:
        for version, start, end in turn.versions:
            versions[str(version)] = versions.get(str(version), 0) + end - start
    masked = episode.prompt + sum(
        turn.masked + (turn.opens.prompt if turn.opens else 0) for turn in episode.turns
    )
    return {
        "sampled": len(logprobs),
        "total": len(logprobs) + masked,
        "mean": sum(logprobs) / len(logprobs) if logprobs else None,
        "lowest": min(logprobs, default=None),
        "versions": versions,
        "spans": [
            [episode.prompt, 0, None],
            *(span for turn in episode.turns for span in _spans(turn)),
        ],
    }


def _spans(turn: Turn) -> list[list[Any]]:
    prompt = [[turn.opens.prompt, 0, None]] if turn.opens else []
    return [*prompt, [len(turn.ids), 1, turn.number], [turn.masked, 0, turn.number]]


def _entries(episode: Episode, images: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    for place, message in enumerate(episode.opening):
        masked = episode.prompt if place == len(episode.opening) - 1 else None
        yield _entry(message, images) | {"masked": masked}
    steps = steps_behind(episode.steps)
    yield from _steps(steps[None], images)
    for turn in episode.turns:
        number = turn.number
        if turn.opens is not None:
            yield _entry({"role": "trace", "content": turn.opens.words}, images)
            for place, message in enumerate(turn.opens.messages):
                masked = turn.opens.prompt if place == len(turn.opens.messages) - 1 else None
                yield _entry(message, images) | {"masked": masked}
        message = turn.message or {"role": "assistant", "content": turn.text}
        yield _entry(message, images) | {
            "turn": number,
            "answered": turn.message is not None,
            "ids": turn.ids,
            "logprobs": [round(p, 4) for p in turn.logprobs],
            "versions": turn.versions,
            "pieces": turn.pieces,
            "reward": turn.reward,
            "asked": turn.asked,
            **turn.notes,
        }
        yield from _steps(steps[number], images)
        calls = {str(call.get("id")): _name(call) for call in message.get("tool_calls") or ()}
        names = [*calls.values()]
        for place, reply in enumerate(turn.replies):
            entry = _entry(reply, images)
            if entry["role"] == "tool":
                listed = names[place] if place < len(names) else ""
                entry["call"] = calls.get(str(reply.get("tool_call_id"))) or listed
            yield entry | {"masked": turn.masked if place == len(turn.replies) - 1 else None}


def _steps(
    steps: Sequence[Mapping[str, Any]], images: Mapping[str, bytes]
) -> Iterator[dict[str, Any]]:
    """What an agent program did in the environment behind a turn."""
    for step in steps:
        action = step["action"]
        entry = _entry({"role": "step", "content": step["text"]}, images)
        arguments = json.dumps(action.get("arguments") or {}, ensure_ascii=False)
        calls = [{"name": str(action["name"]), "arguments": arguments}] if action["name"] else []
        yield entry | {"calls": calls, "failed": _is_failure(entry["text"])}


def _entry(message: Mapping[str, Any], images: Mapping[str, bytes]) -> dict[str, Any]:
    content, role = message.get("content"), str(message["role"])
    parts = content if isinstance(content, list) else []
    text = "\n".join(str(part.get("text") or "") for part in parts if part.get("type") == "text")
    text = text if parts else str(content or "")
    return {
        "role": role,
        "turn": None,
        "text": text,
        "reasoning": str(message.get("reasoning_content") or ""),
        "calls": [
            {"name": _name(call), "arguments": _arguments(call)}
            for call in message.get("tool_calls") or ()
        ],
        "images": [_image(part, images) for part in parts if part.get("type") == "image"],
        "call": "",
        "failed": role == "tool" and _is_failure(text),
        "masked": None,
    }


def _name(call: Mapping[str, Any]) -> str:
    return str((call.get("function") or {}).get("name") or "")


def _arguments(call: Mapping[str, Any]) -> str:
    """As the message has them, which is JSON where the model wrote JSON."""
    arguments = (call.get("function") or {}).get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _is_failure(text: str) -> bool:
    """Whether the result of a call says that it failed, in one of the usual ways."""
    start = text[:200].lstrip(" \"'{[*").lower()
    return start.startswith(FAILED)


def _image(part: Mapping[str, Any], images: Mapping[str, bytes]) -> dict[str, Any]:
    data, mime = images.get(str(part.get("sha256"))), part.get("mime")
    url = (
        f"data:{mime};base64,{b64encode(data).decode()}"
        if data is not None and mime in IMAGE_TYPES
        else ""
    )
    return {
        "url": url,
        "size": f"{part.get('width')} × {part.get('height')}",
        "sha256": str(part.get("sha256"))[:12],
    }


def _tools(tools: Sequence[Any]) -> Iterator[dict[str, str]]:
    for tool in tools:
        function = tool.get("function") or tool
        yield {"name": str(function.get("name")), "text": str(function.get("description") or "")}
