"""The user played by a model, against a real HTTP server that misbehaves on demand."""

import json
import re
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from rollq.env import STOP_MARKER, User
from rollq.errors import Fenced, UserFailure
from rollq.settings import Endpoint
from rollq_worker.remote import chat_model
from rollq_worker.users import openai, user_factory
from tests.conftest import free_port
from tests.rollq_worker.engine.engine_servers import Answer, ScriptedEngine, scripted_engine
from tests.rollq_worker.users.tasks import TASK

KEY = "sk-very-secret-1234"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    monkeypatch.setattr(chat_model, "BACKOFF_S", (0.01, 0.1))
    monkeypatch.setattr(chat_model, "_refused", defaultdict(set))
    with scripted_engine() as server:
        yield server
    chat_model.http_client().close()


def bodies(server: ScriptedEngine) -> list[dict[str, Any]]:
    return server.bodies("/v1/chat/completions")


def say(content: object, **choice: object) -> Answer:
    return 200, {"choices": [{"message": {"role": "assistant", "content": content}, **choice}]}


def trickle() -> Iterator[bytes]:
    """Bytes come, but never all of them."""
    while True:
        time.sleep(0.02)
        yield b" "


def chunks() -> Iterator[bytes]:
    body = json.dumps({"choices": [{"message": {"content": "In chunks."}}]}).encode()
    for part in (body[:7], body[7:], b""):
        yield b"%x\r\n%s\r\n" % (len(part), part)


TRICKLE = (200, trickle, {"Content-Length": "100000"})
CUT_SHORT = (200, lambda: [b"{"], {"Content-Length": "100", "Connection": "close"})
CHUNKED = (200, chunks, {"Transfer-Encoding": "chunked"})


def make_user(
    server: ScriptedEngine,
    *answers: Answer,
    key_file: Path | None = None,
    check: Callable[[], None] | None = None,
    away: Callable[[str], AbstractContextManager[object]] = nullcontext,
    **options: object,
) -> User:
    """A user of that server, which gives these answers and then the last one again and again."""
    server.answers, server.then = list(answers), answers[-1]
    endpoints = {"sim": Endpoint(f"{server.url}/v1", key_file)}
    spec = {
        "kind": "openai",
        "endpoint": "sim",
        "model": "m-1",
        "timeout_s": 60,
        "retries": 3,
        **options,
    }
    return user_factory(spec, TASK, seed=7, endpoints=endpoints, check=check, away=away)


def test_a_conversation_with_flipped_roles(server: ScriptedEngine) -> None:
    user = make_user(
        server,
        say("Hi, I am Ada."),
        say(" It is S-1. \n"),
        say(f"{STOP_MARKER}"),
        temperature=0.5,
        max_tokens=99,
    )
    assert user.open() == "Hi, I am Ada."
    assert user.reply("Which order?") == "It is S-1."
    assert user.reply("Done.") == STOP_MARKER
    assert [path for path, _, _ in server.requests] == ["/v1/chat/completions"] * 3
    last = bodies(server)[-1]
    system, *messages = last.pop("messages")
    assert last == {"model": "m-1", "max_tokens": 99, "seed": 7, "temperature": 0.5}
    assert (
        system["role"] == "system"
        and TASK.instruction in system["content"]
        and STOP_MARKER in system["content"]
    )
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", openai.GREETING),
        ("assistant", "Hi, I am Ada."),
        ("user", "Which order?"),
        ("assistant", "It is S-1."),
        ("user", "Done."),
    ]
    assert "1299.50" not in json.dumps(bodies(server))


def test_a_job_without_temperature_and_key_sends_none(server: ScriptedEngine) -> None:
    make_user(server, say("Hi")).open()
    assert "temperature" not in bodies(server)[0]
    assert "Authorization" not in server.requests[0][2]


