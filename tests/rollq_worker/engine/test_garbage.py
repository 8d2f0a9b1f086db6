"""The SGLang client against engines that answer nonsense: a valid reply or a typed failure, whatever comes."""

import json
import math
import socket
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollq.errors import EngineFailure, JobFailure
from rollq_worker.engine import patience
from rollq_worker.engine.errors import Away, Broken, TooLong, refusal
from rollq_worker.engine.http import Answer
from rollq_worker.engine.reply import MAX_MESSAGE, ReplyError, read_error, read_reply
from rollq_worker.engine.sglang_client import RETRIES, SGLangEngine
from rollq_worker.engine.vocabulary import PADDING, Vocabulary
from rollq_worker.protocols import Generated
from tests.rollq_worker.engine.engines import fine, reply, scripted

PROMPT, MOST, VOCABULARY, RID = 3, 10, 100, "x"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside, itself first."""
    yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from parts(inner, (*path, step))


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], to)
    return copy


GOOD = reply([7, 8, 9], prompt_tokens=PROMPT, id=RID)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bytes, JSON, and good replies with one or two places gone wrong or cut short."""
    kind = draw(st.sampled_from(["bytes", "json", "changed", "changed", "changed", "cut"]))
    if kind == "bytes":
        return draw(st.binary(max_size=50))
    if kind == "json":
        return json.dumps(draw(JSON)).encode()
    body = GOOD
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(parts(body))))
        interesting = [-1, 0, 1, 2**32 - 1, 2**63, 10**400, -0.0, 1e300, math.nan, math.inf, True, "", [], {}, None]
        body = changed(body, path, draw(JSON | st.sampled_from(interesting)))
    text = json.dumps(body).encode()
    return text[: draw(st.integers(0, len(text)))] if kind == "cut" else text


@settings(max_examples=600, deadline=None)
@given(bodies())
def test_a_reply_is_valid_or_an_error_of_the_engine(body: bytes) -> None:
    try:
        got = read_reply(body, rid=RID, prompt=PROMPT, max_new_tokens=MOST, vocabulary=VOCABULARY)
    except ReplyError as e:
        assert len(str(e)) < 5 * MAX_MESSAGE
        return
    assert_valid(got)


def assert_valid(got: Generated) -> None:
    assert len(got.ids) == len(got.logprobs) <= MOST
    assert all(0 <= id < VOCABULARY for id in got.ids)
    assert all(math.isfinite(p) and p <= 1e-6 for p in got.logprobs)
    ends = [0, *(span.end for span in got.versions)]
    assert [span.start for span in got.versions] == ends[:-1] and ends[-1] == len(got.ids)
    assert all(isinstance(span.version, str) for span in got.versions)
    assert isinstance(got.text, str) and 0 <= got.cached_tokens <= PROMPT


@settings(max_examples=300, deadline=None)
@given(st.integers(100, 599).filter(lambda status: status != 200), bodies())
def test_an_error_is_one_of_few(status: int, body: bytes) -> None:
    found = refusal(Answer(status, body), "r/g/0")
    assert isinstance(found, Away | Broken | TooLong | JobFailure)
    assert len(read_error(body)) <= MAX_MESSAGE + 4 and "\n" not in read_error(body)
    blamed = isinstance(found, TooLong | JobFailure)
    assert not blamed or 400 <= status < 500  # only who looked at the request may refuse it


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "BACKOFF_S", (0.0, 0.0))
    monkeypatch.setattr(patience, "RESET_BACKOFF_S", (0.0, 0.0))


