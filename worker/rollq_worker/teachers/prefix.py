"""The prompt of a trace as a teacher with a text of its own sees it."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from collections.abc import Iterable, Sequence
from itertools import takewhile

from rollq.errors import JobFailure
from rollq.events import Message, Prompt
from rollq.images import text_of
from rollq_worker.protocols import Renderer


def prompt_with(prefix: str, prompt: Prompt, renderer: Renderer) -> array[int]:
    """The ids of the prompt with `prefix` at the beginning of its system message.

    The template writes the conversation without the prefix and with it, and only the ids in which
    the two differ are exchanged: what the policy sampled earlier stays as it is. Raises JobFailure
    where the prompt does not begin as the template writes it.
    """
    before = renderer.open(prompt.messages, prompt.tools)
    after = renderer.open(_with_prefix(prefix, prompt.messages), prompt.tools)
    same = _length_of_equal(before, after)
    rest = _length_of_equal(reversed(before[same:]), reversed(after[same:]))
    end = len(before) - rest
    if prompt.ids[:end] != before[:end]:
        raise JobFailure("the prompt is not as the template writes it: leave the prefix out")
    return after[: len(after) - rest] + prompt.ids[end:]


def _with_prefix(prefix: str, messages: Sequence[Message]) -> list[Message]:
    first = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": prefix}, *messages]
    return [{**first, "content": f"{prefix}\n\n{text_of(first['content'])}"}, *messages[1:]]


def _length_of_equal(one: Iterable[int], other: Iterable[int]) -> int:
    """Number of ids with which both begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