@pytest.mark.parametrize(
    ("content", "heard"),
    [
        ("<think>He wants the id.</think>It is S-1.", "It is S-1."),
        ("<think>a</think>It is <think>b\nc</think>S-1.", "It is S-1."),
        ("He wants the id.\n</think>\n\nIt is S-1.", "It is S-1."),
        (f"It is S-1.<think>shall I say {STOP_MARKER}", "It is S-1."),
        ("<thinking>a plan</thinking>It is S-1.", "It is S-1."),
        ("[THINK]a plan[/THINK]It is S-1.", "It is S-1."),
        ("<seed:think>a plan</seed:think>It is S-1.", "It is S-1."),
        ("<longcat_think>a plan</longcat_think>It is S-1.", "It is S-1."),
        ("<ifm|think>a plan</ifm|think>It is S-1.", "It is S-1."),
        ("a plan</think:opensource>It is S-1.", "It is S-1."),
        ("<think:6124c78e>a plan</think:6124c78e>It is S-1.", "It is S-1."),
        ("<ifm|think_fast>a plan</ifm|think_fast>It is S-1.", "It is S-1."),
        (
            "<|channel|>analysis<|message|>a plan<|end|><|start|>assistant"
            "<|channel|>final<|message|>It is S-1.<|return|>",
            "It is S-1.",
        ),
        (
            [
                {"type": "thinking", "thinking": [{"text": "a plan"}]},
                {"type": "text", "text": "It is S-1."},
            ],
            "It is S-1.",
        ),
        ("half \ud83d pair", "half \ufffd pair"),
        ("I think so.", "I think so."),
    ],
)
def test_thoughts_are_not_spoken(server: ScriptedEngine, content: object, heard: str) -> None:
    assert make_user(server, say(content)).open() == heard


def test_a_model_that_repeats_a_tag_takes_no_time(server: ScriptedEngine) -> None:
    repeated = "</think:" * 30_000
    user = make_user(server, say(repeated))
    began = time.process_time()
    assert user.open() == repeated
    assert time.process_time() - began < 5  # 90 s where each tag is read to the end of the text


def test_an_answer_in_chunks(server: ScriptedEngine) -> None:
    assert make_user(server, CHUNKED).open() == "In chunks."


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((200, b"<html>not JSON"), "not with a chat completion"),
        ((200, b"[]"), "not with a chat completion"),
        ((200, b"[" * 100_000), "not with a chat completion"),
        ((200, b'{"choices": []}'), "not with a chat completion"),
        ((200, b'{"choices": [null]}'), "not with a chat completion"),
        ((200, b"x" * (chat_model.MAX_BYTES + 1)), "not with a chat completion"),
        (say(None), "answered nothing"),
        (say(" \n"), "answered nothing"),
        (say([{"type": "image", "text": "hi"}]), "answered nothing"),
        (say("<think>on and on", finish_reason="length"), "cut short: max_tokens is too low"),
        (say("My card is ", finish_reason="content_filter"), "cut short by a filter"),
        (say(None, finish_reason="tool_calls"), "calls a tool"),
        (say(None, finish_reason=["stop"]), "answered nothing"),
        (say("<think>on and on", finish_reason="stop"), r"nothing \(finish_reason 'stop'\)"),
    ],
)
def test_nonsense_is_asked_again_and_then_a_user_failure(
    server: ScriptedEngine, bad: Answer, words: str
) -> None:
    assert make_user(server, bad, say("Hi")).open() == "Hi"
    server.requests.clear()
    user = make_user(server, bad, retries=1)
    with pytest.raises(
        UserFailure, match=rf"user endpoint 'sim', model 'm-1': .*({words}).*\(tried 2 times\)"
    ):
        user.open()
    assert len(bodies(server)) == 2


def fails_long_ones(failing: Answer) -> Callable[[dict[str, Any]], Answer]:
    """Answers the probe, and no conversation."""
    return lambda body: say("Yes.") if body["messages"] == list(chat_model.PROBE) else failing


