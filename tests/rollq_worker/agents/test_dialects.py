"""The endpoint as the anthropic and openai packages see it: the same turns in each dialect. Tests
import the packages, which takes seconds, where they need them.
"""

import gc
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rollq.env import Episode
from rollq.events import Observed
from rollq_worker.agents.dialects.responses import Responses
from rollq_worker.agents.turn_request import TurnRequest
from rollq_worker.fakes import FakeRenderer
from rollq_worker.protocols import ReadTurn
from tests.rollq_worker.agents.played import TOOL, play, post, text_of, user

pytestmark = pytest.mark.packages

CALL = '{"name": "look", "arguments": {"at": 1}}'
FUNCTION: dict[str, Any] = TOOL["function"]  # type: ignore[assignment]
ANTHROPIC_TOOL: Any = {
    "name": "look",
    "input_schema": FUNCTION["parameters"],
    "cache_control": {"type": "ephemeral"},
}
OPENAI_TOOL: Any = {
    "type": "function",
    "name": "look",
    "parameters": FUNCTION["parameters"],
    "strict": False,
}
ASKED: dict[str, Any] = {"model": "any", "max_tokens": 50}


def with_anthropic(episode: Episode) -> Any:
    import anthropic

    return anthropic.Anthropic(
        base_url=episode.base_url.removesuffix("/v1"), api_key=episode.api_key, max_retries=0
    )


def with_openai(episode: Episode) -> Any:
    import openai

    return openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)


def answer(asked: Any, stream: bool, **options: Any) -> Any:
    """What `client.messages` or `client.responses` gives, whole or at the end of its stream."""
    if not stream:
        return asked.create(**options)
    with asked.stream(**options) as events:
        return (
            events.get_final_message()
            if hasattr(events, "get_final_message")
            else events.get_final_response()
        )


def messages_agent(episode: Episode, stream: bool = False) -> None:
    system, *asked = episode.messages
    history: list[Any] = [*asked]
    options: Any = {
        **ASKED,
        "system": [{"type": "text", "text": system["content"]}],
        "tools": [ANTHROPIC_TOOL],
    }
    with with_anthropic(episode) as client:
        for n in range(2):
            got = answer(client.messages, stream, messages=history, **options)
            history.append(
                {"role": "assistant", "content": [block.model_dump() for block in got.content]}
            )
            if n == 0:
                [call] = got.content
                assert call.type == "tool_use" and (call.name, call.input) == ("look", {"at": 1})
                assert (got.stop_reason, got.usage.output_tokens) == ("tool_use", len(CALL) + 1)
                result = {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": [{"type": "text", "text": "seen"}],
                }
                history.append({"role": "user", "content": [result]})
        [text] = got.content
        assert text.type == "text" and (text.text, got.stop_reason, got.stop_sequence) == (
            "done",
            "end_turn",
            None,
        )


def responses_agent(episode: Episode, stream: bool = False, by_id: bool = False) -> None:
    system, *asked = episode.messages
    items: list[Any] = [*asked]
    options: Any = {"model": "any", "instructions": system["content"], "tools": [OPENAI_TOOL]}
    with with_openai(episode) as client:
        for n in range(2):
            got = answer(client.responses, stream, input=items, **options)
            assert (got.status, got.instructions) == ("completed", system["content"])
            if by_id:
                items, options = [], {**options, "previous_response_id": got.id}
            items += [] if by_id else [item.model_dump(exclude_none=True) for item in got.output]
            if n == 0:
                [call] = got.output
                assert call.type == "function_call" and (call.name, json.loads(call.arguments)) == (
                    "look",
                    {"at": 1},
                )
                items.append(
                    {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}
                )
        assert got.output_text == "done" and got.usage is not None
        assert got.usage.output_tokens == len("done") + 1


