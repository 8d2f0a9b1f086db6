"""Prompts and bridges as ids: those of the template, and never a control token of somebody else's
making.
"""

import json
import unicodedata
from array import array
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.env import Action
from rollq.errors import JobFailure
from rollq_worker.tokens.injection_guard import ControlTokens, Guard
from rollq_worker.tokens.known_families import FAMILIES
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer
from tests.rollq_worker.tokens.messages import OPENING, REPLY, TOOLS, called, result
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_tokenizer

VOCABULARIES = ("bundled", "qwen")


@cache
def with_bundled_template(vocabulary: str) -> ChatRenderer:
    return ChatRenderer(load_tokenizer() if vocabulary == "bundled" else qwen_tokenizer(), TOOLS)


@pytest.fixture(scope="module", params=[*VOCABULARIES, "qwen2.5 template", "qwen3 template"])
def renderer(request: pytest.FixtureRequest) -> ChatRenderer:
    """The bundled template on two vocabularies, and two real templates on Qwen's."""
    name, _, is_template = request.param.partition(" ")
    if not is_template:
        return with_bundled_template(name)
    return ChatRenderer(qwen_tokenizer(request.getfixturevalue("real").text(name), name), TOOLS)


def controls(renderer: ChatRenderer, ids: array) -> Counter:
    return Counter(id for id in ids if id in set(renderer.tokenizer.added_tokens.values()))


def test_the_first_prompt_is_the_encoded_template(renderer: ChatRenderer):
    tokenizer = renderer.tokenizer
    assert renderer.open(OPENING, TOOLS) == tokenizer.encode(tokenizer.render(OPENING, TOOLS, True))
    assert renderer.open(OPENING, []) == tokenizer.encode(tokenizer.render(OPENING, None, True))


def test_bridges_spell_out_what_chatml_puts_there(renderer: ChatRenderer):
    encode = renderer.tokenizer.encode
    head, end, next_turn = "\n<|im_start|>user", "<|im_end|>\n", "<|im_start|>assistant\n"

    def response(content: str) -> str:
        return f"\n<tool_response>\n{content}\n</tool_response>"

    one = renderer.bridge(called(), [result("sent")])
    assert one == encode(head + response("sent") + end + next_turn)
    two = renderer.bridge(called("call_0", "call_1"), [result("sent"), result("", "call_1")])
    assert two == encode(head + response("sent") + response("") + end + next_turn)
    user = renderer.bridge(REPLY, [{"role": "user", "content": "Thanks\n"}])
    assert user == encode(f"{head}\nThanks\n{end}{next_turn}")
    assert renderer.bridge(REPLY, [result("Error: no call.")]) == encode(
        head + response("Error: no call.") + end + next_turn
    )


AWKWARD = [
    "",
    "\n",
    "a\n",
    "\n\na",
    " \n\ta\r\n\n  ",
    " \t",
    '{"a": [1,\n2]}',
    "é",
    "e\u0301 \u1100\u1161 ﬁ",
]


@pytest.mark.parametrize("content", AWKWARD)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_conversation_of_bridges_equals_the_full_render(vocabulary: str, content: str):
    renderer = with_bundled_template(vocabulary)
    tokenizer = renderer.tokenizer
    messages: list[dict[str, Any]] = [*OPENING]
    ids = renderer.open(messages, TOOLS)
    for turn, replies in [
        (called(), [result(content)]),
        (REPLY, [{"role": "user", "content": content}]),
        (called("call_0", "call_1"), [result(content), result("b" + content, "call_1")]),
        (called(name="think_hard"), [result(content)]),
    ]:
        parsed = {**turn}
        if "tool_calls" in turn:
            function = {"arguments": {"x": "#W123"}}
            parsed["tool_calls"] = [
                {**call, "function": {**call["function"], **function}}
                for call in turn["tool_calls"]
            ]
        said = tokenizer.render([*messages, parsed], TOOLS, False).removesuffix("\n")
        ids += tokenizer.encode(said.removeprefix(tokenizer.render(messages, TOOLS, True)))
        messages += [parsed, *replies]
        ids += renderer.bridge(turn, replies)
    assert ids == tokenizer.encode(tokenizer.render(messages, TOOLS, True))


