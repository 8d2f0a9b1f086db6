"""Bridges, stop tokens, ids of calls and reading in every main model family."""

import json

import pytest

from rollq.env import Action
from rollq.errors import JobFailure
from rollq_worker.tokens.renderer import ChatRenderer
from tests.rollq_worker.tokens.family_habits import ALL_HABITS
from tests.rollq_worker.tokens.messages import OPENING, REPLY, TOOLS, USER, called, result
from tests.rollq_worker.tokens.models import COHERE, DEEPSEEK, RealTemplates, tokenizer_with


def test_glm_stops_at_the_next_header(real: RealTemplates):
    renderer = ChatRenderer(real.tokenizer("glm-4.6"), TOOLS)
    decode, ids = renderer.tokenizer.decode, renderer.tokenizer.added_tokens
    user, observation, end = ids["<|user|>"], ids["<|observation|>"], ids["<|endoftext|>"]
    assert set(renderer.stop_ids) == {user, observation, end}
    after = "\n<tool_response>\nx\n</tool_response><|assistant|>"
    assert decode(renderer.bridge(called(), [result("x")], observation)) == after
    assert decode(renderer.bridge(called(), [result("x")])) == after
    assert decode(renderer.bridge(REPLY, [USER], user)) == "\nThanks.<|assistant|>"
    # A stop that is no header: the bridge brings the header along.
    assert decode(renderer.bridge(called(), [result("x")], end)) == f"<|observation|>{after}"
    assert decode(renderer.bridge(REPLY, [USER], end)) == "<|user|>\nThanks.<|assistant|>"
    with pytest.raises(JobFailure, match=r"ended with <\|user\|>, which only a user may answer"):
        renderer.bridge(called(), [result("x")], user)
    with pytest.raises(
        JobFailure, match=r"ended with <\|observation\|>, which only a tool may answer"
    ):
        renderer.bridge(REPLY, [USER], observation)
    assert (renderer.replying_roles(user), renderer.replying_roles(observation)) == (
        {"user"},
        {"tool"},
    )
    assert renderer.replying_roles(end) == {"user", "tool"}
    assert [renderer.complaint_role(stop) for stop in (user, observation, end)] == [
        "user",
        "tool",
        "user",
    ]
    assert (renderer.close(called(), [result("x")]), renderer.close(REPLY, [USER])) == (
        observation,
        user,
    )


def test_gemma_goes_on_behind_a_tool_response(real: RealTemplates):
    renderer = ChatRenderer(real.tokenizer("gemma-4"), TOOLS)
    decode, ids = renderer.tokenizer.decode, renderer.tokenizer.added_tokens
    response = 'response:get_order{value:<|"|>x<|"|>}<tool_response|>'
    assert decode(renderer.bridge(called(), [result("x")], ids["<|tool_response>"])) == response
    assert (
        decode(renderer.bridge(called(), [result("x")], ids["<turn|>"]))
        == f"<|tool_response>{response}"
    )
    header = "\n<|turn>user\nThanks.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    assert decode(renderer.bridge(REPLY, [USER], ids["<turn|>"])) == header
    with pytest.raises(JobFailure, match="only a tool may answer"):
        renderer.bridge(REPLY, [USER], ids["<|tool_response>"])
    assert renderer.complaint_role(ids["<turn|>"]) == "user"


def test_ids_that_an_agent_uses_again_hide_no_result_where_each_call_is_a_turn():
    renderer = ChatRenderer(ALL_HABITS["gigachat3"].tokenizer("gigachat3"), TOOLS)
    first = [called("call_0", "call_1"), result("one"), result("two", "call_1")]
    ids = renderer.open([*OPENING, *first, called("call_0"), result("three")], TOOLS)
    text = renderer.tokenizer.decode(ids)
    assert [text.count(word) for word in ("one", "two", "three")] == [1, 1, 1]


def test_gpt_oss_returns_and_calls(real: RealTemplates):
    renderer = ChatRenderer(real.tokenizer("gpt-oss"), TOOLS)
    decode, ids = renderer.tokenizer.decode, renderer.tokenizer.added_tokens
    assert ids["<|end|>"] not in renderer.stop_ids and ids["<|call|>"] in renderer.stop_ids
    tool = (
        "<|start|>functions.get_order "
        'to=assistant<|channel|>commentary<|message|>"x\\ny"<|end|><|start|>assistant'
    )
    assert decode(renderer.bridge(called(), [result("x\ny")], ids["<|call|>"])) == tool
    user = "<|start|>user<|message|>Thanks.<|end|><|start|>assistant"
    assert decode(renderer.bridge(REPLY, [USER], ids["<|return|>"])) == user
    two = (
        called("a", "b"),
        [result("x\ny", "a"), result("x\ny", "b"), USER],
    )  # a user's message behind several results
    header = "<|start|>assistant"
    assert decode(renderer.bridge(*two, ids["<|call|>"])) == tool.removesuffix(header) * 2 + user
    assert (
        renderer.close(REPLY, [USER]) == ids["<|end|>"]
        and renderer.close(called(), [result("x")]) == ids["<|call|>"]
    )
    turn = (
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_order <|constrain|>json<|message|>{"x": "1"}<|call|>'
    )
    read = renderer.read(renderer.tokenizer.encode(turn))
    assert (list(read.calls), read.reasoning, read.content) == (
        [Action("get_order", {"x": "1"})],
        "Look it up.",
        "",
    )