def chat_agent(episode: Episode) -> None:
    history: list[Any] = list(episode.messages)
    with with_openai(episode) as client:
        for _ in range(2):
            got = client.chat.completions.create(
                model="any", messages=history, tools=[TOOL]
            ).choices[0]  # type: ignore[list-item]
            said = got.message
            assert (got.finish_reason, said.content) in (("tool_calls", None), ("stop", "done"))
            history.append(said)
            history += [
                {"role": "tool", "tool_call_id": call.id, "content": "seen"}
                for call in said.tool_calls or ()
            ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("agent", [messages_agent, responses_agent])
def test_every_dialect_samples_the_same_ids(agent: Callable[..., None], stream: bool) -> None:
    other, own = (
        play(chat_agent, CALL, "done"),
        play(lambda episode: agent(episode, stream=stream), CALL, "done"),
    )
    assert own.traces == other.traces and own.tokens == other.tokens
    assert (
        text_of(own.tokens)
        == f"[system]policy[user]hello[assistant]{CALL}[tool]seen[assistant]done"
    )


def test_a_response_goes_on_from_an_earlier_one_also_in_another_attempt() -> None:
    def agent(episode: Episode) -> None:
        responses_agent(episode, by_id=True)

    whole = play(agent, CALL, "done")
    assert len(whole.traces) == 1 and text_of(whole.tokens).endswith("[tool]seen[assistant]done")
    again = play(agent, "done", recorded=whole.events[:3])  # up to the call
    assert (again.tokens, again.traces) == (whole.tokens, whole.traces)


class Noted(dict[str, Any]):
    """A message of which can be told whether it is kept."""


def test_what_is_kept_of_a_response_is_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients send their whole history each time, which would fill the worker's memory."""
    read, asked, kept = Responses.read, list[list[Any]](), list[list[bool]]()

    def noted(self: Responses, body: Any) -> TurnRequest:
        request = read(self, body)
        messages = [Noted(message) for message in request.messages]
        asked.append([weakref.ref(message) for message in messages])
        return replace(request, messages=messages)

    monkeypatch.setattr(Responses, "read", noted)

    def agent(episode: Episode) -> None:
        items: list[Any] = [user("a")]
        with with_openai(episode) as client:
            for _ in range(3):
                items += [*client.responses.create(model="any", input=items).output, user("more")]
        gc.collect()
        kept.append([one() is not None for one in asked[1]])

    assert len(play(agent, "1", "2", "3").traces) == 1
    assert kept == [[False, False, True]]  # the journal has the reply


def test_a_response_has_what_its_class_has_and_what_was_asked() -> None:
    from openai.types.responses import Response

    def agent(episode: Episode) -> None:
        asked = {
            "input": "a",
            "tools": [OPENAI_TOOL],
            "tool_choice": "none",
            "parallel_tool_calls": False,
        }
        got = Response.model_validate(post(episode, asked, path="/responses"))
        assert (got.tool_choice, got.parallel_tool_calls) == ("none", False)

    play(agent, "hi")


def test_an_empty_turn_is_an_item_too() -> None:
    def agent(episode: Episode) -> None:
        with with_openai(episode) as client:
            first = client.responses.create(model="any", input="a")
            assert [item.type for item in first.output] == ["message"]
            items: Any = [user("a"), *first.output, user("well?")]
            client.responses.create(model="any", input=items)

    assert len(play(agent, "", "hi").traces) == 1


def test_the_tool_runner_of_the_anthropic_package() -> None:
    """It asks for a thread at Anthropic, and goes on without."""

    from anthropic import beta_tool

    @beta_tool
    def look(at: int) -> str:
        return f"seen at {at}"

    def agent(episode: Episode) -> None:
        hello: Any = [{"role": "user", "content": "hello"}]
        with with_anthropic(episode) as client:
            client.beta.messages.tool_runner(messages=hello, tools=[look], **ASKED).until_done()

    played = play(agent, CALL, "done")
    assert text_of(played.tokens) == f"[user]hello[assistant]{CALL}[tool]seen at 1[assistant]done"


class Thinks(FakeRenderer):
    def read(self, ids: Any) -> ReadTurn:
        return ReadTurn(text_of(ids), (), (), reasoning="because")


def test_reasoning_is_given_and_may_come_back() -> None:
    def agent(episode: Episode) -> None:
        more = {"role": "user", "content": "go on"}
        with with_anthropic(episode) as client:
            first: Any = {"role": "user", "content": "a"}
            with client.messages.stream(messages=[first], **ASKED) as events:
                got = events.get_final_message()
            assert [block.type for block in got.content] == ["thinking", "text"]
            again: Any = [first, {"role": "assistant", "content": got.content}, more]
            client.messages.create(
                messages=again, thinking={"type": "enabled", "budget_tokens": 1024}, **ASKED
            )
        with with_openai(episode) as openai_client:
            with openai_client.responses.stream(model="any", input="b") as stream:
                response = stream.get_final_response()
            assert [item.type for item in response.output] == ["reasoning", "message"]
            items: Any = [{"role": "user", "content": "b"}, *response.output, more]
            openai_client.responses.create(model="any", input=items)

    played = play(agent, "1", "2", "3", "4", renderer=Thinks())
    assert len(played.traces) == 2


def test_a_system_message_behind_a_turn_is_the_users_and_begins_no_trace() -> None:
    def agent(episode: Episode) -> None:
        said: list[Any] = [{"role": "user", "content": "a"}]
        with with_anthropic(episode) as client:
            for role in ("system", "user"):
                got = client.messages.create(messages=said, system="policy", **ASKED)
                said += [
                    {"role": "assistant", "content": got.content},
                    {"role": role, "content": "changed"},
                ]
            client.messages.create(messages=said, system="policy", **ASKED)

    played = play(agent, "1", "2", "3")
    assert len(played.traces) == 1
    roles = [reply["role"] for event in played.events for reply in getattr(event, "replies", ())]
    assert roles == ["user"] * 2


def test_tokens_are_counted_and_change_nothing() -> None:
    def agent(episode: Episode) -> None:
        asked: Any = {
            "messages": [{"role": "user", "content": "hello"}],
            "system": "policy",
            "model": "any",
        }
        with with_anthropic(episode) as client:
            count = client.messages.count_tokens(**asked).input_tokens
            assert client.messages.create(max_tokens=9, **asked).usage.input_tokens == count
            assert count == len("[system]policy[user]hello[assistant]")

    assert play(agent, "hi").turns == 1


def test_where_a_turn_ends() -> None:
    def agent(episode: Episode) -> None:
        asked: Any = {"messages": [{"role": "user", "content": "a"}], "model": "any"}
        with with_anthropic(episode) as client:
            got = client.messages.create(max_tokens=3, **asked)
            assert (got.stop_reason, got.content[0].text) == ("max_tokens", "lon")  # type: ignore[union-attr]
            got = client.messages.create(max_tokens=50, stop_sequences=["!"], **asked)
            assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", "!")
            assert [block.text for block in got.content if block.type == "text"] == ["stop"]
        with with_openai(episode) as openai_client:
            response = openai_client.responses.create(model="any", input="b", max_output_tokens=3)
            assert response.status == "incomplete" and response.incomplete_details is not None
            assert response.incomplete_details.reason == "max_output_tokens"

    play(agent, "long", "stop!", "long")


def test_errors_have_the_form_of_the_dialect() -> None:
    import anthropic
    import openai

    def agent(episode: Episode) -> None:
        hello: Any = [{"role": "user", "content": "a"}]
        with with_anthropic(episode) as client:
            with pytest.raises(anthropic.BadRequestError, match=r"tool_choice must be") as caught:
                other: Any = {"type": "other"}
                client.messages.create(messages=hello, tool_choice=other, **ASKED)
            assert caught.value.body == {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "tool_choice must be auto, none, or a function to call",
                },
            }
            with pytest.raises(anthropic.AuthenticationError):
                client.with_options(api_key="other").messages.create(messages=hello, **ASKED)
            with pytest.raises(anthropic.NotFoundError):
                client.messages.batches.list()
            client.messages.create(messages=hello, **ASKED)
        with with_openai(episode) as openai_client:
            with pytest.raises(openai.BadRequestError, match="no response resp_9") as refused:
                openai_client.responses.create(
                    model="any", input="b", previous_response_id="resp_9"
                )
            assert refused.value.code == "previous_response_not_found"

    play(agent, "hi")


