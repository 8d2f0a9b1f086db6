"""A teacher's prefix in the prompts of a real chat template."""

from array import array

import pytest

from rollq.events import Message, Prompt
from rollq_worker.teachers.prefix import prompt_with
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import load_tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SYSTEM: Message = {"role": "system", "content": "Serve the customer."}
USER: Message = {"role": "user", "content": "Cancel it."}
LATER: list[Message] = [
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Ok"},
]
PREFIX = "The customer means order W12."


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("later", [[], LATER], ids=["first prompt", "later trace"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([SYSTEM], [{**SYSTEM, "content": f"{PREFIX}\n\nServe the customer."}]),
        ([], [{"role": "system", "content": PREFIX}]),
    ],
    ids=["system prompt", "none"],
)
def test_the_prompt_is_the_templates_own_with_the_prefix(
    before: list[Message], after: list[Message], later: list[Message], tools: list[Message]
) -> None:
    renderer = ChatRenderer(load_tokenizer(), tools)
    messages = [*before, USER, *later]
    prompt = Prompt(ids=renderer.open(messages, tools), messages=messages, tools=tools)
    wanted = renderer.open([*after, USER, *later], tools)
    assert prompt_with(PREFIX, prompt, renderer) == wanted != prompt.ids


def test_what_was_sampled_stays_as_it_was_sampled() -> None:
    renderer = ChatRenderer(load_tokenizer(), [])
    messages = [SYSTEM, USER, *LATER]
    written = renderer.open(messages, [])
    sampled = written[:-8] + array("I", [7, 7]) + written[-8:]  # not as the template writes it
    prompt = Prompt(ids=sampled, messages=messages, tools=[])
    seen = prompt_with(PREFIX, prompt, renderer)
    assert seen[-len(sampled) + 10 :] == sampled[10:] and len(seen) > len(sampled)
