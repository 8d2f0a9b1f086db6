"""The endpoint as the openai package sees it, and what hostile agents may try."""

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import openai
import pytest
import requests

from rollq.env import Episode
from rollq.errors import AgentFailure, EngineFailure, JobFailure
from rollq.events import Closed, Finish, Sampled, Stop
from rollq_worker.agents import connections, endpoint, growth
from rollq_worker.agents.chat_request import RequestRefused
from rollq_worker.agents.connections import CONNECTIONS
from rollq_worker.agents.endpoint import BODIES, LARGEST_BODY, THREADS
from rollq_worker.fakes import FakeEngine, FakeJournal, FakeRenderer
from rollq_worker.protocols import SampleRequest
from tests.rollq_worker.agents.played import TOOL, Refused, ask, play, post, said, user
from tests.rollq_worker.episode.episodes import PieceEngine
from tests.waiting import until

CALL = '{"name": "look", "arguments": {"at": 1}}'


CLIENTS: list[openai.OpenAI] = []


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Garbage of other tests that is collected in the depth of a recursion cannot run its finalizers."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def client(episode: Episode, key: str = "") -> openai.OpenAI:
    CLIENTS.append(openai.OpenAI(base_url=episode.base_url, api_key=key or episode.api_key, max_retries=0))
    return CLIENTS[-1]


class TestOpenAI:
    def test_a_completion(self) -> None:
        def agent(episode: Episode) -> None:
            got = client(episode).chat.completions.create(model=episode.model, messages=episode.messages)  # type: ignore[arg-type]
            [choice] = got.choices
            assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ("hi", "stop", None)
            assert got.usage is not None
            assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (
                len("[system]policy[user]hello[assistant]"),
                3,
            )
            assert (got.model, got.object, got.system_fingerprint) == ("rollq", "chat.completion", "v0")

        assert play(agent, "hi").turns == 1

    def test_a_tool_call_and_its_result(self) -> None:
        def agent(episode: Episode) -> None:
            ask = client(episode).chat.completions.create
            messages: list[Any] = list(episode.messages)
            got = ask(model="any", messages=messages, tools=[TOOL]).choices[0]  # type: ignore[list-item]
            assert (got.finish_reason, got.message.content) == ("tool_calls", None)
            [call] = got.message.tool_calls or ()
            assert call.type == "function"
            assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": 1})
            messages += [got.message, {"role": "tool", "tool_call_id": call.id, "content": "seen"}]
            assert ask(model="any", messages=messages, tools=[TOOL]).choices[0].message.content == "done"  # type: ignore[list-item]

        assert play(agent, CALL, "done").traces == [
            len("[system]policy[user]hello[assistant]" + CALL + "[tool]seen[assistant]done") + 2
        ]

    @pytest.mark.parametrize("text", ["hi", CALL])
    def test_a_stream(self, text: str) -> None:
        def agent(episode: Episode) -> None:
            with client(episode).chat.completions.stream(
                model="any",
                messages=episode.messages,
                tools=[TOOL],
                stream_options={"include_usage": True},  # type: ignore[arg-type, list-item]
            ) as stream:
                final = stream.get_final_completion()
            message = final.choices[0].message
            if text == CALL:
                [call] = message.tool_calls or ()
                assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": 1})
                assert final.choices[0].finish_reason == "tool_calls"
            else:
                assert (message.content, final.choices[0].finish_reason) == ("hi", "stop")
            assert final.usage is not None
            assert final.usage.completion_tokens == len(text) + 1

        assert play(agent, text).turns == 1

    def test_coroutines_at_once(self) -> None:
        async def agent(episode: Episode) -> None:
            async with openai.AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
                got = await asyncio.gather(
                    *(
                        client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(n)}])
                        for n in range(8)
                    )
                )
                assert [one.choices[0].message.content for one in got] == ["hi"] * 8

        assert play(agent, "hi").turns == 8

    def test_models(self) -> None:
        def agent(episode: Episode) -> None:
            assert [model.id for model in client(episode).models.list()] == [episode.model]
            assert client(episode).models.retrieve(episode.model).owned_by == "rollq"
            client(episode).chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])

        play(agent, "hi")

    def test_errors_have_their_types(self) -> None:
        def agent(episode: Episode) -> None:
            ask = client(episode).chat.completions.create
            with pytest.raises(openai.BadRequestError, match="n is '2': it can be 1 only") as caught:
                ask(model="m", messages=episode.messages, n=2)  # type: ignore[arg-type]
            assert (caught.value.param, caught.value.code) == ("n", "unsupported_parameter")
            with pytest.raises(openai.AuthenticationError):
                client(episode, key="other").models.list()
            with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings is not served here; there is POST"):
                client(episode).embeddings.create(model="m", input="text")
            ask(model="m", messages=episode.messages)  # type: ignore[arg-type]

        play(agent, "hi")