@contextmanager
def raw(answer: bytes) -> Iterator[str]:
    """A server that answers every POST with these bytes and hangs up, and every GET well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with suppress(TimeoutError, OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(30)
                        post = connection.recv(1 << 16).startswith(b"POST")
                        connection.sendall(answer if post else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


HTTP = [
    b"",
    b"\r\n\r\n",
    b"\x00\xff" * 100,
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/9.9 abc\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
]


@pytest.mark.parametrize("answer", HTTP, ids=lambda answer: repr(answer[:60]))
def test_what_is_no_http_is_a_failure_of_the_engine(answer: bytes) -> None:
    with raw(answer) as url:
        engine = SGLangEngine(url, vocab_size=VOCABULARY)
        with pytest.raises(EngineFailure, match=rf"r/g/0: .* {RETRIES + 1} times in a row"):
            engine.generate(array("I", [1]), sampling={}, max_new_tokens=5, key="r/g/0", check=lambda: None)
        engine.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(bodies())
def test_garbage_through_the_client(body: bytes) -> None:
    with scripted(*[(200, body)] * (RETRIES + 1)) as script:
        engine = SGLangEngine(script.url, vocab_size=VOCABULARY)
        try:
            got = engine.generate(
                array("I", [1, 2, 3]), sampling={}, max_new_tokens=MOST, key="r/g/0", check=lambda: None
            )
            assert_valid(got)
        except EngineFailure:
            assert len(script.bodies()) == RETRIES + 1
        except JobFailure as e:
            assert "the engine aborted the request" in str(e)  # it gave a reason, with a 4xx
        engine.close()


class TestVocabulary:
    def test_padding_ids_are_admitted_once_sampled_and_no_others(self) -> None:
        known = Vocabulary(100)
        assert known.stranger(array("I", [99])) is None and known.stranger(array("I", [5, 100])) == 100
        known.admit([3, 150])
        assert known.stranger(array("I", [150])) is None and known.stranger(array("I", [151])) == 151

    @pytest.mark.parametrize("id", [100 + PADDING, 4_000_000_000, 2**40])
    def test_what_no_model_has_raises_no_ceiling(self, id: int) -> None:
        known = Vocabulary(100)
        known.admit([id, 120])
        assert known.stranger(array("I", [120])) is None and known.stranger(array("I", [121])) == 121

    def test_threads_never_lower_it(self) -> None:
        known = Vocabulary(100)
        threads = [threading.Thread(target=known.admit, args=([100 + i],)) for i in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert known.stranger(array("I", [149])) is None and known.stranger(array("I", [150])) == 150

    def test_ids_beyond_every_vocabulary_are_a_failure_of_the_engine_and_poison_nobody(self) -> None:
        wild = (200, reply([7, 4_000_000_000, 9], prompt_tokens=3))
        with scripted(*[wild] * (RETRIES + 1)) as script:
            engine = SGLangEngine(script.url, vocab_size=VOCABULARY)
            ids = array("I", [1, 2, 3])
            with pytest.raises(EngineFailure, match="token id 4000000000 was sampled"):
                engine.generate(ids, sampling={}, max_new_tokens=5, key="r/g/0", check=lambda: None)
            engine.admit([4_000_000_000])
            with pytest.raises(JobFailure, match="outside the model's vocabulary"):
                engine.generate(array("I", [101]), sampling={}, max_new_tokens=5, key="r/g/0", check=lambda: None)
            assert len(script.bodies()) == RETRIES + 1
            engine.close()


class TestConnections:
    """What is left of them when nothing is going on."""

    @staticmethod
    def sockets(engine: SGLangEngine) -> int:
        pools = engine._line._adapter.poolmanager.pools
        queues = [pools[key].pool for key in pools.keys()]  # noqa: SIM118
        return sum(connection.sock is not None for queue in queues for connection in queue.queue if connection)

    def test_no_thread_holds_a_wire_behind_its_answer(self) -> None:
        with scripted("reset", (500, b""), ready=(200, {}), abort_request=(200, b"")) as script:
            engine = SGLangEngine(script.url)
            engine.generate(array("I", [1]), sampling={}, max_new_tokens=5, key="r/g/0", check=lambda: None)
            engine.ready()
            engine._control.abort("x")
            assert len(engine._line.wires) == 0
            engine.close()
        assert not engine.ready() and len(engine._line.wires) == 0

    def test_a_quiet_client_keeps_no_connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rollq_worker.engine.http.IDLE_S", 1000.0)
        together = threading.Barrier(6, timeout=60)

        def at_once(body: dict[str, Any]) -> dict[str, Any]:
            together.wait()
            return fine(body)

        with scripted(*[at_once] * 6) as script:
            engine = SGLangEngine(script.url)
            many = [
                threading.Thread(
                    target=engine.generate,
                    args=(array("I", [1]),),
                    kwargs={"sampling": {}, "max_new_tokens": 5, "key": "r/g/0", "check": lambda: None},
                )
                for _ in range(6)
            ]
            for thread in many:
                thread.start()
            for thread in many:
                thread.join()
            assert self.sockets(engine) == 6
            engine.rest()
            assert self.sockets(engine) == 6  # they were used just now
            monkeypatch.setattr("rollq_worker.engine.http.IDLE_S", 0.0)
            engine.rest()
            assert self.sockets(engine) == 0
            engine.generate(array("I", [1]), sampling={}, max_new_tokens=5, key="r/g/0", check=lambda: None)
            engine.close()

    def test_one_that_lay_idle_is_not_used_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rollq_worker.engine.http.IDLE_S", 1000.0)
        ports: list[int] = []
        with scripted(ready=(200, {})) as script:
            engine = SGLangEngine(script.url)
            hold = engine._line.wires.hold
            monkeypatch.setattr(
                engine._line.wires, "hold", lambda sock: (ports.append(sock.getsockname()[1]), hold(sock))
            )
            assert engine.ready() and engine.ready()
            monkeypatch.setattr("rollq_worker.engine.http.IDLE_S", 0.0)
            assert engine.ready()
            engine.close()
        assert ports[0] == ports[1] != ports[2]


def test_redirections_are_not_followed() -> None:
    checks = iter(range(3))

    def check() -> None:
        if next(checks, None) is None:
            raise KeyError("enough")

    with scripted(*[(307, b"")] * 20) as script:
        engine = SGLangEngine(script.url)
        with pytest.raises(KeyError):
            engine.generate(array("I", [1]), sampling={}, max_new_tokens=5, key="r/g/0", check=check)
        assert not engine.available
        engine.close()
