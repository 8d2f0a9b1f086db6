"""User simulators; the model-backed one against a real HTTP server that misbehaves on demand."""

import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import Fenced, JobFailure, UserFailure
from rollq_worker.environments import shop
from rollq_worker.protocols import STOP_MARKER, Task, User
from rollq_worker.users import ScriptedUser, openai, oracle, user_factory

TASK = Task(
    id="t/0",
    hash="0",
    instruction="You are Ada Abara. You want to cancel order S-1. You ordered it by mistake. You want the {refund}.",
    opening="Hello, Ada here.",
    replies=("It is S-1.", "Yes.", f"Thank you. {STOP_MARKER}"),
    moves=(),
    outputs=("1299.50",),
)
KEY = "sk-very-secret-1234"


@dataclass(frozen=True)
class Endpoint:
    url: str
    key_file: str | Path | None = None


def make(spec: dict[str, object], endpoints: dict[str, Endpoint] | None = None, **options: Any) -> User:
    return user_factory(spec, TASK, seed=options.pop("seed", 7), endpoints=endpoints or {}, **options)


# Scripted.


def test_a_scripted_user_reads_its_lines_and_repeats_the_last() -> None:
    user = make({"kind": "scripted"})
    assert user.open() == TASK.opening
    assert [user.reply("?") for _ in range(5)] == [*TASK.replies, TASK.replies[-1], TASK.replies[-1]]


def test_a_script_needs_a_line() -> None:
    with pytest.raises(ValueError, match="at least one reply"):
        ScriptedUser("Hi", [])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "user kind None is unknown; there are scripted, oracle, openai"),
        ({"kind": "human"}, "user kind 'human' is unknown"),
        ({"kind": ["scripted"]}, "unknown"),
        ({"kind": "scripted", "model": "m"}, "user kind 'scripted' takes no model"),
        ({"kind": "oracle", "patience": 3}, "user kind 'oracle' takes no patience"),
        ({"kind": "openai"}, "needs endpoint and model"),
        ({"kind": "openai", "endpoint": "e"}, "needs model"),
        (
            {"kind": "openai", "endpoint": "e", "model": "m", "api_key": "k", "url": "u"},
            "takes no api_key, url; it takes",
        ),
        ({"kind": "openai", "endpoint": "e", "model": ""}, "user model cannot be ''"),
        ({"kind": "openai", "endpoint": 3, "model": "m"}, "user endpoint cannot be 3"),
        ({"kind": "openai", "endpoint": "e", "model": "m", "temperature": float("nan")}, "temperature cannot be nan"),
        ({"kind": "openai", "endpoint": "e", "model": "m", "max_tokens": 0}, "max_tokens cannot be 0"),
        ({"kind": "openai", "endpoint": "e", "model": "m", "timeout_s": True}, "timeout_s cannot be True"),
        ({"kind": "openai", "endpoint": "e", "model": "m", "timeout_s": float("inf")}, "timeout_s cannot be inf"),
        ({"kind": "openai", "endpoint": "e", "model": "m", "retries": 1.5}, r"retries cannot be 1\.5"),
        (
            {"kind": "openai", "endpoint": "e", "model": "m"},
            "'e' is unknown to this worker, which knows none: .* ROLLQ_USER_E",
        ),
    ],
)
def test_what_a_job_cannot_say(spec: dict[str, object], words: str) -> None:
    with pytest.raises(JobFailure, match=words):
        make(spec)


def test_the_endpoints_that_there_are_are_named() -> None:
    with pytest.raises(JobFailure, match="which knows a, b:"):
        make({"kind": "openai", "endpoint": "e", "model": "m"}, {"b": Endpoint("u"), "a": Endpoint("u")})


# Oracle.


def test_an_oracle_answers_agrees_and_leaves_when_it_was_told() -> None:
    user = make({"kind": "oracle"})
    assert user.open() == TASK.opening
    assert user.reply("Which order do you want to cancel?") == "I want to cancel order S-1."
    assert user.reply("Why? Was it ordered by mistake?") == "I ordered it by mistake."
    assert user.reply("I would cancel it. Shall I go ahead?") == oracle.AGREEMENT
    assert user.reply("It is cancelled, $1,299.50 comes back.") == oracle.FAREWELL
    assert STOP_MARKER in oracle.FAREWELL