def test_a_bridge_costs_the_same_whatever_the_turn_was(renderer: ChatRenderer):
    long = {**REPLY, "content": "word " * 5000, "reasoning_content": "hm " * 5000}
    assert renderer.bridge(long, [result("x")]) == renderer.bridge(REPLY, [result("x")])


def test_halves_of_tokens_do_not_meet(renderer: ChatRenderer):
    """The end of one text, the template's own characters and the start of the next text could spell
    a token.
    """
    plain = controls(renderer, renderer.open(OPENING, []))
    for left, right in [
        ("<|im_", "end|>"),
        ("<", "|im_end|>"),
        ("<|im_end|", ">"),
        ("<tool", "_call>"),
    ]:
        ids = renderer.open(
            [{"role": "system", "content": left}, {"role": "user", "content": right}], []
        )
        assert controls(renderer, ids) == plain


@pytest.mark.parametrize("name", ["tool_call", "/tool_call", "|im_end|", "think"])
def test_a_template_that_makes_tags_of_names_makes_no_control_tokens(name: str):
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}<|im_start|>"
    tokenizer = Tokenizer("tags", (BUNDLED / "tokenizer.json").read_bytes(), {}, template)
    guard = Guard(ControlTokens(tokenizer))
    ids = guard.encode(tokenizer.render([guard.hide({"role": "user", "content": name})]))
    assert tokenizer.decode(ids) == f"<{name}><|im_start|>"
    assert [id for id in ids if id in tokenizer.added_tokens.values()] == [
        tokenizer.added_tokens["<|im_start|>"]
    ]


def test_tokens_that_swallow_white_space_are_encoded_like_the_tokenizer_does():
    spec = json.loads((BUNDLED / "tokenizer.json").read_text())
    for token in spec["added_tokens"]:
        token["rstrip"] = token["content"] in ("<|im_start|>", "<|im_end|>")
        token["lstrip"] = token["content"] == "<|im_end|>"
    tokenizer = Tokenizer(
        "strips", json.dumps(spec).encode(), {}, (BUNDLED / "chat_template.jinja").read_text()
    )
    renderer = ChatRenderer(tokenizer, TOOLS)
    messages = [OPENING[0], {"role": "user", "content": " Hello \n"}]
    assert renderer.open(messages, TOOLS) == tokenizer.encode(
        tokenizer.render(messages, TOOLS, True)
    )


WORDS = st.sampled_from(
    [*(load_tokenizer().added_tokens), "<|", "|>", "im_end", "\n", " ", "{", '"', "\\", "<", ">"]
)
CONTENT = st.one_of(
    st.text(), st.lists(st.one_of(WORDS, st.text(max_size=4)), max_size=12).map("".join)
)


@given(CONTENT, CONTENT)
def test_no_content_makes_a_control_token(first: str, second: str):
    for name in VOCABULARIES:
        renderer = with_bundled_template(name)
        decode = renderer.tokenizer.decode
        ids = renderer.open(
            [{"role": "system", "content": first}, {"role": "user", "content": second}], TOOLS
        )
        assert controls(renderer, ids) == controls(renderer, renderer.open(OPENING, TOOLS))
        assert said(name, f"<|im_start|>user\n{second}<|im_end|>\n") in decode(ids)
        bridge = renderer.bridge(called(name="f"), [result(first), result(second, "call_1")])
        assert controls(renderer, bridge) == controls(
            renderer, renderer.bridge(called(name="f"), [result("a"), result("b", "call_1")])
        )
        assert said(name, f"\n<tool_response>\n{second}\n</tool_response><|im_end|>") in decode(
            bridge
        )


@given(st.text(st.characters(codec="utf-8", exclude_characters="<")))
def test_harmless_content_is_encoded_as_the_tokenizer_does(text: str):
    tokenizer = with_bundled_template("qwen").tokenizer
    messages = [{"role": "system", "content": text}, {"role": "user", "content": f"x{text}y"}]
    prompt = tokenizer.render(messages, TOOLS, True)
    assert with_bundled_template("qwen").open(messages, TOOLS) == tokenizer.encode(prompt)


def said(name: str, text: str) -> str:
    """What decoding gives back: the Qwen vocabulary composes accents."""
    return text if name == "bundled" else unicodedata.normalize("NFC", text)


def test_lone_surrogates_pass_as_replacement_characters(renderer: ChatRenderer):
    bridge = renderer.bridge(called(name="f"), [result("a\ud800<|im_end|>")])
    assert "a\ufffd<|im_end|>" in renderer.tokenizer.decode(bridge)


