"""Training templates: every edge is exact, and first prompts are those of the model's
own template.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rollq.errors import JobFailure, SettingsError
from rollq.job import Json
from rollq_worker.tokens.model_family import example_call
from rollq_worker.tokens.selfcheck.better_template import better_template
from rollq_worker.tokens.selfcheck.bridge_comparison import Match
from rollq_worker.tokens.selfcheck.check import check
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer
from rollq_worker.tokens.training_templates import template_text, training_templates
from tests.rollq_worker.tokens.models import (
    NAMED_OF_TRAINING,
    OF_TRAINING,
    THINK,
    RealTemplates,
    tokenizer_with,
    trained_tokenizer,
)
from tests.rollq_worker.tokens.template_habits import REFUSED

CLOSED: dict[str, dict[str, Json]] = {
    "command-r7b": {"enable_thinking": True},
    "glm-4.7": {"enable_thinking": False},
    "qwen3": {"enable_thinking": False},
    "qwen3.5": {"enable_thinking": False},
    "smollm3": {"enable_thinking": False},
}
"""Arguments that make another header."""
BESIDE = {"gpt-oss": {"calls -> tools"}}
"""Edges that cannot be: a call ends a turn of gpt-oss, so none has several."""
ORIGINALS = {
    "glm-4.7": "glm-4.7",
    "gpt-oss": "gpt-oss",
    "llama3.1": "llama-3.1",
    "minimax-m2": "minimax-m2",
    "qwen3": "qwen3",
    "qwen3.5": "qwen3.5",
}
"""The real templates, by the training template that fits."""
PARAMETERS = {
    "type": "object",
    "properties": {
        "x": {
            "type": ["string", "null"],
            "description": 'a "naïve" one,\nof <two> lines',
            "enum": ["a", "b"],
        },
        "y": {"type": "array", "items": {"type": "integer"}},
        "z": {"type": "object", "properties": {"deep": {"type": "number", "default": 1.5}}},
        "u": {"oneOf": [{"type": "object"}, {"type": "string"}]},
    },
    "required": ["x"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"{name} does it.", "parameters": PARAMETERS},
    }
    for name in ("find", "cancel")
]
USER = {"role": "user", "content": "Where <is> it?\n  Now  "}
SYSTEM = {"role": "system", "content": "Be brief.\n\nBe naïve."}


def not_exact(tokenizer: Tokenizer) -> dict[str, str]:
    found = check(tokenizer, TOOLS)
    return {
        edge.value: seen.why for edge, seen in found.edges.items() if seen.match is not Match.EXACT
    }


@pytest.mark.parametrize(
    ("name", "arguments"), [*((name, {}) for name in training_templates()), *CLOSED.items()]
)
def test_every_edge_is_exact(name: str, arguments: dict[str, Json]) -> None:
    missing = set() if arguments else BESIDE.get(name, set())
    assert not_exact(trained_tokenizer(name).with_arguments(arguments)).keys() == missing


@pytest.mark.parametrize("name", ORIGINALS)
def test_first_prompts_are_those_of_the_model(real: RealTemplates, name: str) -> None:
    own = tokenizer_with(
        "own", real.text(ORIGINALS[name]), OF_TRAINING[name], NAMED_OF_TRAINING.get(name)
    )
    for messages in ([SYSTEM, USER], [USER]):
        for tools in (TOOLS, TOOLS[:1], None):
            assert trained_tokenizer(name).render(messages, tools, True) == own.render(
                messages, tools, True
            )


def test_nemotron_nano_s_lines_are_those_of_its_model_card() -> None:
    call = example_call("find", {"x": "a"})
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "1"}
    messages = [SYSTEM, USER, call | {"content": "I look."}, result, result]
    assert trained_tokenizer("nemotron-nano-v2").render(messages, None, True) == (
        "<SPECIAL_10>System\nBe brief.\n\nBe naïve.\n"
        "<SPECIAL_11>User\nWhere <is> it?\n  Now\n"
        "<SPECIAL_11>Assistant\n<think>\n</think>\n\nI look.\n\n"
        '<TOOLCALL>[{"name": "find", "arguments": {"x": "a"}}]</TOOLCALL>\n<SPECIAL_12>\n'
        "<SPECIAL_11>User\n<TOOL_RESPONSE>[1, 1]</TOOL_RESPONSE>\n"
        "<SPECIAL_11>Assistant\n<think>\n"
    )


def test_smollm3_s_system_prompt_has_an_end_only_with_tools() -> None:
    bare, with_tools = (
        trained_tokenizer("smollm3").render([SYSTEM, USER], tools, True) for tools in (None, TOOLS)
    )
    assert "\n\nBe naïve.\n\n<|im_start|>user\n" in bare
    assert "</tool_call>\n\n<|im_end|>\n<|im_start|>user\n" in with_tools


def test_granite_s_own_system_prompt_has_three_lines() -> None:
    prompt = trained_tokenizer("granite3.3").render([USER], None, True)
    assert prompt.startswith(
        "<|start_of_role|>system<|end_of_role|>Knowledge Cutoff Date: April 2024.\n"
        "Today's Date: January 01, 2025.\n"
        "You are Granite, developed by IBM. You are a helpful AI assistant.<|end_of_text|>\n"
    )


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_model_s_own_template_finds_its_training_template(real: RealTemplates, name: str) -> None:
    own = tokenizer_with(
        "own", real.text(ORIGINALS[name]), OF_TRAINING[name], NAMED_OF_TRAINING.get(name)
    )
    better = better_template(own, TOOLS, check(own, TOOLS))
    assert better is not None and better[0] == name


NO_CALLS = {"message.tool_calls or []": "[]"}
WORSE: dict[str, dict[str, str]] = {
    "qwen3": {"{%- if message.reasoning_content or ": "{%- if loop.last and "},
    "granite3.3": NO_CALLS,
    # Its users give tools under another name, and some copies show no date.
    "smollm3": NO_CALLS
    | {
        "{%- if tools -%}": "{%- if xml_tools -%}",
        "\\nToday Date: ' ~ strftime_now('%d %B %Y')": "'",
    },
    "qwen2.5-vl": NO_CALLS | {"if tools else ''": "if false else ''"},
}
"""What replaces what in a template so that it drops reasoning, or knows no calls, as the model's
own does.
"""


def worse(name: str, more: Mapping[str, str] | None = None) -> Tokenizer:
    text = template_text(name)
    for old, new in {**WORSE[name], **(more or {})}.items():
        assert old in text
        text = text.replace(old, new)
    return tokenizer_with("own", text, OF_TRAINING[name])


@pytest.mark.parametrize("name", WORSE)
def test_a_template_that_loses_something_finds_the_one_that_keeps_it(name: str) -> None:
    own, seen = worse(name), None
    if name == "qwen3":
        seen = check(own, TOOLS)
    else:
        with pytest.raises(JobFailure, match="leaves an assistant's tool calls out"):
            check(own, TOOLS)
    better = better_template(own, TOOLS, seen)
    assert better is not None and better[0] == name


def test_a_template_that_knows_no_tools_is_recognised_by_an_image() -> None:
    own = worse("qwen2.5-vl", {"<|vision_start|><|image_pad|><|vision_end|>": ""})
    assert better_template(own, TOOLS, None) is None


def test_a_template_of_another_model_that_leaves_tools_out_finds_none() -> None:
    own = tokenizer_with("own", REFUSED["chatml without tools"][0], THINK)
    assert better_template(own, TOOLS, None) is None


def test_a_template_that_is_exact_itself_needs_none() -> None:
    assert (
        better_template(trained_tokenizer("qwen3"), TOOLS, check(trained_tokenizer("qwen3"), TOOLS))
        is None
    )
    bundled = load_tokenizer()
    assert better_template(bundled, TOOLS, check(bundled, TOOLS)) is None


def test_a_template_is_chosen_by_name_or_by_file(tmp_path: Path) -> None:
    own, chosen = load_tokenizer(), load_tokenizer(template="qwen3")
    assert chosen.hash == own.hash and chosen.template_hash != own.template_hash
    file = tmp_path / "mine.jinja"
    file.write_text(template_text("qwen3"))
    assert load_tokenizer(str(BUNDLED), str(file)).template_hash == chosen.template_hash
    with pytest.raises(
        SettingsError,
        match=r"'no-such' is neither a file nor a training template; there are .*qwen3",
    ):
        load_tokenizer(template="no-such")
    for text in (template_text("qwen3"), "~no-such-user/mine.jinja"):
        with pytest.raises(SettingsError, match=r"is neither a file nor a training template"):
            load_tokenizer(template=text)
