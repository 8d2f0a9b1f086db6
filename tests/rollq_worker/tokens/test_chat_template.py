"""Chat templates: the same text as transformers' `apply_chat_template`, and the arguments that a
template reads.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import JobFailure
from rollq.job import GIVEN_TO_TEMPLATES
from rollq_worker.tokens.chat_template import TODAY, ChatTemplate
from rollq_worker.tokens.tokenizer import BUNDLED
from rollq_worker.tokens.training_templates import template_text, training_templates
from tests.rollq_worker.tokens.family_habits import ALL_HABITS
from tests.rollq_worker.tokens.models import NAMES, RealTemplates
from tests.rollq_worker.tokens.template_habits import chatml

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Hi <&> ü"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "ü <b>'",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string", "enum": ["x", "ü"]}},
                "required": ["a"],
            },
        },
    }
    for name in ("f", "g")
]


def call(id: str, arguments: Any, name: str = "f") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations() -> Iterator[list[dict[str, Any]]]:
    for arguments in ({"a": "ü<>&'\"", "n": [1, None, 2.5]}, json.dumps({"a": 1})):
        turn = {
            "role": "assistant",
            "content": "",
            "reasoning_content": "w",
            "tool_calls": [call("call00001", arguments)],
        }
        played = [
            USER,
            turn,
            {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "r\n\n"},
        ]
        two = [call("call00002", arguments), call("call00003", {}, "g")]
        results = [
            {"role": "tool", "tool_call_id": id, "content": ""} for id in ("call00002", "call00003")
        ]
        yield [USER]
        yield played
        yield [
            {"role": "system", "content": "s"},
            *played,
            {"role": "assistant", "content": "b", "thinking": "t"},
            USER,
        ]
        yield [*played, {"role": "assistant", "content": None, "tool_calls": two}, *results]


class Transformers:
    """The reference, with our date."""

    def __init__(self, template: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers import PreTrainedTokenizerFast
        from transformers.utils import chat_template_utils

        class Clock:
            @staticmethod
            def now() -> Any:
                return TODAY

        monkeypatch.setattr(chat_template_utils, "datetime", Clock)
        nothing = tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, unk_token=""))
        self._tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=nothing, chat_template=template, **NAMED
        )

    def render(
        self, messages: Sequence[Any], tools: Any, header: bool, arguments: Mapping[str, Any]
    ) -> str | None:
        """None: the template refuses it."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                add_generation_prompt=header,
                tokenize=False,
                **arguments,
            )
        except Exception:
            return None
        return text


def rendered(
    template: ChatTemplate, messages: Sequence[Any], tools: Any, header: bool
) -> str | None:
    try:
        return template.render(messages, tools, header, {})
    except JobFailure:
        return None


