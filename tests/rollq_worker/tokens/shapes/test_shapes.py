"""Bridges and first prompts that are filled into shapes are those that the template renders, for any contents."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq_worker.tokens.injection_guard import Guard
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.shapes import memory
from rollq_worker.tokens.shapes.memory import ShapeMemory
from rollq_worker.tokens.tokenizer import Tokenizer
from tests.rollq_worker.tokens.family_habits import FAMILY_HABITS
from tests.rollq_worker.tokens.messages import TOOLS, USER, called, result
from tests.rollq_worker.tokens.models import NAMES, RealTemplates, tokenizer_with
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_tokenizer
from tests.rollq_worker.tokens.template_habits import HABITS, TOOL, chatml
from tests.rollq_worker.tokens.template_habits import USER as WRITES_USER

TURNS = 40
"""Answers of each conversation."""
WORDS = (
    *[
        "a",
        "Yes.",
        "#W2378156",
        "7",
        "12.50",
        "user",
        "tool",
        "error",
        "None",
        "naïve",
        "日本語",
        "🙂",
        "e\u0301",
        "\u0301",
        "👩\u200d👧",
        "\u2028",
        "\x85",
        "\x1f",
        "0",
    ],
    *[
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        "\\",
        "<",
        ">",
        "&",
        "/",
        "\n",
        "\n\n",
        " ",
        "  ",
        "\t",
        "\r\n",
        "\u00a0",
        "\ud800",
        "|",
        "▁",
    ],
    *[
        "<b>",
        "</think>",
        "<think>",
        "<|im_end|>",
        "<|im_start|>user\n",
        "<tool_response>",
        "</tool_response>",
        "/no_think",
    ],
    *[
        '{"name": "get_order", "arguments": {"x": 1}}',
        "[1, 2.0, null]",
        "<",
        "tool_call>",
        "im_end|>",
        "</s>",
        "[INST]",
    ],
)


class Rendered(ShapeMemory):
    """Remembers nothing, so everything is rendered."""

    def encode(self, key: Any, contents: Any, ids: Any, render: Any, **_: Any) -> array[int]:
        guard = Guard(self._controls)
        return guard.encode(render([*contents, *ids], guard))


def pair(tokenizer: Tokenizer, tools: Sequence[Any] = TOOLS) -> tuple[ChatRenderer, ChatRenderer]:
    """The renderer, and one that renders everything."""
    fast, slow = ChatRenderer(tokenizer, tools), ChatRenderer(tokenizer, tools)
    slow._answers = slow._prompts = Rendered(tokenizer, slow._controls)
    return fast, slow


def content(dice: random.Random) -> str:
    kind = dice.randrange(8)
    if kind == 0:
        return dice.choice(("", " ", "\n", *WORDS))
    if kind == 1:
        return json.dumps({dice.choice(WORDS): dice.choice(WORDS) for _ in range(dice.randrange(5))})
    if kind == 2:
        return " ".join(dice.choice(WORDS) for _ in range(dice.randrange(200)))
    if kind == 3:
        return json.dumps([{"id": n, "price": n * 7.5, "text": "it is so"} for n in range(dice.randrange(6))], indent=2)
    return "".join(dice.choice(WORDS) for _ in range(dice.randrange(1, 9)))


def answer(dice: random.Random, renderer: ChatRenderer, n: int) -> tuple[Any, list[Any]]:
    """A turn and what answers it."""
    if dice.random() < 0.3 and "user" in renderer.family.reply_roles:
        return {"role": "assistant", "content": content(dice)}, [{"role": "user", "content": content(dice)}]
    names = [dice.choice(TOOLS)["function"]["name"] for _ in range(dice.choice((0, 1, 1, 1, 2, 3)))]
    own = dice.choice(("", f"call_{n}", f"functions.{(names or ['tool'])[0]}:{n}", f"a1B2c{n:04}"))
    ids = [renderer.call_id(own if m == 0 else "", name, n + m) for m, name in enumerate(names or ["tool"])]
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id, name in zip(ids, names, strict=False)
    ]
    message = {"role": "assistant", "content": content(dice)} | ({"tool_calls": calls} if calls else {})
    return message, [result(content(dice), id) for id in ids]


def ids_or_refusal(renderer: ChatRenderer, *answer: Any) -> object:
    try:
        return renderer.bridge(*answer)
    except JobFailure as e:
        return str(e)


def compare(tokenizer: Tokenizer, seed: int, turns: int = TURNS) -> ChatRenderer:
    dice = random.Random(seed)
    fast, slow = pair(tokenizer)
    for n in range(turns):
        one = answer(dice, fast, n)
        assert ids_or_refusal(fast, *one) == ids_or_refusal(slow, *one), one
    return fast


ALL_HABITS = HABITS | FAMILY_HABITS


@pytest.mark.parametrize("name", ALL_HABITS)
def test_bridges_of_templates_with_any_habit(name: str):
    compare(ALL_HABITS[name].tokenizer(name), seed=len(name))


@pytest.mark.parametrize("name", NAMES)
def test_bridges_of_real_templates(real: RealTemplates, name: str):
    filled = compare(real.tokenizer(name), seed=7)._answers._entries.values()
    assert any(entry.known for entry in filled), "every family has shapes"


def test_bridges_of_a_large_vocabulary():
    tokenizer = qwen_tokenizer()
    tokenizer.use_fast_encoder()
    compare(tokenizer, seed=11, turns=400)


@pytest.mark.parametrize("name", ["qwen2.5", "llama-3.1", "mistral-nemo", "gpt-oss", "gemma-4", "qwen3.5"])
def test_first_prompts(real: RealTemplates, name: str):
    """Few system prompts, with and without tools, and all kinds of first messages."""
    dice = random.Random(3)
    fast, slow = pair(real.tokenizer(name))
    prompts = ["", *(f"{content(dice)} " * 9 for _ in range(2)), "A policy. " * 400]
    for n in range(60):
        messages = [{"role": "system", "content": prompts[n % 4]}, {"role": "user", "content": content(dice)}]
        tools = TOOLS if n % 3 else []
        assert fast.open(messages, tools) == slow.open(messages, tools), messages


def test_tools_that_change_in_place_are_shown():
    fast, slow = pair(HABITS["plain"].tokenizer("plain"))
    tools = json.loads(json.dumps(TOOLS))
    for n in range(6):
        tools[0]["function"]["description"] = f"Version {n // 3}, {n % 3 == 1}"
        tools[0]["function"]["strict"] = True if n % 2 else 1
        assert fast.open([USER], tools) == slow.open([USER], tools)


ODD = {
    "upper case": "{{ m.content | upper }}",
    "cut at a word": "{{ m.content.split('error')[0] }}",
    "cut at a tag": "{{ m.content.split('<b>')[-1] }}",
    "line ends stripped": "{{ m.content.rstrip('\n') }}",
    "a word in place of another": "{{ m.content | replace('None', 'null') }}",
    "a sign in place of another": "{{ m.content | replace('&', '&amp;') }}",
    "one content differs": "{% if m.content == 'Yes.' %}ok{% else %}{{ m.content }}{% endif %}",
    "a tag at the start": "{% if m.content.startswith('<b>') %}!{% endif %}{{ m.content }}",
    "a brace at the start": "{% if m.content.startswith('{') %}!{% endif %}{{ m.content }}",
    "escaped": "{{ m.content | e }}",
    "indented": "{{ m.content | indent(2) }}",
    "spaces made one": "{{ m.content.split() | join(' ') }}",
    "as JSON without spaces at the edges": "{{ m.content | trim | tojson }}",
    "twice": "{{ m.content }} {{ m.content }}",
    "upper case by its name": "{{ m.content['upper']() }}",
    "upper case asked for": "{% if m.content.isupper() %}!{% endif %}{{ m.content }}",
    "a sign at the start": "{% if m.content[0] in '#[{' %}!{% endif %}{{ m.content }}",
    "the first sign": "{% if m.content | first == '#' %}!{% endif %}{{ m.content }}",
    "the first letters": "{% if m.content[:4] == 'Yes.' %}!{% endif %}{{ m.content }}",
    "a content in any case": "{% if m.content | lower == 'yes.' %}!{% endif %}{{ m.content }}",
    "a content without its edges": "{% if m.content | trim == 'error' %}!{% endif %}{{ m.content }}",
    "a word at the start": "{% if m.content.startswith('error') %}!{% endif %}{{ m.content }}",
    "a word in any case": "{% if 'naïve' in m.content | lower %}!{% endif %}{{ m.content }}",
    "a text with a name": "{% set tag = '<b>' %}{% if tag in m.content %}!{% endif %}{{ m.content }}",
    "a text of two": "{% if '<' ~ 'b>' in m.content %}!{% endif %}{{ m.content }}",
    "a text that a macro takes": "{% macro f(x, t='<b>') %}{{ '!' if t in x }}{{ x }}{% endmacro %}{{ f(m.content) }}",
    "tags on both sides": "{% if m.content.startswith('<') and m.content.endswith('>') %}!{% endif %}{{ m.content }}",
    "each line": "{% for line in m.content.split('\n') %}{{ '===' if line == '7' else line }}\n{% endfor %}",
    "number of lines": "{% if m.content.split('\n') | length == 2 %}!{% endif %}{{ m.content }}",
    "length": "{% if m.content | length > 300 %}!{% endif %}{{ m.content }}",
    "white space at line ends": "{{ m.content.replace(' \n', '\n') }}",
    "a content that is a key": "{% set d = {'error': 'bad'} %}{{ d[m.content] if m.content in d else m.content }}",
    "as the one before": "{{ 'again: ' if loop.previtem and loop.previtem.content == m.content }}{{ m.content }}",
    "numbers": "{% if m.content.isdigit() %}number {% endif %}{{ m.content }}",
}


def test_a_template_that_asks_a_content_for_a_field():
    """As Mistral's does, which also takes contents that are objects."""
    field = "{% if m.content.content is defined %}{{ m.content.content }}{% else %}{{ m.content | string }}{% endif %}"
    filled = compare(tokenizer_with("field", chatml(tool=TOOL.replace("{{ m.content }}", field))), seed=5)
    shapes = {kind: entry.known for (_, _, kind), entry in filled._answers._entries.items() if entry.times > 1}
    assert shapes
    assert all(known for kind, known in shapes.items() if all(role == "tool" for role, _, _ in kind))