def test_llama_escapes_tool_output(real: RealTemplates):
    renderer = ChatRenderer(real.tokenizer("llama-3.1"), TOOLS)
    header = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    tool = f'<|start_header_id|>ipython<|end_header_id|>\n\n"x\\n\\"y\\""<|eot_id|>{header}'
    assert renderer.tokenizer.decode(renderer.bridge(called(), [result('x\n"y"')])) == tool


def test_ids_of_calls_are_the_familys(real: RealTemplates):
    kimi = ChatRenderer(ALL_HABITS["kimi-k2"].tokenizer("kimi-k2"), TOOLS)
    for id, shown in (
        ("functions.get_order:7", "functions.get_order:7"),
        ("call_3", "functions.get_order:0"),
    ):
        bridge = kimi.tokenizer.decode(kimi.bridge(called(id), [result("x", id)]))
        assert f"## Return of {shown}\nx" in bridge
    mistral = ChatRenderer(real.tokenizer("mistral-nemo"), TOOLS)
    for id, shown in (("abcDEF123", "abcDEF123"), ("call_3", "000000000")):
        bridge = mistral.tokenizer.decode(mistral.bridge(called(id), [result("x", id)]))
        assert bridge == f'[TOOL_RESULTS]{{"content": x, "call_id": "{shown}"}}[/TOOL_RESULTS]'


def test_deepseek_is_told_of_its_tools_though_its_template_does_not(real: RealTemplates):
    renderer = ChatRenderer(real.tokenizer("deepseek-v3.1"), TOOLS)
    ids = renderer.open(OPENING, TOOLS)
    text = renderer.tokenizer.decode(ids)
    assert (
        text.startswith("<｜begin▁of▁sentence｜>Be brief.\n\n## Tools\nYou have access")
        and "### think_hard\n" in text
    )
    assert text.endswith("<｜User｜>Where is #W123?<｜Assistant｜><think></think>")
    assert (
        renderer.tokenizer.added_tokens["<｜tool▁calls▁begin｜>"] in ids
    )  # the form of a call, in its own tokens
    assert "## Tools" in renderer.tokenizer.decode(renderer.open(OPENING[1:], TOOLS))
    assert "## Tools" not in renderer.tokenizer.decode(renderer.open(OPENING, []))


def test_the_reasoning_of_some_headers_only(real: RealTemplates):
    """A header that opens reasoning after a user and not after a tool: what is read tells whether
    it did.
    """
    template = real.text("deepseek-v3.1").replace(
        "{%- if not thinking -%}{{'<think></think>'}}", "{%- if true -%}{{'<think>'}}"
    )
    renderer = ChatRenderer(tokenizer_with("thinks", template, DEEPSEEK), TOOLS)
    assert renderer.read(renderer.tokenizer.encode("hm</think>Hi")).reasoning == "hm"
    assert renderer.read(renderer.tokenizer.encode("Hi")).content == "Hi"


def test_numbers_in_results_are_no_ids_of_calls():
    """A template that numbers the calls from 0, as Command R7B's does."""
    command = ALL_HABITS["command"].template
    counting = "{%- set seen = namespace(n=0, ids={}) %}" + command.replace(
        "{{ c.id }}",
        "{% set _ = seen.ids.update({c.id: seen.n}) %}{{ seen.n }}{% set seen.n = seen.n + 1 %}",
    ).replace("{{ m.tool_call_id }}", "{{ seen.ids[m.tool_call_id] }}")
    renderer = ChatRenderer(tokenizer_with("counting", counting, COHERE), TOOLS)
    for content in ("101 at 10.50", "0", "1.0 (0)", "\x1f 0", "0\x001"):
        results = [result(content, "1"), result("01", "2")]
        text = renderer.tokenizer.decode(renderer.bridge(called("1", "2"), results))
        assert f"<|START_TOOL_RESULT|>1: {json.dumps(content)}<|END" in text
        assert '<|START_TOOL_RESULT|>2: "01"<|END' in text