@pytest.mark.parametrize(
    ("failing", "says"),
    [
        ("hang", r"gave no answer \(.*Timeout.*\)"),
        (TRICKLE, r"gave no answer \(.*in time.*\)"),
        (CUT_SHORT, "gave no answer|not with a chat completion"),
        ((500, {}), "answered 500"),
        ((429, b"", {"Retry-After": "0"}), "answered 429"),
    ],
    ids=["hang", "trickle", "cut short", "500", "429"],
)
def test_a_request_that_alone_fails_spends_the_retries(
    server: ScriptedEngine, failing: Answer, says: str
) -> None:
    with pytest.raises(
        UserFailure, match=rf"user endpoint 'sim', model 'm-1': {says}.* \(tried 2 times\)"
    ):
        make_user(server, fails_long_ones(failing), timeout_s=1.0, retries=1).open()


@pytest.mark.parametrize(
    "away", [*((code, {}) for code in (408, 429, 500, 502, 503, 529)), "reset"], ids=repr
)
def test_an_endpoint_that_is_away_is_waited_for_and_spends_nothing(
    server: ScriptedEngine, away: Answer
) -> None:
    waits: list[str] = []

    @contextmanager
    def note(what: str) -> Iterator[None]:
        waits.append(what)
        yield

    user = make_user(server, *[away] * 12, say("Hi"), retries=0, away=note)
    assert user.open() == "Hi"
    first, *probes, last = bodies(server)
    assert first == last and all(body["messages"] == list(chat_model.PROBE) for body in probes)
    assert (
        all(
            re.match("the user's endpoint 'sim', which (answered|gave no answer)", what)
            for what in waits
        )
        and waits
    )


def test_an_endpoint_that_stays_away_is_left_when_the_attempt_must_stop(
    server: ScriptedEngine,
) -> None:
    spec = {"kind": "openai", "endpoint": "sim", "model": "m", "retries": 1}
    endpoints = {"sim": Endpoint(f"http://user:{KEY}@127.0.0.1:{free_port()}/v1")}
    waits: list[str] = []
    until = time.monotonic() + 1.0

    def check() -> None:
        if time.monotonic() > until:
            raise Fenced("gone")

    def note(what: str) -> AbstractContextManager[None]:
        waits.append(what)
        return nullcontext()

    with pytest.raises(Fenced):
        user_factory(spec, TASK, seed=7, endpoints=endpoints, check=check, away=note).open()
    assert len(waits) == 1 and KEY not in waits[0]


@pytest.mark.parametrize(
    "refused", [["max_tokens"], ["seed", "temperature"], ["max_tokens", "max_completion_tokens"]]
)
def test_a_parameter_that_a_model_refuses_is_left_out(
    server: ScriptedEngine, refused: list[str]
) -> None:
    def strict(body: dict[str, Any]) -> Answer:
        for name in refused:
            if name in body:
                return 400, {
                    "error": {"message": f"Unsupported parameter: '{name}'", "param": name}
                }
        return say("Hi")

    user = make_user(server, strict, temperature=0.5, max_tokens=99)
    assert user.open() == user.reply("?") == "Hi"
    assert len(bodies(server)) == 2 + len(refused)  # what was refused is remembered
    sent = bodies(server)[-1]
    assert not set(refused) & set(sent)
    assert sent.get("max_completion_tokens") == (99 if refused == ["max_tokens"] else None)


@pytest.mark.parametrize(
    "refusal",
    [
        "'max_tokens' or 'max_completion_tokens' is too large: 99. This model's maximum "
        "context length is 4096"
        " tokens and your request has 4000 input tokens (99 > 4096 - 4000).",
        "temperature: must be between 0 and 1",
    ],
)
def test_a_value_that_is_refused_is_no_parameter_that_is(
    server: ScriptedEngine, refusal: str
) -> None:
    with pytest.raises(UserFailure, match="answered 400"):
        make_user(server, (400, {"message": refusal}), temperature=1.5, max_tokens=99).open()
    make_user(server, say("Hi"), temperature=1.5, max_tokens=99).open()
    first, last = bodies(server)
    assert first == last and last["max_tokens"] == 99 and last["temperature"] == 1.5


def test_a_user_who_leaves_before_it_has_said_anything_has_failed(server: ScriptedEngine) -> None:
    with pytest.raises(UserFailure, match=f"said {STOP_MARKER} before it said anything"):
        make_user(server, say(f"{STOP_MARKER}")).open()