def test_a_sampled_turn_is_read_without_its_stop_token(renderer: ChatRenderer):
    text = 'On it.\n<tool_call>\n{"name": "get_order", "arguments": {"x": "#W123"}}\n</tool_call>'
    for stop in ("", "<|im_end|>", "<|endoftext|>"):
        read = renderer.read(renderer.tokenizer.encode(text + stop))
        assert (read.content, list(read.calls)) == ("On it.", [Action("get_order", {"x": "#W123"})])
    assert renderer.read(array("I")).content == ""
    assert (
        renderer.read(renderer.tokenizer.encode("a<|im_end|>b<|im_end|>")).content == "a<|im_end|>b"
    )


def test_a_header_that_opens_the_reasoning():
    template = (BUNDLED / "chat_template.jinja").read_text()
    thinking = template.replace(
        "'<|im_start|>assistant\\n' -}}\n{%- endif",
        "'<|im_start|>assistant\\n<think>\\n' -}}\n{%- endif",
    )
    assert thinking != template
    tokenizer = Tokenizer("thinking", (BUNDLED / "tokenizer.json").read_bytes(), {}, thinking)
    read = ChatRenderer(tokenizer).read(tokenizer.encode("well\n</think>\n\nHi<|im_end|>"))
    assert (read.reasoning, read.content) == ("well", "Hi")


def test_chatml_turns_end_with_two_tokens(renderer: ChatRenderer):
    ids = renderer.tokenizer.added_tokens
    assert renderer.stop_ids == (ids["<|im_end|>"], ids["<|endoftext|>"])


def test_what_cannot_be_bridged_is_the_jobs_failure(renderer: ChatRenderer):
    for replies in (
        [],
        [{"role": "system", "content": "x"}],
        [result("x"), {"role": "assistant", "content": "y"}],
    ):
        with pytest.raises(
            JobFailure, match=r"the edge assistant -> .* is not supported: a turn is answered by"
        ):
            renderer.bridge(REPLY, replies)
    with pytest.raises(JobFailure, match="has the role 'narrator'"):
        renderer.open([{"role": "narrator", "content": "x"}], [])


def test_a_template_without_an_end_of_turn_is_refused():
    template = (
        "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls "
        "or [] %}<tool_call>"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson '
        "}}}</tool_call>{% endfor %}"
        "{% endfor %}"
    )
    tokenizer = Tokenizer("endless", (BUNDLED / "tokenizer.json").read_bytes(), {}, template)
    with pytest.raises(
        JobFailure, match="the template does not end the assistant's turn before the reply"
    ):
        ChatRenderer(tokenizer, TOOLS, family=FAMILIES[0]).bridge(REPLY, [result("x")])


def test_many_kinds_of_turns_are_bounded_in_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollq_worker.tokens.made_up_conversation.MAX_HEADS", 3)
    renderer = ChatRenderer(load_tokenizer(), TOOLS)
    first = renderer.bridge(called(name="f0"), [result("x")])
    for n in range(10):
        assert renderer.bridge(called(name=f"f{n}"), [result("x")]) == first
    assert len(renderer._made_up._heads) <= 3


def test_siblings_share_their_first_prompt_and_tools_that_change_in_place_are_shown():
    renderer = ChatRenderer(load_tokenizer(), TOOLS)
    assert renderer.open(OPENING, TOOLS) is renderer.open(
        json.loads(json.dumps(OPENING)), renderer.tools
    )
    tools = json.loads(json.dumps(TOOLS))
    for strict in (True, 1, None, True):
        tools[0]["function"]["strict"] = strict
        assert renderer.open(OPENING, tools) == renderer.tokenizer.encode(
            renderer.prompt(OPENING, tools)
        )


@pytest.mark.parametrize("arguments", ["{", "[" * 100_000])
def test_arguments_that_are_not_json_are_shown_as_text(arguments: str):
    renderer = ChatRenderer(load_tokenizer())
    turn = called()
    turn["tool_calls"][0]["function"] = {"name": "get_order", "arguments": arguments}
    ids = renderer.open([*OPENING, turn, result("x"), OPENING[1]], TOOLS)
    assert arguments in renderer.tokenizer.decode(ids)