TREATED = (
    *["Yes.", "YES.", "Yes. ", "error", " error\n", "error: none", "An Error", "It is NAÏVE.", "NAÏVE", "Hello World"],
    *["# title", "[1]", "a<b>c", "<table>", "a\n7\nb", "a\nb", "word " * 61, "a \nb", "12.50", "1250", "<", "None."],
)
"""Contents that the templates above treat otherwise than plain words."""


@pytest.mark.parametrize("name", ODD)
def test_templates_that_treat_some_contents_otherwise(monkeypatch: pytest.MonkeyPatch, name: str):
    """No content is written wrongly once, so nothing is left to the comparisons now and then."""
    monkeypatch.setattr(memory, "_is_compared", lambda n: False)
    user, tool = (text.replace("{{ m.content }}", ODD[name]) for text in (WRITES_USER, TOOL))
    tokenizer = tokenizer_with(name, chatml(user=user, tool=tool))
    compare(tokenizer, seed=5)
    fast, slow = pair(tokenizer)
    for content in ("It was sent.", "It is on its way.", *TREATED):
        for ids in (["a"], ["a", "b"]):
            one = called(*ids), [result(content, id) for id in ids]
            assert fast.bridge(*one) == slow.bridge(*one), one


@pytest.mark.parametrize("shown", ["", "| tojson", "| trim"])
def test_ids_that_a_template_may_treat_otherwise(monkeypatch: pytest.MonkeyPatch, shown: str):
    """A policy may write any text as the id of a call."""
    monkeypatch.setattr(memory, "_is_compared", lambda n: False)
    tool = TOOL.replace("{{ m.content }}", f"{{{{ m.tool_call_id {shown} }}}}: {{{{ m.content }}}}")
    fast, slow = pair(tokenizer_with("ids", chatml(tool=tool)))
    for id in ("a1", "b2", "c3", 'c"4', " c5", "c\n6", "", "naïve", "<|im_end|>", "x" * 99, "call-7"):
        for turn in (called(id), {"role": "assistant", "content": "x"}):
            one = turn, [result("sent", id)]
            assert fast.bridge(*one) == slow.bridge(*one), one
    assert any(entry.filled > 1 for entry in fast._answers._entries.values()), "plain ids have shapes"