def test_the_server_says_when_to_come_back(
    server: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(chat_model, "wait", lambda seconds, check: pauses.append(seconds))
    monkeypatch.setattr(chat_model, "BACKOFF_S", (0.0, 0.0))
    later, much_later = (429, b"", {"Retry-After": "3"}), (503, b"", {"Retry-After": "100000"})
    assert (
        make_user(server, later, later, much_later, say("Yes."), say("Hi"), retries=0).open()
        == "Hi"
    )
    assert pauses == [3.0, 60.0]
    assert make_user(server, later, say("Yes."), say("Hi"), retries=1).open() == "Hi"
    assert pauses[2:] == [3.0, 0.0]


def test_a_message_that_breaks_the_endpoint_again_and_again_is_given_up(
    server: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_model, "wait", lambda seconds, check: None)
    broken = False

    def answer(body: dict[str, Any]) -> Answer:
        nonlocal broken
        was, broken = broken, body["messages"] != list(chat_model.PROBE)
        return (502, {}) if broken or was else say("Yes.")

    with pytest.raises(UserFailure, match=r"answered 502 \(tried 2 times\)"):
        make_user(server, answer, retries=1).open()
    asked = [body for body in bodies(server) if body["messages"] != list(chat_model.PROBE)]
    assert len(asked) == chat_model.MOST_OUTAGES + 2


def test_a_long_answer_is_read_at_once(server: ScriptedEngine) -> None:
    began = time.process_time()
    assert make_user(server, say("a" * 100_000)).open() == "a" * 100_000
    assert (
        time.process_time() - began < 5
    )  # it took 30 s where each end of a thought was looked for behind each start


@pytest.mark.parametrize("code", [301, 400, 401, 403, 404, 422])
def test_other_statuses_fail_at_once(server: ScriptedEngine, code: int, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    body = f"bad\nrequest with {KEY} {'x' * 350} {KEY}".encode()
    user = make_user(
        server, (code, body, {"Location": "http://127.0.0.1:9/"}), say("Hi"), key_file=key_file
    )
    with pytest.raises(
        UserFailure, match=f"user endpoint 'sim', model 'm-1': answered {code}"
    ) as caught:
        user.open()
    assert len(bodies(server)) == 1
    shown = "".join(traceback.format_exception(caught.value))
    assert "sk-very" not in shown
    if code in (401, 403):
        assert str(key_file) in shown and "bad" not in str(caught.value)
    else:
        assert ("redirects are not followed" if code == 301 else "bad request with ***") in shown


def test_the_key_is_sent_read_again_and_shown_nowhere(
    server: ScriptedEngine, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("old")
    user = make_user(server, say("Hi"), say("Ho"), "hang", key_file=key_file)
    key_file.write_text(f"{KEY}\n")
    user.open()
    key_file.write_text("newer")
    user.reply("?")
    assert [headers["Authorization"] for _, _, headers in server.requests] == [
        f"Bearer {KEY}",
        "Bearer newer",
    ]
    assert KEY not in repr(user) + repr(vars(user)) + repr(vars(chat_model.http_client()._session))


@pytest.mark.parametrize("content", [None, "", " \n", "ké", "two\nlines", b"\xff"])
def test_a_key_file_without_a_key(
    server: ScriptedEngine, tmp_path: Path, content: str | bytes | None
) -> None:
    key_file = tmp_path / "key"
    if content is not None:
        key_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(
        UserFailure, match=r"'sim'.*its key file .*key (cannot be read|holds no key)"
    ):
        make_user(server, say("Hi"), key_file=key_file).open()
    assert bodies(server) == []


def test_a_failed_reply_can_be_asked_for_again(server: ScriptedEngine) -> None:
    user = make_user(server, say("Hi"), (503, {}), say("S-1"), retries=0)
    user.open()
    with pytest.raises(UserFailure):
        user.reply("Which order?")
    assert user.reply("Which order?") == "S-1"
    assert [message["role"] for message in bodies(server)[-1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_text_that_is_no_unicode_can_be_said(server: ScriptedEngine) -> None:
    assert make_user(server, say("Hi")).reply("broken \ud800 text") == "Hi"
