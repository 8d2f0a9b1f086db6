"""What a request may ask for: carried out, or refused by name."""

from typing import Any

import pytest

from rollq_worker.agents.dialects.chat_completions import read
from rollq_worker.agents.turn_request import FORCED_CALL, RequestRefused

ASK = {"messages": [{"role": "user", "content": "?"}]}


def refused(**given: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read({**ASK, **given})
    return caught.value


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"prediction": {}}, "prediction"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"store": True}, "store"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"speed": 1}}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "messages"),
        ({"messages": [{"role": "bot", "content": "I"}]}, "messages[0]"),
        ({"messages": [{"role": {"a": 1}, "content": "I"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "?", "audio": {"id": 1}}]}, "messages[0].audio"),
        ({"messages": [{"role": "user", "content": "?", "name": 5}]}, "messages[0].name"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls.function",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                    }
                ]
            },
            "messages[0].tool_calls.id",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    assert refused(**given).param == param


@pytest.mark.parametrize(
    "given",
    [{"temperature": -1}, {"top_p": 2}, {"stop": [""]}, {"seed": -1}, {"logit_bias": {"a": 1}}],
)
def test_values_that_the_engine_would_refuse(given: dict[str, Any]) -> None:
    [name] = given
    assert {"seed": "sampling_seed"}.get(name, name) in str(refused(**given))


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "top_k", "min_p"])
def test_numbers_that_no_journal_holds(name: str) -> None:
    refused(**{name: 10**30})


def test_messages_in_normal_form() -> None:
    shown = read(
        {
            "messages": [
                {
                    "role": "developer",
                    "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "refusal": None,
                    "audio": None,
                    "annotations": [],
                    "tool_calls": [
                        {
                            "id": "a",
                            "type": "function",
                            "index": 0,
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": "x"},
            ],
            "temperature": None,
        }
    )
    assert shown.messages == [
        {"role": "system", "content": "be kind"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    assert shown.options == {}


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning": "because"},
        {"reasoning_content": "because", "reasoning": "because"},
        {
            "reasoning_content": "because",
            "thinking_blocks": [{"type": "thinking", "thinking": "because"}],
        },
        {
            "reasoning_content": "because",
            "reasoning_details": [{"type": "reasoning.text", "text": "because"}],
        },
        {"reasoning_content": "because", "provider_specific_fields": {"refusal": None}},
        {"reasoning_content": "because", "cache_control": {"type": "ephemeral"}},
    ],
)
def test_what_frameworks_add_for_other_services_changes_nothing(more: dict[str, Any]) -> None:
    shown = read({"messages": [{"role": "assistant", "content": "I", **more}, *ASK["messages"]]})
    assert shown.messages[0] == {
        "role": "assistant",
        "content": "I",
        "reasoning_content": "because",
    }


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"logprobs": False, "top_logprobs": 0},
        {"ignore_eos": False},
    ],
)
def test_values_that_say_what_happens_anyway(more: dict[str, Any]) -> None:
    assert read({**ASK, **more}).options == {}


def test_a_schema_for_the_reply_becomes_a_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    asked = read(
        {
            **ASK,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            },
        }
    )
    assert asked.options == {
        "json_schema": '{"properties": {"a": {"type": "string"}}, "type": "object"}'
    }
    assert read({**ASK, "response_format": {"type": "text"}}).options == {}


def test_no_tools_when_none_may_be_called() -> None:
    function = {
        "name": "f",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
        "parameters": {"type": "object"},
    }
    tool = {"type": "function", "function": function}
    assert read({**ASK, "tools": [tool], "tool_choice": "none"}).tools == []
    forced = read({**ASK, "tools": [tool], "tool_choice": "required"})
    assert forced.tools and forced.options == {FORCED_CALL: "required"}
    assert read({**ASK, "tools": [tool]}).tools == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ]