def compare(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many renderings both write, after checking that they are the same."""
    theirs, plain, same = Transformers(text, monkeypatch), ChatTemplate("t", text, NAMED), 0
    switches = [
        {name: value}
        for name in plain.arguments
        if name.endswith("thinking")
        for value in (True, False)
    ]
    switches += [{"reasoning_effort": "high"}] if "reasoning_effort" in plain.arguments else []
    for arguments in ({}, *switches):
        ours = plain.with_arguments(arguments)
        for messages in conversations():
            for tools in (None, TOOLS):
                for header in (True, False):
                    expected = theirs.render(messages, tools, header, arguments)
                    assert rendered(ours, messages, tools, header) == expected
                    same += expected is not None
    return same


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.packages
def test_real_templates_are_rendered_as_transformers_does(
    name: str, real: RealTemplates, monkeypatch: pytest.MonkeyPatch
):
    assert compare(real.text(name), monkeypatch) >= 12


@pytest.mark.parametrize(
    "name", [name for name in ALL_HABITS if "append(" not in ALL_HABITS[name].template]
)
@pytest.mark.packages
def test_habits_are_rendered_as_transformers_does(name: str, monkeypatch: pytest.MonkeyPatch):
    assert compare(ALL_HABITS[name].template, monkeypatch) >= 4


@pytest.mark.parametrize("name", [*training_templates(), "bundled"])
@pytest.mark.packages
def test_own_templates_are_rendered_as_transformers_does(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    text = (
        (BUNDLED / "chat_template.jinja").read_text() if name == "bundled" else template_text(name)
    )
    assert compare(text, monkeypatch) >= 12


CORNERS = {
    "date": "{{ strftime_now('%d %b %Y') }} {{ strftime_now(\"%H:%M\") }}",
    "json": "{{ tools | tojson(indent=2) }}{{ messages | tojson(separators=(',', ':'), "
    "sort_keys=true) }}",
    "not ASCII": "{{ messages | tojson }}{{ messages | tojson(ensure_ascii=true) }}",
    "loop control": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ "
    "m.role }}{% endfor %}",
    "generation": "{% set x = 1 %}{% for m in messages %}\n  {% generation %}\n{{ m.role "
    "}}{% set x = 2 %}\n"
    "  {% endgeneration %}\n{{ x }}{% endfor %}",
    "blocks": "  {% if true %}\n a \n  {%- endif %}\n\n b\n",
    "named tokens": "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}",
    "nothing": "{% for m in messages %}{{ m.content is defined }}{{ m.tool_calls is "
    "defined }}{% endfor %}",
    "reasoning": "{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}{{ "
    "m.reasoning }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% "
    "endfor %}{{ ns.n }}",
    "documents": "{{ documents is none }}{{ tools is none }}{{ tools is defined }}",
    "refusal": "{{ raise_exception('no') }}",
    "unsafe": "{{ messages.__class__.__mro__ }}",
    "dict": "{{ dict(a=1) | tojson }}{{ range(3) | list }}",
}


@pytest.mark.parametrize("name", CORNERS)
@pytest.mark.packages
def test_corners_are_rendered_as_transformers_does(name: str, monkeypatch: pytest.MonkeyPatch):
    assert (compare(CORNERS[name], monkeypatch) > 0) == (name not in ("refusal", "unsafe"))


@pytest.mark.packages
def test_of_several_templates_the_one_for_tools_is_used_with_tools(monkeypatch: pytest.MonkeyPatch):
    texts = {"tool_use": "tools {{ a }}", "default": "plain {{ b }}", "rag": "{{ not Jinja"}
    ours, theirs = ChatTemplate("t", texts, {}), Transformers(texts, monkeypatch)
    for tools in (None, [], TOOLS):
        assert rendered(ours, [USER], tools, True) == theirs.render([USER], tools, True, {})
    assert ours.arguments == {"a", "b"}
    with pytest.raises(JobFailure, match="none is for conversations without tools"):
        ChatTemplate("t", {"tool_use": "x"}, {}).render([USER], None, True, {})


messages = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(st.text(), max_size=3)}),
    min_size=1,
    max_size=3,
)


@given(messages=messages)
def test_a_template_never_changes_what_the_caller_gave(messages: list[dict[str, Any]]):
    text = (
        "{% for m in messages %}{% set _ = m.content.append('x') %}{% set _ = "
        "m.update(role='y') %}{% endfor %}"
        "{% set _ = messages.append(1) %}{% set _ = tools.clear() %}{% set _ = "
        "given.pop() %}{{ messages | length }}"
    )
    before = json.dumps([messages, TOOLS])
    arguments = {"given": ["z"]}
    template = ChatTemplate("t", text, {}).with_arguments(arguments)
    for _ in range(2):
        assert template.render(messages, TOOLS, True, {}) == str(len(messages) + 1)
    assert json.dumps([messages, TOOLS]) == before
    assert arguments == {"given": ["z"]} == template.fixed_arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (
            "{{ messages }}{{ tools }}{{ documents }}{{ bos_token }}{{ "
            "add_generation_prompt }}{{ range(1) }}",
            "",
        ),
        (
            "{% if enable_thinking is defined and not enable_thinking %}x{% endif %}",
            "enable_thinking",
        ),
        (
            "{% set thinking = thinking if thinking is defined else true %}{{ thinking }}",
            "thinking",
        ),
        ("{% if not effort is defined %}{% set effort = 'low' %}{% endif %}{{ effort }}", "effort"),
        ("{% if not quick %}{% set quick = 1 %}{% endif %}{{ quick }}", "quick"),
        ("{% if tools %}{% set shown = 1 %}{% endif %}{{ shown }}", ""),
        ("{% set x = 0 %}{% for m in messages %}{% set y = m %}{{ x }}{{ y }}{% endfor %}", ""),
        ("{% macro f(a, b=c) %}{{ a }}{{ b }}{{ d }}{% endmacro %}{{ f(e) }}", "c d e"),
        (
            "{% for m in messages %}{% set t = m.t %}{% endfor %}{{ t | default(fallback) }}",
            "fallback t",
        ),
        (
            "{% macro f(format) %}{{ format }}{% endmacro %}{{ f(1) }}{% if format %}x{% endif %}",
            "format",
        ),
        (
            "{% macro f(c) %}{{ c is undefined }}{% endmacro %}{% if tools %}{% set c = "
            "1 %}{% endif %}{{ f(c) }}",
            "",
        ),
        ("{% if tools %}{% set t = tools[0] %}{% endif %}{{ t.kind is defined }}", ""),
    ],
)
def test_the_arguments_that_a_template_reads(text: str, arguments: str):
    assert sorted(ChatTemplate("t", text, {}).arguments) == arguments.split()


def test_arguments_of_real_templates(real: RealTemplates):
    known = {name: ChatTemplate(name, real.text(name), {}).arguments for name in NAMES}
    assert known["qwen3"] == known["glm-4.6"] == {"enable_thinking"}
    assert known["deepseek-v3.1"] == {"thinking", "enable_thinking"}
    assert known["gpt-oss"] == {"reasoning_effort", "model_identity", "builtin_tools"}
    assert known["qwen3.5"] == {"enable_thinking", "add_vision_id"}
    assert known["qwen2.5"] == known["hermes-3"] == frozenset()


def test_a_misspelt_argument_is_refused_with_the_known_names():
    template = ChatTemplate("t", chatml() + "{{ enable_thinking }}{{ effort }}", NAMED)
    with pytest.raises(
        JobFailure,
        match=r"of t does not read 'enable_thinkin'; it reads .*; did you mean enable_thinking",
    ):
        template.with_arguments({"enable_thinkin": False})
    with pytest.raises(JobFailure, match=r"does not read 'x'; it reads effort, enable_thinking$"):
        template.with_arguments({"x": False})
    with pytest.raises(JobFailure, match="does not read 'x': it takes no arguments"):
        ChatTemplate("t", chatml(), NAMED).with_arguments({"x": 1})
    for name in GIVEN_TO_TEMPLATES:
        with pytest.raises(JobFailure, match=f"does not read '{name}'"):
            template.with_arguments({name: "x"})


def test_a_given_argument_wins():
    template = ChatTemplate("t", "{{ a }}{{ b }}", {}).with_arguments({"a": 1})
    assert template.render([USER], None, True, {"a": 2, "b": 3}) == "13"
