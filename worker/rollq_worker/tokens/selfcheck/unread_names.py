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
from rollq_worker.toolcalls import readers

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that every format reads."""


def unread_name(renderer: ChatRenderer) -> str:
    """The first name that the reader does not get back from a call with it; "": there is none."""
    return next(
        (name for tool, name in _odd_names(renderer.tools) if not _is_read(renderer, tool, name)),
        "",
    )


def _odd_names(tools: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """The names that are not plain, each behind that of its tool."""
    for function in (tool["function"] for tool in tools):
        properties = (function.get("parameters") or {}).get("properties") or {}
        yield from (
            (function["name"], name)
            for name in (function["name"], *properties)
            if not _PLAIN.fullmatch(name)
        )


def _is_read(renderer: ChatRenderer, tool: str, name: str) -> bool:
    """Whether a call is read back; true where the template writes no call, because the edges say
    so.
    """
    arguments = {} if name == tool else {name: "a"}
    id = call_id(renderer.family, "call00000", tool, 0)
    opening: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    result: Message = {"role": "tool", "tool_call_id": id, "content": "r"}
    try:
        prompt = renderer.prompt(opening, renderer.tools)
        said = renderer.extend(
            [*opening, example_call(tool, arguments, id)], [result], renderer.tools
        ).before_replies
    except JobFailure:
        return True
    turn = text_behind(renderer.tokenizer, prompt, said)
    cut = max(turn.rfind(end) for end in (*renderer.family.stops, *renderer.family.template_ends))
    read = readers()[renderer.family.parser](
        turn[:cut] if cut >= 0 else turn, None, [{"function": {"name": tool}}]
    )
    return list(read.calls) == [Action(tool, arguments)]
