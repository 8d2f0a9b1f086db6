"""Names of tools and parameters that a chat template writes in calls so that no reader can tell
where they end.
"""

import re
from collections.abc import Iterator, Sequence

from rollq.env import Action
from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.family_detection import text_behind
from rollq_worker.tokens.model_family import example_call
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.template_messages import call_id

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that every format reads."""


def unread_name(renderer: ChatRenderer, tools: Sequence[Json]) -> str:
    """The first name in these tools that the reader does not get back from a call with it; "" if
    there is none.
    """
    for tool, name in _odd_names(tools):
        if not _is_read(renderer, tool, name):
            return name
    return ""


def _odd_names(tools: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """The names that are not plain, each behind that of its tool."""
    for tool in tools:
        function = tool["function"]
        properties = (function.get("parameters") or {}).get("properties") or {}
        for name in (function["name"], *properties):
            if not _PLAIN.fullmatch(name):
                yield function["name"], name


def _is_read(renderer: ChatRenderer, tool: str, name: str) -> bool:
    """True if a call is read back; true where the template writes no call, because the edges say
    so.
    """
    arguments = {} if name == tool else {name: "a"}
    id = call_id(renderer.family, "call00000", tool, 0)
    opening: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    result: Message = {"role": "tool", "tool_call_id": id, "content": "r"}
    try:
        prompt = renderer.prompt(opening, renderer.tools)
        call = example_call(tool, arguments, id)
        continued = renderer.extend([*opening, call], [result], renderer.tools)
    except JobFailure:
        return True
    family = renderer.family
    turn = text_behind(renderer.tokenizer, prompt, continued.before_replies)
    cut = max(turn.rfind(end) for end in (*family.stops, *family.template_ends))
    if cut >= 0:
        turn = turn[:cut]
    read = renderer.reader(turn, None, [{"function": {"name": tool}}])
    return list(read.calls) == [Action(tool, arguments)]
