"""Requests as Anthropic's Messages and OpenAI's Responses write them: what is read, and what is
refused by name.
"""

import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

from rollq_worker.agents.dialects import chat_completions, messages
from rollq_worker.agents.dialects.responses import PARAMETERS as RESPONSES
from rollq_worker.agents.dialects.responses import Responses
from rollq_worker.agents.turn_request import RequestRefused

READ: list[tuple[Callable[[Any], Any], dict[str, Any]]] = [
    (messages.read, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    (Responses().read, {"input": "hi"}),
    (chat_completions.read, {"messages": [{"role": "user", "content": "hi"}]}),
]


@pytest.mark.parametrize(
    ("dialect", "given", "why"),
    [
        (0, {"messages": []}, "messages must be a list with at least one"),
        (0, {"messages": [{"role": "robot", "content": ""}]}, r"messages\[0\] has the role 'robot'"),  # noqa: E501
        (0, {"messages": [{"role": "x" * 999, "content": ""}]}, "has the role 'x{79};"),
        (0, {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "a part of the type 'hologram'"),  # noqa: E501
        (0, {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]}, "a result for 'a'"),  # noqa: E501
        (0, {"messages": [{"role": "user", "content": 1}]}, "where a list belongs"),
        (0, {"messages": [{"role": "user", "content": [1]}]}, "not a JSON object"),
        (0, {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id must be a string"),  # noqa: E501
        (0, {"messages": [{"role": "assistant", "content": "so"}]}, "no prefill"),
        (0, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "20250124: only custom tools"),
        (0, {"tools": [{"name": "f", "input_schema": {"type": "object"}}] * 2}, "tools: "),
        (0, {"max_tokens": 0}, "max_tokens must be a whole number"),
        (0, {"temperature": -1}, "temperature"),
        (0, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management is"),  # noqa: E501
        (0, {"betas": ["x"]}, "betas is"),
        (1, {"input": []}, "input must be a text"),
        (1, {"input": [{"type": "item_reference", "id": "x"}]}, "is a item_reference"),
        (1, {"input": [{"role": "robot", "content": ""}]}, "message of robot"),
        (1, {"input": [{"role": ["user"], "content": ""}]}, "is not supported here"),
        (1, {"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "arguments must be a string"),  # noqa: E501
        (1, {"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, "a result for 'a'"),  # noqa: E501
        (1, {"input": [{"role": "assistant", "content": "so"}]}, "no prefill"),
        (1, {"tools": [{"type": "local_shell"}]}, "local_shell: only function tools"),
        (0, {"output_config": {"format": {"type": "xml"}}}, "output_config.format must be"),
        (1, {"text": {"other": "low"}}, "text.other is 'low'"),
        (1, {"text": {"format": {"type": "xml"}}}, "text.format must be"),
        (1, {"truncation": "auto"}, "truncation is 'auto': it can be 'disabled' only"),
        (1, {"background": True}, "background is 'True'"),
        (1, {"previous_response_id": 3}, "no response 3"),
    ],
)  # fmt: skip
def test_what_is_refused(dialect: int, given: dict[str, Any], why: str) -> None:
    read, good = READ[dialect]
    read(good)
    with pytest.raises(RequestRefused, match=why):
        read({**good, **given})


@pytest.mark.parametrize(
    ("dialect", "owner", "labels"),
    [
        (0, "anthropic.resources.messages:Messages", set(messages.PARAMETERS.without_effect)),
        (1, "openai.resources.responses:Responses", set(RESPONSES.without_effect)),
        (
            2,
            "openai.resources.chat.completions:Completions",
            set(chat_completions.PARAMETERS.without_effect),
        ),
    ],
)
@pytest.mark.packages
def test_every_parameter_of_the_packages_is_known_or_refused(
    dialect: int, owner: str, labels: set[str]
) -> None:
    """A new release may ask for something new; it is then refused, never ignored."""
    read, good = READ[dialect]
    passed = {
        "self",
        "extra_headers",
        "extra_query",
        "extra_body",
        "timeout",
        "instructions",
        "system",
    }
    for name in set(inspect.signature(resolve_name(owner).create).parameters) - passed - labels:
        with pytest.raises(RequestRefused, match=name.split("_")[0]):
            read({**good, name: {"surely": ["not", "this"]}})


def test_a_turn_of_several_items_is_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "reasoning",
            "id": "x",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "because"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so"}],
        },
        {
            "type": "reasoning",
            "id": "y",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": " of it"}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "seen"},
        {"type": "reasoning", "id": "y", "summary": [], "encrypted_content": "..."},
    ]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert Responses().read({"input": items}).messages == [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "because of it",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]


def test_results_of_calls_come_before_what_the_user_says() -> None:
    content: list[Any] = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "is_error": True},
        {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
    ]
    called = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ("a", "b")]
    asked = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": called[:1]},
        {"role": "assistant", "content": called[1:]},
        {"role": "user", "content": content},
    ]
    read = messages.read({"messages": asked, "max_tokens": 9}).messages
    assert [call["id"] for call in read[1]["tool_calls"]] == ["a", "b"]
    assert read[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": "go on"},
    ]


PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ({"type": "image", "source": PIXEL}, "[image]"),
        ({"type": "document", "source": {**PIXEL, "media_type": "application/pdf"}}, "[document]"),
        ({"type": "document", "source": {"type": "text", "data": "words"}}, "words"),
        (
            {
                "type": "search_result",
                "source": "https://a.test",
                "title": "A",
                "content": [{"type": "text", "text": "words"}],
            },
            "A\nhttps://a.test\nwords",
        ),
    ],
)
def test_a_policy_reads_that_there_is_something_that_it_does_not_see(
    part: dict[str, Any], shown: str
) -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [part]}
    asked = [
        {"role": "user", "content": [part]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    read = messages.read({"messages": asked, "max_tokens": 9}).messages
    assert [message["content"] for message in read] == [shown, "", shown]


def test_images_and_files_in_the_forms_of_openai() -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert chat_completions.read({"messages": [{"role": "user", "content": parts}]}).messages == [
        {"role": "user", "content": "see [image]"}
    ]
    items = [
        {"type": "function_call", "call_id": "a", "name": "view", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_image", "image_url": "data:"}, {"type": "input_file"}],
        },
    ]
    assert Responses().read({"input": items}).messages[1]["content"] == "[image][file]"


def test_tools_that_a_service_runs_by_itself_are_not_shown() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "web_search"}, {"type": "function", **function}, {"type": "file_search"}]
    read = Responses().read({"input": "hi", "tools": tools, "tool_choice": "auto"})
    assert [tool["function"]["name"] for tool in read.tools] == ["f"]
    hosted = [{"type": "web_search_20250305", "name": "web_search"}]
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": hosted}
    assert messages.read(asked).tools == []