class TestBudgets:
    def test_more_turns_than_the_job_has(self) -> None:
        def agent(episode: Episode) -> None:
            for n in range(5):
                ask(episode, [user(str(n))])

        played = play(agent, "hi", budget={"max_turns": 3})
        assert (played.stop, played.turns, played.reward) == (Stop.TURNS, 3, 0.0)

    def test_a_full_context_ends_an_agent_that_does_not_know_what_to_do(self) -> None:
        def agent(episode: Episode) -> None:
            messages = list(episode.messages)
            while True:
                messages += [said(ask(episode, messages)), user("go on" * 20)]

        played = play(agent, "hi", budget={"max_tokens": 300})
        assert (played.stop, played.reward) == (Stop.LENGTH, 0.0)

    def test_an_agent_may_shorten_its_conversation_and_go_on(self) -> None:
        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="context_length_exceeded"):
                ask(episode, [user("x" * 1000)])
            ask(episode, [user("x")])

        assert play(agent, "hi", budget={"max_tokens": 300}).stop == Stop.DONE

    def test_a_turn_that_is_cut(self) -> None:
        def agent(episode: Episode) -> None:
            assert post(episode, {"messages": [user("?")], "max_tokens": 4})["choices"][0]["finish_reason"] == "length"

        played = play(agent, "a long answer")
        assert played.sampled_tokens == 4

    def test_what_was_asked_is_recorded_and_sent(self) -> None:
        engine = FakeEngine(["hi"])
        generate, sent = engine.generate, []

        def noted(request: SampleRequest) -> Any:
            sent.append((dict(request.sampling), request.max_new_tokens))
            return generate(request)

        engine.generate = noted  # type: ignore[method-assign]
        asked = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["END"], "max_completion_tokens": 50}

        def agent(episode: Episode) -> None:
            ask(episode, episode.messages, **asked, user="somebody", parallel_tool_calls=True, logit_bias=None)

        played = play(agent, engine=engine, sampling={"temperature": 1.0, "top_k": 5})
        sampling = {"temperature": 0.5, "top_p": 0.9, "sampling_seed": 7, "stop": ["END"]}
        assert sent == [({**sampling, "top_k": 5}, 50)]
        [event] = [event for event in played.events if isinstance(event, Sampled)]
        assert event.asked == {**sampling, "max_new_tokens": 50}

    def test_a_stop_string_is_not_in_the_reply(self) -> None:
        def agent(episode: Episode) -> None:
            first = said(ask(episode, [user("?")], stop="END"))
            assert first["content"] == "said "
            ask(episode, [user("?"), first, user("more")])

        played = play(agent, engine=PieceEngine(("said END", Finish.STOP), ("two\0", Finish.STOP)))
        assert len(played.traces) == 1


class TestFailures:
    def test_an_agent_that_raises(self) -> None:
        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            raise RuntimeError("it broke")

        with pytest.raises(AgentFailure, match="the agent program raised RuntimeError: it broke"):
            play(agent, "hi")

    def test_an_agent_that_asks_nothing(self) -> None:
        with pytest.raises(AgentFailure, match="ended without asking for a turn"):
            play(lambda episode: None, "hi")

    def test_a_first_prompt_that_leaves_no_room(self) -> None:
        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="context_length_exceeded"):
                ask(episode, [user("x" * 1000)])

        with pytest.raises(JobFailure, match="first prompt leaves no room"):
            play(agent, "hi", budget={"max_tokens": 300})

    def test_an_engine_that_fails(self) -> None:
        class Broken(FakeEngine):
            def generate(self, *args: Any, **options: Any) -> Any:
                raise EngineFailure("the engine is broken")

        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="503 episode_over"):
                ask(episode, episode.messages)

        with pytest.raises(EngineFailure, match="the engine is broken"):
            play(agent, engine=Broken(["hi"]))

    def test_a_stop_from_outside_ends_an_agent_that_does_nothing(self) -> None:
        def agent(episode: Episode) -> None:
            while True:
                time.sleep(0.05)

        from rollq_worker.failures import Drained

        with pytest.raises(Drained):
            play(agent, "hi", journal=FakeJournal(stop=Drained("stopping"), limit=0))


