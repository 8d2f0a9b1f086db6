"""Every edge of a chat template classed, on templates that keep history, rewrite it, or break."""

import json
from collections.abc import Callable

import pytest

from rollq.errors import JobFailure
from rollq_worker.tokens.selfcheck import check as check_module
from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.check import check, checked_renderer
from rollq_worker.tokens.selfcheck.conversations import WITHOUT_TOOLS, Edge
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer
from tests.rollq_worker.tokens.family_habits import ALL_HABITS
from tests.rollq_worker.tokens.models import THINK, tokenizer_with
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "think",
        "description": "Think.",
        "parameters": {
            "type": "object",
            "properties": {"thought": {"type": "string", "description": "What."}},
        },
    },
}
SPEC = (BUNDLED / "tokenizer.json").read_bytes()
TEMPLATE = (BUNDLED / "chat_template.jinja").read_text()
CODER = """{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'tool' %}{{ '<tool_response>' + m.content + '</tool_response>' }}{% else %}{{ \
m.content }}{% endif %}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}
{%- for k, v in c.function.arguments.items() %}
{{- '<parameter=' + k + '>\\n' }}{{ v if v is string else v | tojson }}{{ '\\n</parameter>\\n' \
}}{% endfor %}
{{- '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Writes calls as Qwen3-Coder's does."""


def classes(tokenizer: Tokenizer, tools: list | None = None) -> dict[Edge, Match]:
    return {
        edge: found.match
        for edge, found in check(tokenizer, [TOOL] if tools is None else tools).edges.items()
    }


@pytest.mark.parametrize("tokenizer", [load_tokenizer, qwen_tokenizer])
def test_the_bundled_template_is_exact_over_all_edges(tokenizer: Callable[[], Tokenizer]):
    assert classes(tokenizer()) == dict.fromkeys(Edge, Match.EXACT)
    if tokenizer is load_tokenizer:
        assert classes(tokenizer(), []) == dict.fromkeys(WITHOUT_TOOLS, Match.EXACT)


def test_a_vocabulary_with_words_among_its_control_tokens_is_unsupported():
    # What an environment says never becomes such a token, while the same word in the template does.
    spec = json.loads(SPEC)
    spec["added_tokens"][0]["content"] = "order"
    tokenizer = Tokenizer("words", json.dumps(spec).encode(), {}, TEMPLATE)
    assert classes(tokenizer)[Edge.OPEN] is Match.UNSUPPORTED
    with pytest.raises(JobFailure, match="control tokens cannot be told from text"):
        checked_renderer(tokenizer, [TOOL])


@pytest.mark.parametrize("words", ["<think>", "Ends with <|im_end|>.", "<tool_call>{}</tool_call>"])
def test_tools_may_speak_of_control_tokens(words: str):
    tokenizer = load_tokenizer()
    tool = json.loads(json.dumps(TOOL))
    tool["function"]["description"] = words
    tool["function"]["parameters"]["properties"] = {words: {"type": "string", "description": words}}
    found = check(tokenizer, [tool])
    assert {finding.match for finding in found.edges.values()} == {Match.EXACT}
    control = set(tokenizer.added_tokens.values())
    messages = [{"role": "user", "content": "u"}]
    plain, spoken = (
        checked_renderer(tokenizer, tools).open(messages, tools) for tools in ([TOOL], [tool])
    )
    assert [id for id in plain if id in control] == [id for id in spoken if id in control]
    assert words in tokenizer.decode(spoken)


@pytest.mark.parametrize(
    ("name", "key", "unread"),
    [
        ("find", "first name", ""),
        ("find", "user-id", ""),
        ("get-order", "x", ""),
        ("find", "a>b", "a>b"),
        ("find", " x", " x"),
        ("<find>", "x", "<find>"),
        ("find", "<think>", "<think>"),
    ],
)
def test_a_name_that_could_not_be_read_back_is_refused_before_the_job_is_played(
    name: str, key: str, unread: str
):
    tokenizer = load_tokenizer().with_template(CODER)
    function = {
        "name": name,
        "description": "d",
        "parameters": {"type": "object", "properties": {key: {}}},
    }
    found = check(tokenizer, [{"type": "function", "function": function}])
    assert found.family.parser == "qwen3_coder" and found.unreadable_name == unread
    if unread:
        with pytest.raises(
            JobFailure, match=f"no call with the name {unread!r} could be read .* rename"
        ):
            found.require()


def test_a_tool_may_have_the_name_of_a_control_token():
    gemma = ALL_HABITS["gemma"]
    tokenizer = tokenizer_with("gemma", gemma.template, [*gemma.added, *THINK])
    check(tokenizer, [TOOL]).require()


def test_a_name_is_read_behind_a_header_that_begins_as_the_call_does():
    # Nothing was read of `ool_call>`: the header goes on with <think>, the turn with <tool_call>.
    header = "'<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n'"
    template = CODER.replace("'<|im_start|>assistant\\n'", header)
    assert header in template
    function = {
        "name": "get-order",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
    }
    assert not check(
        load_tokenizer().with_template(template), [{"type": "function", "function": function}]
    ).unreadable_name


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check_module, "_checks", {})
    monkeypatch.setattr(check_module, "MAX_CHECKS", 3)
    found = check(load_tokenizer(), [TOOL])
    monkeypatch.setattr(check_module, "_compare_templates", lambda *args: found)
    for n in range(10):
        tool = {"type": "function", "function": TOOL["function"] | {"name": f"tool{n}"}}
        assert check(load_tokenizer(), [tool]) == found
        assert len(check_module._checks) <= 3


def test_it_runs_once_for_a_tokenizer_template_and_tools(monkeypatch: pytest.MonkeyPatch):
    rendered = []
    tokenizer = Tokenizer("once", SPEC, {}, TEMPLATE.replace("## Tools", "## Functions"))
    render = tokenizer.render
    monkeypatch.setattr(
        tokenizer, "render", lambda *args, **kwargs: rendered.append(1) or render(*args, **kwargs)
    )
    first = check(tokenizer, [TOOL])
    count = len(rendered)
    assert count and check(tokenizer, [TOOL]) == first and len(rendered) == count
    check(tokenizer, [TOOL, TOOL])
    assert len(rendered) > count


def test_the_cache_names_the_tokenizer_at_hand():
    assert check(Tokenizer("another name", SPEC, {}, TEMPLATE), [TOOL]).tokenizer == "another name"
