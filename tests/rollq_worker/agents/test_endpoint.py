"""The endpoint as the openai package sees it, and what hostile agents may try."""

import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from typing import Any

import pytest
import requests

from rollq.env import Episode
from rollq.errors import WorkerFailure
from rollq.trajectory import Trajectory
from rollq_worker.agents import connections, endpoint
from rollq_worker.agents.connections import CONNECTIONS
from rollq_worker.agents.endpoint import BODIES, LARGEST_BODY, THREADS
from rollq_worker.fakes import FakeEngine, FakeRenderer
from rollq_worker.protocols import SampleRequest
from tests.rollq_worker.agents.played import TOOL, Refused, ask, play, post, user
from tests.waiting import until

CALL = '{"name": "look", "arguments": {"at": 1}}'
TOOLS: Any = [TOOL]


def client(episode: Episode, key: str = "") -> Any:
    import openai  # a second

    return openai.OpenAI(base_url=episode.base_url, api_key=key or episode.api_key, max_retries=0)


class TestOpenAI:
    def test_a_completion(self) -> None:
        def agent(episode: Episode) -> None:
            messages: Any = episode.messages
            with client(episode) as openai:
                got = openai.chat.completions.create(model=episode.model, messages=messages)
            [choice] = got.choices
            assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == (
                "hi",
                "stop",
                None,
            )
            assert got.usage is not None
            prompt = len("[system]policy[user]hello[assistant]")
            assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (prompt, 3)
            assert (got.model, got.object, got.system_fingerprint) == (
                "rollq",
                "chat.completion",
                "v0",
            )

        assert play(agent, "hi").turns == 1

    @pytest.mark.parametrize("text", ["hi", CALL])
    def test_a_stream(self, text: str) -> None:
        def agent(episode: Episode) -> None:
            asked: Any = {
                "messages": episode.messages,
                "tools": TOOLS,
                "stream_options": {"include_usage": True},
            }
            with (
                client(episode) as openai,
                openai.chat.completions.stream(model="any", **asked) as stream,
            ):
                final = stream.get_final_completion()
            [choice] = final.choices
            calls = [
                (call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or ()
            ]
            if text == CALL:
                assert (calls, choice.finish_reason) == ([("look", '{"at": 1}')], "tool_calls")
            else:
                assert (choice.message.content, choice.finish_reason) == ("hi", "stop")
            assert final.usage is not None and final.usage.completion_tokens == len(text) + 1

        assert play(agent, text).turns == 1

    def test_models_and_errors(self) -> None:
        import openai

        def agent(episode: Episode) -> None:
            messages: Any = episode.messages
            with client(episode) as mine, client(episode, key="other") as other:
                assert [model.id for model in mine.models.list()] == [episode.model]
                assert mine.models.retrieve(episode.model).owned_by == "rollq"
                assert mine.models.retrieve("gpt-5").id == "gpt-5"
                with pytest.raises(
                    openai.BadRequestError, match="n is '2': it can be 1 only"
                ) as caught:
                    mine.chat.completions.create(model="m", messages=messages, n=2)
                assert (caught.value.param, caught.value.code) == ("n", "unsupported_parameter")
                with pytest.raises(openai.AuthenticationError):
                    other.models.list()
                with pytest.raises(
                    openai.NotFoundError,
                    match="POST /v1/embeddings is not served here; there is POST",
                ):
                    mine.embeddings.create(model="m", input="text")
                mine.chat.completions.create(model="m", messages=messages)

        play(agent, "hi")


def endures(attack: Callable[[Episode], None], **options: Any) -> Trajectory:
    """Play an agent that attacks its endpoint, and is then answered as any other."""

    def agent(episode: Episode) -> None:
        attack(episode)
        assert ask(episode, episode.messages)["content"] == "hi"

    return play(agent, "hi", **options)


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
            with ExitStack() as held:
                for n in range(THREADS):
                    held.enter_context(sent(episode, {"messages": [user(str(n))]}))
                until(lambda: len(begun) == THREADS, 30)
                for n in range(20):
                    sent(episode, {"messages": [user(f"gone {n}")]}).close()
                time.sleep(0.2)
                go_on.set()
                ask(episode, episode.messages)

        assert play(agent, engine=engine, budget={"max_turns": 100}).turns == THREADS + 1

    @pytest.mark.parametrize(
        ("requests", "held", "length", "refusal"),
        [
            (
                64,
                BODIES // LARGEST_BODY,
                LARGEST_BODY,
                "2 requests of 16777216 bytes are under way",
            ),
            (3, 3, 9, "3 requests of 27 bytes are under way"),
            (64, 64, 9, "64 requests of 576 bytes are under way"),
        ],
    )
    def test_more_under_way_than_an_episode_may_have(
        self, monkeypatch: pytest.MonkeyPatch, requests: int, held: int, length: int, refusal: str
    ) -> None:
        monkeypatch.setattr(endpoint, "REQUESTS", requests)

        def attack(episode: Episode) -> None:
            with ExitStack() as stack:
                for _ in range(held):
                    stack.enter_context(sent(episode, None, {"Content-Length": length}))
                time.sleep(0.2)
                with pytest.raises(Refused, match=f"429 rate_limit_exceeded: {refusal}"):
                    ask(episode, episode.messages)
                with pytest.raises(Refused, match="429 rate_limit_exceeded"):
                    post(episode, {"name": "add", "arguments": {}}, path="/../episode/step")
            time.sleep(0.2)

        endures(attack)


class TestHostile:
    def test_connections_that_are_held(self, caplog: pytest.LogCaptureFixture) -> None:
        def attack(episode: Episode) -> None:
            with strangers(episode, CONNECTIONS + 20) as held:
                ask(episode, episode.messages)
                until(lambda: 0 < sum(map(_is_open, held)) <= CONNECTIONS)

        endures(attack)
        assert not caplog.records

    def test_strangers_that_only_connect_keep_nobody_away(self) -> None:
        def attack(episode: Episode) -> None:
            over = threading.Event()

            def connect() -> None:
                with ExitStack() as held:
                    while not over.is_set():
                        with suppress(OSError):
                            held.enter_context(connected(episode))

            flood = threading.Thread(target=connect)
            flood.start()
            try:
                for _ in range(30):
                    ask(episode, episode.messages)
            finally:
                over.set()
                flood.join()

        endures(attack, budget={"max_turns": 100})

    def test_what_is_no_http_is_answered_and_not_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def attack(episode: Episode) -> None:
            for text in (b"hello\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n"):
                with connected(episode) as one:
                    one.sendall(text)
                    assert b" 400 " in one.recv(1000)

        endures(attack)
        assert not caplog.records

    def test_bodies_that_cannot_be_read(self, caplog: pytest.LogCaptureFixture) -> None:
        def attack(episode: Episode) -> None:
            with sent(episode, {}, {"Content-Length": 2, "Content-Encoding": "gzip"}) as one:
                assert b" 400 " in one.recv(1000)
            with sent(episode, {}, {"Content-Length": 100}):
                time.sleep(0.2)  # and then it hangs up

        endures(attack)
        assert not caplog.records

    def test_a_connection_with_the_key_stays(self) -> None:
        def attack(episode: Episode) -> None:
            mine = HTTPConnection(episode.base_url.split("/")[2])
            mine.auto_open = 0  # it does not come again by itself
            mine.connect()
            for _ in range(2):
                mine.request(
                    "GET", "/v1/models", headers={"Authorization": f"Bearer {episode.api_key}"}
                )
                assert json.load(mine.getresponse())["data"]
                with strangers(episode, CONNECTIONS + 20) as held:
                    until(lambda: not _is_open(held[0]), 10)
            mine.close()

        endures(attack)

    def test_connections_that_are_kept_make_room_for_others(self) -> None:
        """Frameworks make a client for each request, several at once, and close none."""

        def attack(episode: Episode) -> None:
            with ExitStack() as kept, ThreadPoolExecutor(16) as pool:

                def ask_for_models(_: int) -> None:
                    session = kept.enter_context(requests.Session())
                    session.headers["Authorization"] = f"Bearer {episode.api_key}"
                    session.get(f"{episode.base_url}/models").raise_for_status()

                list(pool.map(ask_for_models, range(CONNECTIONS + 100)))

        endures(attack)

    def test_strangers_have_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "STRANGER_S", 0.2)

        def attack(episode: Episode) -> None:
            with client(episode) as openai, connected(episode) as held:
                openai.models.list()
                until(lambda: not _is_open(held), 10)
                openai.models.list()

        endures(attack)

    def test_another_episode_is_out_of_reach(self) -> None:
        def attack(episode: Episode) -> None:
            def inner(other: Episode) -> None:
                with pytest.raises(Refused, match="401 invalid_api_key"):
                    post(episode, {"messages": [user("mine?")]}, key=other.api_key)

            endures(inner)

        endures(attack)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"nan",
            b'{"messages": 1}',
            b"[" * 100_000,
            b"\xff",
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        ],
    )
    def test_bodies_that_are_no_requests(self, body: bytes, no_collection: None) -> None:
        def attack(episode: Episode) -> None:
            got = posted(episode, body)
            assert got.status_code == (200 if b"ud800" in body else 400)
            assert got.status_code == 200 or got.json()["error"]["message"]

        endures(attack)

    def test_a_schema_that_is_nested_too_deeply(self, no_collection: None) -> None:
        def attack(episode: Episode) -> None:
            for depth in (500, 900, 980, 20_000):
                deep = '{"a":' * depth + "1" + "}" * depth
                tools = (
                    '[{"type": "function", "function": {"name": "f", "parameters": DEEP}}]'.replace(
                        "DEEP", deep
                    )
                )
                body = '{"messages": [{"role": "user", "content": "?"}], "tools": TOOLS}'.replace(
                    "TOOLS", tools
                )
                got = posted(episode, body.encode())
                assert got.status_code == 200 or (
                    got.status_code == 400 and got.json()["error"]["message"]
                )

        endures(attack)

    def test_a_conversation_at_which_the_template_breaks(self) -> None:
        """Whatever it raises: a thousand levels of nesting, for one."""

        class Deep(FakeRenderer):
            def open(self, messages: Any, tools: Any) -> Any:
                if messages[-1]["content"] == "deep":
                    raise RecursionError("too deep")
                return super().open(messages, tools)

        def attack(episode: Episode) -> None:
            with pytest.raises(
                Refused, match="400 None: the chat template cannot write this conversation"
            ):
                ask(episode, [user("deep")])

        endures(attack, renderer=Deep())

    def test_a_body_that_is_too_large(self) -> None:
        def attack(episode: Episode) -> None:
            with pytest.raises((Refused, requests.ConnectionError)):
                post(episode, {"messages": [user("x" * (9 << 20))]})

        endures(attack)

    def test_the_endpoint_is_gone_with_its_episode(self) -> None:
        known: list[Episode] = []
        endures(known.append)
        with pytest.raises(requests.ConnectionError):
            ask(known[0], known[0].messages)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Garbage of other tests that is collected in the depth of a recursion cannot run its
    finalizers.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def posted(episode: Episode, body: bytes) -> requests.Response:
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    return requests.post(
        f"{episode.base_url}/chat/completions", data=body, headers=headers, timeout=30
    )