class TestBounds:
    def test_requests_whose_clients_have_gone_are_dropped_before_they_begin(self) -> None:
        engine, begun = FakeEngine(["hi"]), []
        generate, go_on = engine.generate, threading.Event()

        def slow(request: SampleRequest) -> Any:
            begun.append(request.ids)
            go_on.wait(30)
            return generate(request)

        engine.generate = slow  # type: ignore[method-assign]

        def agent(episode: Episode) -> None:
            held = [sent(episode, {"messages": [user(str(n))]}) for n in range(THREADS)]
            until(lambda: len(begun) == THREADS, 30)
            for n in range(20):
                sent(episode, {"messages": [user(f"gone {n}")]}).close()
            time.sleep(0.2)
            go_on.set()
            ask(episode, episode.messages)
            for one in held:
                one.close()

        assert play(agent, engine=engine, budget={"max_turns": 100}).turns == THREADS + 1

    def test_more_bytes_under_way_than_an_episode_may_have(self) -> None:
        def agent(episode: Episode) -> None:
            head = {"Content-Length": LARGEST_BODY}
            held = [sent(episode, None, head) for _ in range(BODIES // LARGEST_BODY)]
            time.sleep(0.2)
            with pytest.raises(Refused, match="429 rate_limit_exceeded: 2 requests of 16777216 bytes are under way"):
                ask(episode, episode.messages)
            with pytest.raises(Refused, match="429 rate_limit_exceeded"):
                post(episode, {"name": "add", "arguments": {}}, path="/../episode/step")
            for one in held:
                one.close()
            time.sleep(0.2)
            ask(episode, episode.messages)

        play(agent, "hi")

    def test_more_requests_under_way_than_an_episode_may_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(endpoint, "REQUESTS", 3)

        def agent(episode: Episode) -> None:
            held = [sent(episode, None, {"Content-Length": 9}) for _ in range(3)]
            time.sleep(0.2)
            with pytest.raises(Refused, match="429 rate_limit_exceeded: 3 requests of 27 bytes"):
                ask(episode, episode.messages)
            held.pop().close()
            time.sleep(0.2)
            ask(episode, episode.messages)
            for one in held:
                one.close()

        play(agent, "hi")

    @pytest.mark.parametrize(("limit", "code"), [("STEPS", "steps_spent"), ("LARGEST", "journal_full")])
    def test_steps_end(self, monkeypatch: pytest.MonkeyPatch, limit: str, code: str) -> None:
        monkeypatch.setattr(growth, limit, {"STEPS": 4, "LARGEST": 2200}[limit])  # the opening is a step

        def agent(episode: Episode) -> None:
            ask(episode, episode.messages)
            for _ in range(3):
                episode.step("add", {"a": "x" * 300})
            with pytest.raises(RequestRefused) as caught:
                while True:
                    episode.step("add", {"a": "x" * 300})
            assert caught.value.code == code
            raise RuntimeError("it cannot go on")

        played = play(agent, "hi")
        assert (played.stop, played.reward) == ({"STEPS": Stop.TURNS, "LARGEST": Stop.LENGTH}[limit], 0.0)

        # Another worker, whose agent does the same, comes to the same end.
        again = play(agent, "hi", recorded=[event for event in played.events if not isinstance(event, Closed)])
        assert (again.stop, len(again.events)) == (played.stop, len(played.events))

    def test_requests_that_the_journal_has_no_room_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(growth, "LARGEST", 30_000)

        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="400 journal_full"):
                for n in range(20):
                    ask(episode, [user("x" * 500 + str(n))])

        assert 3 < play(agent, "hi", budget={"max_turns": 20}).turns < 12


class TestHostile:
    def test_connections_that_are_held(self, caplog: pytest.LogCaptureFixture) -> None:
        def agent(episode: Episode) -> None:
            held = [connected(episode) for _ in range(CONNECTIONS + 20)]
            ask(episode, episode.messages)
            assert [_is_open(one) for one in held] == [False] * 21 + [True] * (CONNECTIONS - 1)
            for one in held:
                one.close()

        play(agent, "hi")
        assert not caplog.records

    def test_what_is_no_http_is_answered_and_not_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def agent(episode: Episode) -> None:
            for text in (b"hello\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n"):
                with connected(episode) as one:
                    one.sendall(text)
                    assert b" 400 " in one.recv(1000)
            ask(episode, episode.messages)

        play(agent, "hi")
        assert not caplog.records

    def test_a_connection_with_the_key_stays(self) -> None:
        def agent(episode: Episode) -> None:
            mine = HTTPConnection(episode.base_url.split("/")[2])
            mine.auto_open = 0  # it does not come again by itself
            mine.connect()
            for _ in range(2):
                mine.request("GET", "/v1/models", headers={"Authorization": f"Bearer {episode.api_key}"})
                assert json.load(mine.getresponse())["data"]
                held = [connected(episode) for _ in range(CONNECTIONS + 20)]
                until(lambda: not _is_open(held[0]), 10)  # noqa: B023
                for one in held:
                    one.close()
            mine.close()
            ask(episode, episode.messages)

        play(agent, "hi")

    def test_strangers_have_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "STRANGER_S", 0.2)

        def agent(episode: Episode) -> None:
            with client(episode) as openai, connected(episode) as held:
                openai.models.list()
                until(lambda: not _is_open(held), 10)
                openai.models.list()
            ask(episode, episode.messages)

        play(agent, "hi")

    def test_another_episode_is_out_of_reach(self) -> None:
        def agent(episode: Episode) -> None:
            def other(inner: Episode) -> None:
                with pytest.raises(Refused, match="401 invalid_api_key"):
                    post(episode, {"messages": [user("mine?")]}, key=inner.api_key)
                ask(inner, inner.messages)

            play(other, "hi")
            ask(episode, episode.messages)

        play(agent, "hi")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"nan",
            b'{"messages": 1}',
            b"[" * 100_000,
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
            b"\xff",
        ],
    )
    def test_bodies_that_are_no_requests(self, body: bytes, no_collection: None) -> None:
        def agent(episode: Episode) -> None:
            headers = {"Authorization": f"Bearer {episode.api_key}"}
            got = requests.post(f"{episode.base_url}/chat/completions", data=body, headers=headers, timeout=30)
            assert got.status_code == (200 if b"ud800" in body else 400)
            assert got.status_code == 200 or got.json()["error"]["message"]
            ask(episode, episode.messages)

        play(agent, "hi")

    def test_a_conversation_at_which_the_template_breaks(self) -> None:
        """Whatever it raises: a thousand levels of nesting, for one."""

        class Deep(FakeRenderer):
            def open(self, messages: Any, tools: Any) -> Any:
                if messages[-1]["content"] == "deep":
                    raise RecursionError("too deep")
                return super().open(messages, tools)

        def agent(episode: Episode) -> None:
            with pytest.raises(Refused, match="400 None: the chat template cannot write this conversation"):
                ask(episode, [user("deep")])
            ask(episode, episode.messages)

        play(agent, "hi", renderer=Deep())

    def test_a_schema_that_is_nested_too_deeply(self) -> None:
        def agent(episode: Episode) -> None:
            for depth in (500, 900, 980, 20_000):
                tools = '[{"type": "function", "function": {"name": "f", "parameters": DEEP}}]'
                body = '{"messages": [{"role": "user", "content": "?"}], "tools": TOOLS}'.replace("TOOLS", tools)
                body = body.replace("DEEP", '{"a":' * depth + "1" + "}" * depth)
                headers = {"Authorization": f"Bearer {episode.api_key}"}
                got = requests.post(f"{episode.base_url}/chat/completions", data=body, headers=headers, timeout=30)
                assert got.status_code in (200, 400)
                assert got.status_code == 200 or got.json()["error"]["message"]
            ask(episode, episode.messages)

        play(agent, "hi")

    def test_a_body_that_is_too_large(self) -> None:
        def agent(episode: Episode) -> None:
            with pytest.raises((Refused, requests.ConnectionError)):
                post(episode, {"messages": [user("x" * (9 << 20))]})
            ask(episode, episode.messages)

        play(agent, "hi")

    def test_the_endpoint_is_gone_with_its_episode(self) -> None:
        known: list[Episode] = []

        def agent(episode: Episode) -> None:
            known.append(episode)
            ask(episode, episode.messages)

        play(agent, "hi")
        with pytest.raises(requests.ConnectionError):
            ask(known[0], known[0].messages)


def connected(episode: Episode) -> socket.socket:
    host, port = episode.base_url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)))


def sent(episode: Episode, body: Any, head: dict[str, Any] | None = None) -> socket.socket:
    """The connection of a request for a turn, whose answer nobody has read."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = {"Host": "x", "Authorization": f"Bearer {episode.api_key}", **(head or {"Content-Length": len(data)})}
    text = "POST /v1/chat/completions HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    one = connected(episode)
    one.sendall(text.encode() + b"\r\n" + data)
    return one


def _is_open(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