def test_an_oracle_tells_all_it_knows_to_an_agent_that_asks_nothing_in_particular() -> None:
    user = make({"kind": "oracle"})
    said = [user.reply("Hm?") for _ in range(4)]
    assert said == [
        "I am Ada Abara.",
        "I want to cancel order S-1.",
        "I ordered it by mistake.",
        "I want the {refund}.",
    ]


def test_an_oracle_runs_out_of_patience() -> None:
    user = make({"kind": "oracle"})
    replies = [user.reply("Tell me more.") for _ in range(oracle.PATIENCE)]
    assert [STOP_MARKER in reply for reply in replies] == [False] * (oracle.PATIENCE - 1) + [True]


def test_an_oracle_plays_the_shop_to_an_end() -> None:
    """The moves were written for the script; the oracle answers otherwise, yet every task ends and most succeed."""
    domain, earned = shop.load(None), 0.0
    for index in range(100):
        task = domain.task("test", index)
        environment = domain.open("test", index, {})
        environment.reset(user_factory({"kind": "oracle"}, task, seed=0, endpoints={}))
        moves = iter([*task.moves, *[task.moves[-1]] * oracle.PATIENCE])
        while not environment.step(next(moves)).done:
            pass
        earned += environment.grade().reward
    assert earned >= 60


# OpenAI.

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.server.headers.append(dict(self.headers))
        self.server.paths.append(self.path)
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.released = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what some tests are about."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(openai, "BACKOFF_S", 0.01)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join(60)
    openai._session().close()


def say(content: object, **choice: object) -> Answer:
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": content}, **choice}]}).encode()
    return lambda handler: handler.send(body)


def status(code: int, body: bytes = b"{}", **headers: str) -> Answer:
    return lambda handler: handler.send(body, code, **headers)


def raw(body: bytes) -> Answer:
    return lambda handler: handler.send(body)


def hang(handler: Handler) -> None:
    handler.server.released.wait(60)