def connected(episode: Episode) -> socket.socket:
    host, port = episode.base_url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)))


@contextmanager
def strangers(episode: Episode, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that begin a request and show no key."""
    with ExitStack() as stack:
        held = [stack.enter_context(connected(episode)) for _ in range(count)]
        for one in held:
            one.sendall(b"GET /")
        yield held


def sent(episode: Episode, body: Any, head: dict[str, Any] | None = None) -> socket.socket:
    """The connection of a request for a turn, whose answer nobody has read."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = {
        "Host": "x",
        "Authorization": f"Bearer {episode.api_key}",
        **(head or {"Content-Length": len(data)}),
    }
    text = "POST /v1/chat/completions HTTP/1.1\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in lines.items()
    )
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


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.2"])
def test_the_address_at_which_it_listens(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv(endpoint.HOST, host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), 0), family=family).close()
    except OSError as e:
        pytest.skip(f"this machine has no {host}: {e}")

    def agent(episode: Episode) -> None:
        ask(episode, episode.messages)

    assert play(agent, "hi").turns == 1


def test_an_address_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(endpoint.HOST, "192.0.2.1")
    with pytest.raises(WorkerFailure, match=r"cannot listen at 192\.0\.2\.1 .*ROLLQ_AGENT_HOST"):
        play(lambda episode: None)
