"""Words that a model, a user or a tool may say to break a page, and episodes that say them
everywhere.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollq.events import Closed, Observed, Prompt
from rollq.export.record import as_json, record
from rollq.trajectory import Trajectory
from tests.rollq.samples import job, trajectory

WORDS = (
    "<script>window.broken = 'script'</script>",
    "</script><script>window.broken = 'closed'</script>",
    "<!--<script>",
    "<img src=x onerror=\"window.broken = 'image'\">",
    "<svg/onload=window.broken='svg'>",
    "javascript:window.broken='address'",
    "{{constructor.constructor('window.broken=1')()}}",
    "\x1b[31mred\x1b[0m \x07 \x00",
    "user \u202eesrever\u202c \u2066 isolate \u2069",
    "half a pair \ud83d and \udc00, zero\u200bwidth",
    "tags \U000e0041, mark \u061c, line \u2028, filler \u3164",
    "emoji \U0001f600, e\u0301, العربية",
)
ALL = "\n".join(WORDS)
LONG = "x" * 1_000_000


def said_everywhere(words: str = ALL, sample: int = 0) -> Trajectory:
    """An episode whose every text is `words`."""
    made = trajectory(of=replace(job(sample), labels={"note": words}))
    call = {
        "id": words,
        "type": "function",
        "function": {"name": words, "arguments": json.dumps({words: words})},
    }
    events = []
    for event in made.events:
        if isinstance(event, Prompt):
            event = replace(
                event, messages=[{"role": role, "content": words} for role in ("system", "user")]
            )
        elif isinstance(event, Observed):
            message = {
                "role": "assistant",
                "content": words,
                "reasoning_content": words,
                "tool_calls": [call],
            }
            reply = {"role": "tool", "tool_call_id": words, "content": "Error: " + words}
            event = replace(event, message=message, replies=[reply], errors=[words])
        elif isinstance(event, Closed):
            event = replace(
                event, info={words: words, "reason": words, "ok": False, "list": [words]}
            )
        events.append(event)
    return replace(made, events=events)


def write(path: Path, *records: dict[str, Any]) -> Path:
    """The records as lines of a file. NaN stays NaN, as other programs write it."""
    path.write_text("".join(json.dumps(found) + "\n" for found in records))
    return path


def export(path: Path, *trajectories: Trajectory) -> Path:
    """As `rollq pull --out` writes them."""
    path.write_text("".join(as_json(record(one)) + "\n" for one in trajectories))
    return path