def trickle(handler: Handler) -> None:
    """Bytes come, but never all of them."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.released.wait(0.02):
        handler.wfile.write(b" ")


def cut(handler: Handler) -> None:
    handler.send(b"{", Content_Length="100")
    handler.close_connection = True


def chunked(handler: Handler) -> None:
    body = json.dumps({"choices": [{"message": {"content": "In chunks."}}]}).encode()
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for part in (body[:7], body[7:]):
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
    handler.wfile.write(b"0\r\n\r\n")


@dataclass
class Simulated:
    """An openai user of the server and what it needs."""

    server: Server
    key_file: Path | None = None
    check: Callable[[], None] | None = None
    options: dict[str, object] = field(default_factory=dict)

    def user(self, *answers: Answer) -> User:
        self.server.answers = list(answers)
        url = f"http://127.0.0.1:{self.server.server_port}/v1"
        spec = {"kind": "openai", "endpoint": "sim", "model": "m-1", "timeout_s": 60, "retries": 3, **self.options}
        return make(spec, {"sim": Endpoint(url, self.key_file)}, check=self.check)


def test_a_conversation_with_flipped_roles(server: Server) -> None:
    user = Simulated(server, options={"temperature": 0.5, "max_tokens": 99}).user(
        say("Hi, I am Ada."), say(" It is S-1. \n"), say(f"{STOP_MARKER}")
    )
    assert user.open() == "Hi, I am Ada."
    assert user.reply("Which order?") == "It is S-1."
    assert user.reply("Done.") == STOP_MARKER
    assert server.paths == ["/v1/chat/completions"] * 3
    last = server.asked[-1]
    system, *messages = last.pop("messages")
    assert last == {"model": "m-1", "max_tokens": 99, "seed": 7, "temperature": 0.5}
    assert system["role"] == "system" and TASK.instruction in system["content"] and STOP_MARKER in system["content"]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", openai.GREETING),
        ("assistant", "Hi, I am Ada."),
        ("user", "Which order?"),
        ("assistant", "It is S-1."),
        ("user", "Done."),
    ]
    assert "1299.50" not in json.dumps(server.asked)


def test_what_is_not_asked_for_is_not_sent(server: Server) -> None:
    Simulated(server).user(say("Hi")).open()
    assert "temperature" not in server.asked[0]
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("content", "heard"),
    [
        ("<think>He wants the id.</think>It is S-1.", "It is S-1."),
        ("<think>a</think>It is <think>b\nc</think>S-1.", "It is S-1."),
        ("He wants the id.\n</think>\n\nIt is S-1.", "It is S-1."),
        (f"It is S-1.<think>shall I say {STOP_MARKER}", "It is S-1."),
        ("I think so.", "I think so."),
    ],
)
def test_thoughts_are_not_spoken(server: Server, content: str, heard: str) -> None:
    assert Simulated(server).user(say(content)).open() == heard


def test_unavailable_twice_then_fine(server: Server) -> None:
    assert Simulated(server).user(status(503), status(503), say("Hi")).open() == "Hi"
    assert len(server.asked) == 3
    assert server.asked[0] == server.asked[2]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 529])
def test_other_statuses_worth_a_repeat(server: Server, code: int) -> None:
    assert Simulated(server).user(status(code), say("Hi")).open() == "Hi"


@pytest.mark.parametrize("answer", [chunked, say("In chunks.")])
def test_chunks(server: Server, answer: Answer) -> None:
    assert Simulated(server).user(answer).open() == "In chunks."


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (raw(b"<html>not JSON"), "no chat completion"),
        (raw(b"\xff\xfe"), "no chat completion"),
        (raw(b"[]"), "no chat completion"),
        (raw(b'{"choices": []}'), "no chat completion"),
        (raw(b'{"choices": [{"message": "hi"}]}'), "no chat completion"),
        (raw(b'{"choices": [null]}'), "no chat completion"),
        (raw(b"x" * (openai.LARGEST + 1)), "Timeout"),
        (raw(b""), "no chat completion"),
        (cut, "no answer|no chat completion"),
        (say(None), "answered nothing"),
        (say(""), "answered nothing"),
        (say(" \n"), "answered nothing"),
        (say([{"type": "text", "text": "hi"}]), "answered nothing"),
        (say("<think>on and on", finish_reason="length"), "cut short: the user's max_tokens is too low"),
        (say("I would like to", finish_reason="length"), "cut short: the user's max_tokens is too low"),
        (say("My card is ", finish_reason="content_filter"), "cut short by a filter"),
        (say(None, finish_reason="tool_calls"), "calls a tool"),
        (say(None, finish_reason=["stop"]), "answered nothing"),
        (say("<think>on and on", finish_reason="stop"), r"nothing \(finish_reason 'stop'\)"),
        (status(503), "answered 503"),
    ],
)
def test_nonsense_is_asked_again_and_then_a_user_failure(server: Server, bad: Answer, words: str) -> None:
    assert Simulated(server).user(bad, say("Hi")).open() == "Hi"
    server.asked.clear()
    user = Simulated(server, options={"retries": 1}).user(bad)
    with pytest.raises(UserFailure, match=rf"user endpoint 'sim', model 'm-1': .*({words}).*\(tried 2 times\)"):
        user.open()
    assert len(server.asked) == 2


@pytest.mark.parametrize("stuck", [hang, trickle])
def test_an_answer_that_does_not_come_in_time(server: Server, stuck: Answer) -> None:
    def first(handler: Handler) -> None:
        user._options = replace(user._options, timeout_s=60.0)  # for whatever is asked after this
        stuck(handler)

    user: Any = Simulated(server, options={"timeout_s": 1.0, "retries": 60}).user(first, say("Hi"))
    assert user.open() == "Hi"
    with pytest.raises(UserFailure, match=r"no answer \(.*Timeout.*\)"):
        Simulated(server, options={"timeout_s": 1.0, "retries": 1}).user(stuck).open()


def test_nobody_listens(server: Server) -> None:
    port = server.server_port
    server.shutdown()
    server.server_close()
    spec = {"kind": "openai", "endpoint": "sim", "model": "m", "retries": 1}
    user = make(spec, {"sim": Endpoint(f"http://user:{KEY}@127.0.0.1:{port}/v1")})
    with pytest.raises(UserFailure, match=r"'sim'.*no answer \(ConnectionError\) \(tried 2 times\)") as caught:
        user.open()
    assert KEY not in str(caught.value)


def test_a_user_who_leaves_before_it_has_said_anything_has_failed(server: Server) -> None:
    with pytest.raises(UserFailure, match=f"said {STOP_MARKER} before it said anything"):
        Simulated(server).user(say(f"{STOP_MARKER}")).open()


def test_the_server_says_when_to_come_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(openai.OpenAIUser, "_pause", lambda self, seconds: waits.append(seconds))
    user = Simulated(server, options={"timeout_s": 30}).user(
        status(429, Retry_After="3"), status(429, Retry_After="soon"), status(503, Retry_After="100000"), say("Hi")
    )
    assert user.open() == "Hi"
    assert waits[0] == 3.0 and waits[1] < 0.1 and waits[2] == 60.0


def test_repeats_end_with_the_time_for_a_reply(server: Server) -> None:
    user = Simulated(server, options={"timeout_s": 14.5, "retries": 3}).user(status(429, Retry_After="60"))
    start = time.monotonic()
    with pytest.raises(UserFailure, match=r"answered 429 \(tried 1 times\)"):
        user.open()
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("code", [301, 400, 401, 403, 404, 422])
def test_other_statuses_fail_at_once(server: Server, code: int, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    body = f"bad\nrequest with {KEY} {'x' * 350} {KEY}".encode()
    user = Simulated(server, key_file).user(status(code, body, Location="http://127.0.0.1:9/"), say("Hi"))
    with pytest.raises(UserFailure, match=f"user endpoint 'sim', model 'm-1': answered {code}") as caught:
        user.open()
    assert len(server.asked) == 1
    shown = "".join(traceback.format_exception(caught.value))
    assert "sk-very" not in shown
    if code in (401, 403):
        assert str(key_file) in shown and "bad" not in str(caught.value)
    else:
        assert ("redirects are not followed" if code == 301 else "bad request with ***") in shown


def test_the_key_is_sent_read_anew_and_shown_nowhere(server: Server, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("old")
    user = Simulated(server, key_file).user(say("Hi"), say("Ho"), hang)
    key_file.write_text(f"{KEY}\n")
    user.open()
    key_file.write_text("newer")
    user.reply("?")
    assert [headers["Authorization"] for headers in server.headers] == [f"Bearer {KEY}", "Bearer newer"]
    assert KEY not in repr(user) + repr(vars(user)) + repr(vars(openai._session()))


def test_the_key_is_not_in_what_caused_a_failure(server: Server, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    user = Simulated(server, key_file, options={"timeout_s": 0.1, "retries": 0}).user(hang)
    with pytest.raises(UserFailure) as caught:
        user.open()
    error: BaseException | None = caught.value
    while error is not None:
        assert not hasattr(error, "request")  # requests' errors carry the headers
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("content", [None, "", " \n", "ké", "two\nlines", b"\xff"])
def test_a_key_file_without_a_key(server: Server, tmp_path: Path, content: str | bytes | None) -> None:
    key_file = tmp_path / "key"
    if content is not None:
        key_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserFailure, match=r"'sim'.*its key file .*key (cannot be read|holds no key)"):
        Simulated(server, key_file).user(say("Hi")).open()
    assert server.asked == []


def test_the_attempt_can_be_stopped_between_repeats(server: Server) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Fenced("gone")

    with pytest.raises(Fenced):
        Simulated(server, check=check).user(status(503)).open()
    assert 1 <= len(server.asked) <= 2


def test_a_failed_reply_can_be_asked_for_again(server: Server) -> None:
    user = Simulated(server, options={"retries": 0}).user(say("Hi"), status(503), say("S-1"))
    user.open()
    with pytest.raises(UserFailure):
        user.reply("Which order?")
    assert user.reply("Which order?") == "S-1"
    assert [message["role"] for message in server.asked[-1]["messages"]] == ["system", "user", "assistant", "user"]


def test_text_that_is_no_unicode_can_be_said(server: Server) -> None:
    assert Simulated(server).user(say("Hi")).reply("broken \ud800 text") == "Hi"


def test_many_users_at_once(server: Server) -> None:
    def echo(handler: Handler) -> None:
        say(handler.server.asked[-1]["model"])(handler)

    users = [Simulated(server).user(echo) for _ in range(32)]
    heard: list[str] = []
    threads = [threading.Thread(target=lambda user=user: heard.append(user.open())) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert heard == ["m-1"] * 32