def test_a_template_that_cuts_long_contents():
    tokenizer = tokenizer_with("cut", chatml(tool=TOOL.replace("m.content", "m.content[:9000]")))
    fast, slow = pair(tokenizer)
    for length in (10, 11, 12, 8999, 9001, 19_999, 20_001, 30_000):
        one = called(), [result("word " * (length // 5))]
        assert fast.bridge(*one) == slow.bridge(*one)


def test_white_space_that_a_control_token_takes_is_that_of_the_content_too():
    tokenizer = HABITS["phi3"].tokenizer("phi3")
    compare(tokenizer, seed=5)


def test_a_shape_that_differs_once_is_given_up(caplog: pytest.LogCaptureFixture):
    """A habit that no probe shows: the template says something else about one word, in a text made of the content."""
    odd = "{{ 'shout' if 'x' ~ 'yzzy' in 'It says: ' ~ m.content else m.content }}"
    tokenizer = tokenizer_with("odd", chatml(tool=TOOL.replace("{{ m.content }}", odd)))
    fast, slow = pair(tokenizer)
    texts = [*["sent"] * 4, *["xyzzy"] * 8]  # filled in for the 4th time: compared
    filled = [fast.bridge(called(), [result(text)]) for text in texts]
    rendered = [slow.bridge(called(), [result(text)]) for text in texts]
    assert filled[-1] == rendered[-1] and filled[-3:] == rendered[-3:]
    assert "such texts are rendered" in caplog.text


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    fast, _ = pair(HABITS["plain"].tokenizer("plain"))
    monkeypatch.setattr(fast._answers, "_size", 5)
    for n in range(40):
        fast.bridge(called(name=f"tool_{n % 10}"), [result("sent")])
    assert len(fast._answers._entries) == 5
    assert memory.MAX_SHAPES >= 500
