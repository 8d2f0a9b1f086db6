"""Every main model family: how its template's edges are classed, and how its turns are bridged, stopped and read."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq_worker.protocols import Action
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import Match, check, checked_renderer
from rollq_worker.tokens.selfcheck.comparison import MOVED, ONCE
from rollq_worker.tokens.selfcheck.conversations import Edge, Golden
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import PARSERS
from tests.rollq_worker.tokens.models import DEEPSEEK, Models
from tests.rollq_worker.toolcalls.variations import REFUSED, VARIATIONS

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} it.",
            "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "What."}}},
        },
    }
    for name in ("get_order", "think_hard")
]
OPENING = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is #W123?"}]
LETTERS = {Match.EXACT: "E", Match.REWRITE: "R", Match.UNSUPPORTED: "-"}
REAL = {
    # in the order of Edge: first prompt; call, again, calls, words; user, served, cut; empty, lines, malformed; three
    # thoughts
    "deepseek-v3.1": ("deepseek-v3.1", "E EEEE EEE EEE EEE"),
    "gemma-4": ("gemma4", "E RRRR RRR RRR RER"),
    "glm-4.6": ("glm", "E EEEE EEE EEE EER"),
    "glm-4.7": ("glm", "E RRRR RRR RRR EEE"),
    "gpt-oss": ("gpt-oss", "E EEEE RRR EEE EER"),
    "granite-4.0": ("other (hermes)", "E EEEE EEE EEE EEE"),
    "hermes-3": ("chatml-hermes", "E ERER ERE EEE RRR"),
    "llama-3.1": ("llama3", "E EE-R EEE EEE RRE"),
    "minimax-m2": ("minimax-m2", "E RRRR RRR RRR EER"),
    "mistral-nemo": ("mistral", "E RERR RRR RRR RRR"),
    "nemotron-3": ("chatml-coder", "E RRRR RRR RRR EEE"),
    "qwen2.5": ("chatml-hermes", "E EEEE EEE EEE EEE"),
    "qwen3": ("chatml-hermes", "E RRRR RRR RRR EER"),
    "qwen3-coder": ("chatml-coder", "E EEEE EEE EEE EEE"),
    "qwen3.5": ("chatml-coder", "E EEEE RRR EEE EER"),
    "seed-oss": ("other (seed)", "E EEEE EEE EEE EEE"),
}
ASKED_TO_KEEP = {"glm-4.7": {"clear_thinking": False}, "nemotron-3": {"truncate_history_thinking": False}}


@pytest.fixture(scope="module")
def models(shared: Path) -> Models:
    return Models(shared)


def letters(tokenizer: Tokenizer, anew: bool = False) -> str:
    found = check(tokenizer, TOOLS, anew).edges
    row = "".join(LETTERS[found[edge].match] for edge in Edge)
    return " ".join((row[:1], row[1:5], row[5:8], row[8:11], row[11:]))


def called(*ids: str, name: str = "get_order") -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": '{"x": "#W123"}'}}
        for id in ids or ("call_0",)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(content: str, id: str = "call_0") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


REPLY = {"role": "assistant", "content": "It is on its way."}
USER = {"role": "user", "content": "Thanks."}


def test_the_table_of_real_templates(models: Models):
    found = {name: models.real(name) for name in models.names}
    assert {name: (check(found[name], TOOLS).family, letters(found[name])) for name in found} == REAL


@pytest.mark.parametrize("name", REAL)
def test_templates_are_asked_to_keep_old_reasoning_where_that_helps(models: Models, name: str):
    tokenizer = models.real(name)
    found = check(tokenizer, TOOLS)
    assert dict(found.kwargs) == ASKED_TO_KEEP.get(name, {})
    # Not where the template's own history is wanted.
    assert not check(tokenizer, TOOLS, anew=True).kwargs
    if name in ASKED_TO_KEEP:
        assert letters(tokenizer, anew=True) == REAL[name][1][:-1] + "R"
    said = [*OPENING, called() | {"reasoning_content": "hm"}, result("x"), REPLY, USER]
    kept, own = checked_renderer(tokenizer, TOOLS), checked_renderer(tokenizer, TOOLS, anew=True)
    assert kept.open(OPENING, TOOLS) == own.open(OPENING, TOOLS)
    assert (kept.open(said, TOOLS) != own.open(said, TOOLS)) is (name in ASKED_TO_KEEP)


def test_bridges_are_what_the_templates_write_at_the_end(models: Models):
    """The delta table, without the self-check: each bridge against the end of the full render."""
    exact, moved, once, other = 0, 0, [], []
    for name in models.names:
        tokenizer = models.real(name)
        found, renderer = check(tokenizer, TOOLS), checked_renderer(tokenizer, TOOLS)
        golden = Golden(TOOLS, renderer.complaint_role(None), PARSERS[found.parser].think)
        for edge in Edge:
            if edge is Edge.OPEN or found.edges[edge].match is Match.UNSUPPORTED:
                continue
            for play in golden.plays(edge):
                bridge = renderer.bridge(play.turn, play.replies)
                try:
                    full = tokenizer.encode(renderer.prompt([*play.history, play.turn, *play.replies], TOOLS))
                except JobFailure:
                    continue
                if full[-len(bridge) :] == bridge and renderer.is_end(full[-len(bridge) - 1]):
                    exact += 1
                elif found.edges[edge].why == MOVED:
                    moved += 1
                elif found.edges[edge].why == ONCE:
                    once.append((name, edge))
                elif edge is not Edge.MALFORMED:  # a template may leave out results without a call
                    other.append((name, edge))
                break
    assert exact >= 200 and not other
    assert once == [("gemma-4", Edge.WORDS)]  # it writes the words behind the result, which came later
    assert moved == 5 - 1  # Mistral's users: the tools and the system prompt move to the last one


@pytest.mark.parametrize("name", VARIATIONS)
def test_habits_of_templates(models: Models, name: str):
    template, added, expected = VARIATIONS[name]
    found = check(models.made(name, template, added), TOOLS).edges
    assert {edge: LETTERS[found[edge].match].replace("-", "U") for edge in Edge} == expected


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_are_refused_with_a_remedy(models: Models, name: str):
    template, added, why = REFUSED[name]
    with pytest.raises(JobFailure, match=why) as raised:
        checked_renderer(models.made(name, template, added), TOOLS)
    assert name in str(raised.value) and ("use a" in str(raised.value) or "mend" in str(raised.value))


@pytest.mark.parametrize("name", ["the tools again at each message", "qwen2.5", "gemma-4", "mistral-nemo"])
def test_what_tools_say_of_control_tokens_is_text_in_bridges_too(models: Models, name: str):
    tokenizer = models.real(name) if name in REAL else models.made(name, *VARIATIONS[name][:2])
    spoken = json.loads(json.dumps(TOOLS))
    spoken[0]["function"]["description"] = " ".join(list(tokenizer.added_tokens)[:40])
    control = set(tokenizer.added_tokens.values())
    found = []
    for tools in (TOOLS, spoken):
        renderer = checked_renderer(tokenizer, tools)
        ids = [renderer.open(OPENING, tools)]
        ids += [renderer.bridge(*answered) for answered in ((called(), [result("r")]), (REPLY, [USER]))]
        found.append([[id for id in some if id in control] for some in ids])
    assert found[0] == found[1]
    assert check(tokenizer, spoken).edges == check(tokenizer, TOOLS).edges


def test_an_unsupported_edge_may_be_rendered_anew(models: Models):
    template, added, _ = VARIATIONS["shows the first result otherwise"]
    tokenizer = models.made("first", template, added)
    with pytest.raises(JobFailure, match="second call -> tool"):
        checked_renderer(tokenizer, TOOLS)
    renderer = checked_renderer(tokenizer, TOOLS, anew=True)
    history = [*OPENING, called(), result("one"), called("call_1")]
    anew = renderer.open([*history, result("two", "call_1")], TOOLS)
    assert anew == tokenizer.encode(renderer.prompt([*history, result("two", "call_1")], TOOLS))


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    "unread",
    [
        {"role": "assistant", "content": "Well. <tool_call>{'name'"},
        {"role": "assistant", "content": "", "reasoning_content": "A thought without its end"},
        {"role": "assistant", "content": ""},
    ],
    ids=["malformed call", "open thought", "nothing"],
)
def test_a_turn_that_could_not_be_read_is_rendered_anew_with_its_complaint(
    models: Models, name: str, unread: dict[str, Any]
):
    renderer = checked_renderer(models.real(name), TOOLS, anew=True)
    complaint = {"role": renderer.complaint_role(None), "content": "Error: complaintword."}
    if complaint["role"] == "tool":
        complaint["tool_call_id"] = "call_0"
    history = [*OPENING, unread, complaint]
    for more in ([], [called("call_1"), result("resultword", "call_1")], [REPLY, USER]):
        messages = [*history, *more]
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        renderer.rewrites_history(messages[: turns[-1] + 1], messages[turns[-1] + 1 :], TOOLS)
        text = renderer.tokenizer.decode(renderer.open(messages, TOOLS))
        assert "complaintword" in text and ("resultword" in text) is any("resultword" in str(m) for m in more)
    assert check(models.real(name), TOOLS, anew=True).edges[Edge.MALFORMED].renders


def test_an_edge_that_a_job_needs_is_named(models: Models):
    checked_renderer(models.real("llama-3.1"), TOOLS)
    with pytest.raises(JobFailure, match=r"'calls -> tools': .*single tool-calls"):
        checked_renderer(models.real("llama-3.1"), TOOLS, Edge.CALLS)


def test_rewriting_is_found_at_run_time_too(models: Models):
    qwen, coder = ChatRenderer(models.real("qwen3"), TOOLS), ChatRenderer(models.real("qwen3-coder"), TOOLS)
    thought = called() | {"reasoning_content": "Look it up."}
    for renderer, turn, replies, rewritten in [
        (qwen, called(), [result("x")], True),
        (qwen, thought, [result("x")], False),
        (qwen, REPLY, [USER], True),
        (coder, called(), [result("x")], False),
        (coder, REPLY, [USER], False),
    ]:
        assert renderer.rewrites_history([*OPENING, turn], replies, TOOLS) is rewritten


def test_glm_stops_at_the_next_header(models: Models):
    renderer = ChatRenderer(models.real("glm-4.6"), TOOLS)
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
    with pytest.raises(JobFailure, match=r"ended with <\|observation\|>, which only a tool may answer"):
        renderer.bridge(REPLY, [USER], observation)
    assert (renderer.answers(user), renderer.answers(observation)) == ({"user"}, {"tool"})
    assert renderer.answers(end) == {"user", "tool"}
    assert [renderer.complaint_role(stop) for stop in (user, observation, end)] == ["user", "tool", "user"]
    assert (renderer.close(called(), [result("x")]), renderer.close(REPLY, [USER])) == (observation, user)


def test_gemma_goes_on_behind_a_tool_response(models: Models):
    renderer = ChatRenderer(models.real("gemma-4"), TOOLS)
    decode, ids = renderer.tokenizer.decode, renderer.tokenizer.added_tokens
    response = 'response:get_order{value:<|"|>x<|"|>}<tool_response|>'
    assert decode(renderer.bridge(called(), [result("x")], ids["<|tool_response>"])) == response
    assert decode(renderer.bridge(called(), [result("x")], ids["<turn|>"])) == f"<|tool_response>{response}"
    header = "\n<|turn>user\nThanks.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    assert decode(renderer.bridge(REPLY, [USER], ids["<turn|>"])) == header
    with pytest.raises(JobFailure, match="only a tool may answer"):
        renderer.bridge(REPLY, [USER], ids["<|tool_response>"])
    assert renderer.complaint_role(ids["<turn|>"]) == "user"


def test_gpt_oss_returns_and_calls(models: Models):
    renderer = ChatRenderer(models.real("gpt-oss"), TOOLS)
    decode, ids = renderer.tokenizer.decode, renderer.tokenizer.added_tokens
    assert ids["<|end|>"] not in renderer.stop_ids and ids["<|call|>"] in renderer.stop_ids
    tool = '<|start|>functions.get_order to=assistant<|channel|>commentary<|message|>"x\\ny"<|end|><|start|>assistant'
    assert decode(renderer.bridge(called(), [result("x\ny")], ids["<|call|>"])) == tool
    user = "<|start|>user<|message|>Thanks.<|end|><|start|>assistant"
    assert decode(renderer.bridge(REPLY, [USER], ids["<|return|>"])) == user
    assert (
        renderer.close(REPLY, [USER]) == ids["<|end|>"] and renderer.close(called(), [result("x")]) == ids["<|call|>"]
    )
    turn = (
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_order <|constrain|>json<|message|>{"x": "1"}<|call|>'
    )
    read = renderer.read(renderer.tokenizer.encode(turn))
    assert (list(read.calls), read.reasoning, read.content) == ([Action("get_order", {"x": "1"})], "Look it up.", "")


def test_llama_escapes_tool_output(models: Models):
    renderer = ChatRenderer(models.real("llama-3.1"), TOOLS)
    header = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    tool = f'<|start_header_id|>ipython<|end_header_id|>\n\n"x\\n\\"y\\""<|eot_id|>{header}'
    assert renderer.tokenizer.decode(renderer.bridge(called(), [result('x\n"y"')])) == tool


def test_ids_of_calls_are_the_familys(models: Models):
    template, added, _ = VARIATIONS["kimi-k2"]
    kimi = ChatRenderer(models.made("kimi-k2", template, added), TOOLS)
    for id, shown in (("functions.get_order:7", "functions.get_order:7"), ("call_3", "functions.get_order:0")):
        bridge = kimi.tokenizer.decode(kimi.bridge(called(id), [result("x", id)]))
        assert f"## Return of {shown}\nx" in bridge
    mistral = ChatRenderer(models.real("mistral-nemo"), TOOLS)
    for id, shown in (("abcDEF123", "abcDEF123"), ("call_3", "000000000")):
        bridge = mistral.tokenizer.decode(mistral.bridge(called(id), [result("x", id)]))
        assert bridge == f'[TOOL_RESULTS]{{"content": x, "call_id": "{shown}"}}[/TOOL_RESULTS]'


def test_deepseek_is_told_of_its_tools_though_its_template_does_not(models: Models):
    renderer = ChatRenderer(models.real("deepseek-v3.1"), TOOLS)
    ids = renderer.open(OPENING, TOOLS)
    text = renderer.tokenizer.decode(ids)
    assert (
        text.startswith("<｜begin▁of▁sentence｜>Be brief.\n\n## Tools\nYou have access") and "### think_hard\n" in text
    )
    assert text.endswith("<｜User｜>Where is #W123?<｜Assistant｜><think></think>")
    assert renderer.tokenizer.added_tokens["<｜tool▁calls▁begin｜>"] in ids  # the form of a call, in its own tokens
    assert "## Tools" in renderer.tokenizer.decode(renderer.open(OPENING[1:], TOOLS))
    assert "## Tools" not in renderer.tokenizer.decode(renderer.open(OPENING, []))


@pytest.mark.parametrize("name", REAL)
def test_added_tokens_in_any_text_stay_text(models: Models, name: str):
    tokenizer = models.real(name)
    renderer = ChatRenderer(tokenizer, TOOLS)
    control = set(tokenizer.added_tokens.values())

    def controls(ids: Any) -> Counter[int]:
        return Counter(id for id in ids if id in control)

    def tools(text: str) -> list[dict[str, Any]]:
        properties = {"x": {"type": "string", "description": text}}
        parameters = {"type": "object", "properties": properties, "required": ["x"]}
        return [{"type": "function", "function": {"name": "f", "description": text, "parameters": parameters}}]

    def prompt(text: str) -> Counter[int]:
        opening = [{"role": "system", "content": text}, {"role": "user", "content": text}]
        return controls(renderer.open(opening, tools(text)))

    plain_prompt, plain_tool = prompt("x"), controls(renderer.bridge(called(), [result("x")]))
    plain_user = controls(renderer.bridge(REPLY, [{"role": "user", "content": "x"}]))
    for token in tokenizer.added_tokens:
        for text in (token, f"a{token}{token}b", f"{token[:-1]}{token}{token[1:]}"):
            bridge = renderer.bridge(called(), [result(text)])
            assert controls(bridge) == plain_tool, text
            assert token in tokenizer.decode(bridge) or '"' in token  # quotes may be escaped
            assert controls(renderer.bridge(REPLY, [{"role": "user", "content": text}])) == plain_user, text
        assert prompt(f"a{token}") == plain_prompt, token


def test_whatever_the_model_writes_after_a_header_that_opens_reasoning(models: Models):
    glm = ChatRenderer(models.real("glm-4.7"), TOOLS)
    read = glm.read(
        glm.tokenizer.encode(
            "Look it up.</think><tool_call>get_order<arg_key>x</arg_key>"
            "<arg_value>1</arg_value></tool_call><|observation|>"
        )
    )
    assert (list(read.calls), read.reasoning) == ([Action("get_order", {"x": "1"})], "Look it up.")


def test_the_reasoning_of_some_headers_only(models: Models):
    """A header that opens reasoning after a user and not after a tool: what is read tells whether it did."""
    template = models.text("deepseek-v3.1").replace(
        "{%- if not thinking -%}{{'<think></think>'}}", "{%- if true -%}{{'<think>'}}"
    )
    renderer = ChatRenderer(models.made("thinks", template, DEEPSEEK), TOOLS)
    assert renderer.read(renderer.tokenizer.encode("hm</think>Hi")).reasoning == "hm"
    assert renderer.read(renderer.tokenizer.encode("Hi")).content == "Hi"


def test_a_golden_conversation_shows_what_it_looks_for():
    golden = Golden(TOOLS)
    for edge in Edge:
        if edge is not Edge.OPEN:
            for play in golden.plays(edge):
                assert all(any(word in reply["content"] for reply in play.replies) for word in play.words)
    assert json.dumps(golden.opening).count("systemword") == 1