@pytest.mark.parametrize("stream", [False, True])
def test_an_unreadable_call_is_the_programs_to_refuse(stream: bool) -> None:
    broken = '{"name": "look", "arguments": {"at": 1'
    given: list[Any] = []

    def agent(episode: Episode) -> None:
        _, asked = episode.messages
        with with_anthropic(episode) as client:
            options: Any = {**ASKED, "tools": [ANTHROPIC_TOOL], "messages": [asked]}
            said = answer(client.messages, stream, **options)
            [call] = said.content
            assert (call.name, call.input) == ("look", {"INVALID_JSON": broken})
            result = {"type": "tool_result", "tool_use_id": call.id, "is_error": True}
            result["content"] = "not valid"
            # It comes back without what it cannot mean.
            back = {"type": "tool_use", "id": call.id, "name": "look", "input": {}}
            options["messages"] += [
                {"role": "assistant", "content": [back]},
                {"role": "user", "content": [result]},
            ]
            answer(client.messages, stream, **options)
        with with_openai(episode) as client:
            got = answer(client.responses, stream, model="m", input="hi", tools=[OPENAI_TOOL])
            given.extend(item.arguments for item in got.output)
            asked = [{"role": "user", "content": "ho"}]
            chat = client.chat.completions.create(model="m", messages=asked, tools=[TOOL])
            given.extend(call.function.arguments for call in chat.choices[0].message.tool_calls)

    played = play(agent, broken, "so", broken, broken)
    assert given == [broken, broken]
    assert len(played.traces) == 3
    assert [event.errors != () for event in played.events if isinstance(event, Observed)] == [
        True,
        False,
        True,
        True,
    ]


def test_the_policy_is_listed_in_the_dialects_form() -> None:
    def agent(episode: Episode) -> None:
        with with_anthropic(episode) as client:
            assert [model.display_name for model in client.models.list()] == ["rollq"]
            assert client.models.retrieve("claude-x").id == "claude-x"
        post(episode, {"messages": [user("?")]})

    play(agent, "so")
