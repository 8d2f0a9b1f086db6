"""The SGLang client against engines that misbehave; how it gets on with a real one is in tests/contract."""

import json
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import EngineFailure, JobFailure
from rollq.trajectory import Finish, VersionSpan
from rollq_worker.engine import control, http, patience
from rollq_worker.engine.availability import Availability
from rollq_worker.engine.errors import context_limit
from rollq_worker.engine.reply import AbortError, ReplyError, read_error, read_reply
from rollq_worker.engine.request import Prompts
from rollq_worker.engine.sglang_client import RETRIES, SGLangEngine
from rollq_worker.failures import Drained
from rollq_worker.protocols import Generated
from tests.conftest import free_port
from tests.rollq_worker.engine.engines import Answer, Scripted, fine, reply, scripted

KEY = "run/group/0"
QUEUE_FULL = (503, {"object": "error", "message": "The request queue is full.", "code": 503})
PROMPT = array("I", [1, 2, 3])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(patience, "RESET_BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(control, "PROBE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(control, "ABORT_TIMEOUT_S", 60.0)


@pytest.fixture
def connect() -> Iterator[Callable[..., SGLangEngine]]:
    engines: list[SGLangEngine] = []

    def make(script: Scripted | str, **options: Any) -> SGLangEngine:
        engines.append(SGLangEngine(script if isinstance(script, str) else script.url, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


Connect = Callable[..., SGLangEngine]


def generate(
    engine: SGLangEngine, ids: "array[int]" = PROMPT, check: Callable[[], None] = lambda: None, **sampling: Any
) -> Generated:
    return engine.generate(ids, sampling=sampling, max_new_tokens=10, key=KEY, check=check)


class TestRequest:
    @pytest.mark.parametrize(("least", "sent"), [(3, 3), (20, 10)])
    def test_it_never_asks_for_more_tokens_than_it_allows(self, connect: Connect, least: int, sent: int) -> None:
        with scripted() as script:
            generate(connect(script), min_new_tokens=least)  # of at most 10
        assert script.bodies()[0]["sampling_params"]["min_new_tokens"] == sent

    def test_it_carries_ids_and_everything_that_shapes_the_sampling(self, connect: Connect) -> None:
        with scripted() as script:
            got = generate(connect(script, stop_ids=[9, 10]), temperature=0.7, stop_token_ids=[10, 11])
            path, body, headers = script.seen[-1]
        assert path == "/generate"
        assert body.pop("rid")
        assert body == {
            "input_ids": [1, 2, 3],
            "return_logprob": True,
            "sampling_params": {
                "temperature": 0.7,
                "max_new_tokens": 10,
                "stop_token_ids": [9, 10, 11],
                "skip_special_tokens": False,
            },
        }
        assert headers["X-SMG-Routing-Key"] == KEY
        assert "Authorization" not in headers
        assert got == Generated(
            ids=array("I", [7, 8, 9]),
            logprobs=array("f", [-0.5, -1.5, -2.5]),
            versions=(VersionSpan("v1", 0, 3),),
            finish=Finish.STOP,
            text="said",
            cached_tokens=1,
        )

    def test_the_key_of_an_engine_that_wants_one(self, connect: Connect) -> None:
        with scripted() as script:
            generate(connect(script, api_key="secret"))
            assert script.seen[-1][2]["Authorization"] == "Bearer secret"

    def test_every_request_has_its_own_id(self, connect: Connect) -> None:
        with scripted() as script:
            engine = connect(script)
            for _ in range(3):
                generate(engine)
            assert len({body["rid"] for body in script.bodies()}) == 3

    @pytest.mark.parametrize("ids", [[], [4, 100], [2**31]], ids=repr)
    def test_what_would_kill_the_server_is_not_sent(self, connect: Connect, ids: list[int]) -> None:
        with scripted() as script:
            with pytest.raises(JobFailure, match=KEY):
                generate(connect(script, vocab_size=100), array("I", ids))
            assert script.bodies() == []

    def test_ids_that_the_engine_sampled_are_valid_whatever_the_tokenizer_says(self, connect: Connect) -> None:
        with scripted(lambda body: reply([120], prompt_tokens=3)) as script:
            engine = connect(script, vocab_size=100)
            generate(engine)
            generate(engine, array("I", [5, 120]))
            with pytest.raises(JobFailure):
                generate(engine, array("I", [121]))
            engine.admit([121])
            generate(engine, array("I", [121]))

    def test_concurrency_is_limited_and_waiting_can_be_stopped(self, connect: Connect) -> None:
        inside: list[object] = []
        most: list[int] = []
        two = threading.Barrier(2, timeout=60)

        def in_pairs(body: dict[str, Any]) -> dict[str, Any]:
            inside.append(body)
            most.append(len(inside))
            two.wait()
            inside.pop()  # before the answer, which makes room for the next
            return fine(body)

        with scripted(*[in_pairs] * 8) as script, ThreadPoolExecutor(8) as pool:
            engine = connect(script, concurrency=2)
            for done in [pool.submit(generate, engine) for _ in range(8)]:
                assert done.result().finish is Finish.STOP
        assert max(most) == 2

    def test_waiting_for_a_slot_ends_when_the_attempt_must(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(patience, "CHECK_S", 0.01)
        release = threading.Event()

        def held(body: dict[str, Any]) -> dict[str, Any]:
            release.wait(60)
            return fine(body)

        with scripted(held) as script, ThreadPoolExecutor(1) as pool:
            engine = connect(script, concurrency=1)
            first = pool.submit(generate, engine)
            _until(lambda: script.bodies())
            with pytest.raises(Drained):
                generate(engine, check=_raise_drained)
            release.set()
            assert first.result().finish is Finish.STOP


class TestWaiting:
    """An engine that is away, full or not ours costs nothing."""

    @pytest.mark.parametrize(
        "answer",
        [
            QUEUE_FULL,
            (503, {"error": {"type": "Service Unavailable", "code": "no_workers", "message": "No workers"}}),
            (429, {"detail": "slow down"}),
            (401, {"error": "Unauthorized"}),
            (404, {"detail": "Not Found"}),
            lambda body: reply(
                [], finish_reason={"type": "abort", "message": "full", "status_code": 503, "err_type": "x"}
            ),
        ],
    )
    def test_it_is_asked_again_until_it_takes_the_request(self, connect: Connect, answer: Answer) -> None:
        checks: list[bool] = []
        with scripted(*[answer] * (RETRIES + 3)) as script:
            engine = connect(script)
            got = generate(engine, check=lambda: checks.append(engine.available))
            rids = {body["rid"] for body in script.bodies()}
        assert got.finish is Finish.STOP
        assert False in checks and checks[0]
        assert engine.available and engine.outage_s > 0
        assert len(rids) == RETRIES + 4

    def test_an_engine_that_is_not_there_yet(self, connect: Connect) -> None:
        port = free_port()
        engine = connect(f"http://127.0.0.1:{port}")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, engine)
            _until(lambda: not engine.available)
            assert not engine.ready()
            with scripted(port=port, ready=(200, {})) as script:
                assert waiting.result(60).finish is Finish.STOP
                assert engine.available and engine.ready()
                assert len(script.bodies()) == 1

    def test_waiting_ends_when_the_attempt_must(self, connect: Connect) -> None:
        with scripted(*[QUEUE_FULL] * 1000) as script:
            engine = connect(script)
            left = iter(range(5))

            def check() -> None:
                if next(left, None) is None:
                    raise Drained("stopping")

            with pytest.raises(Drained):
                generate(engine, check=check)
            assert not engine.available

    def test_a_paused_engine_is_not_ready(self, connect: Connect) -> None:
        with scripted(ready=(503, {})) as script:
            engine = connect(script)
            assert not engine.ready() and not engine.available
            script.paths["/ready"] = (200, {})
            assert engine.ready() and engine.available

    def test_a_router_has_no_ready(self, connect: Connect) -> None:
        with scripted() as script:
            assert connect(script).ready()


class TestBreaking:
    """An engine that breaks in mid-request is tried again, a bounded number of times."""

    @pytest.mark.parametrize(
        "answer",
        [
            "reset",
            (200, b'{"text": "half a rep'),
            (200, b"\xff\xfe"),
            (200, {"unexpected": 1}),
            (500, b"Internal Server Error"),
            (502, b"<html>Bad Gateway</html>"),
            (400, {"error": {"message": "Duplicate request ID detected: x"}}),
            lambda body: reply(
                [], finish_reason={"type": "abort", "message": "CUDA", "status_code": 500, "err_type": "Internal"}
            ),
        ],
        ids=lambda answer: "abort" if callable(answer) else repr(answer),
    )
    def test_it_is_retried_and_then_an_engine_failure(self, connect: Connect, answer: Answer) -> None:
        with scripted(*[answer] * RETRIES) as script:
            assert generate(connect(script)).finish is Finish.STOP
            script.answers = [answer] * (RETRIES + 1)
            with pytest.raises(EngineFailure, match=rf"{KEY}: .* {RETRIES + 1} times in a row"):
                generate(connect(script))
            bodies = script.bodies()
        assert len(bodies) == 2 * (RETRIES + 1)
        assert len({body["rid"] for body in bodies}) == len(bodies)

    def test_a_timeout_aborts_what_it_gave_up(self, connect: Connect) -> None:
        over = threading.Event()

        def silent(body: dict[str, Any]) -> None:
            engine._read_timeout_s = 60.0  # for whatever is sent after this
            over.wait(60)
            raise ConnectionAbortedError

        with scripted(silent, abort_request=(200, b"")) as script:
            engine = connect(script, read_timeout_s=0.2)
            assert generate(engine).finish is Finish.STOP
            assert script.bodies("/abort_request") == [{"rid": script.bodies()[0]["rid"]}]
            over.set()

    def test_after_a_break_it_waits_until_the_engine_is_ready(self, connect: Connect) -> None:
        with scripted("reset", ready=(503, {})) as script, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, engine := connect(script))
            _until(lambda: len(script.bodies("/ready")) >= RETRIES + 2)
            assert not engine.available
            assert len(script.bodies()) == 1
            script.paths["/ready"] = (200, {})
            assert waiting.result(60).finish is Finish.STOP

    def test_a_refused_request_is_never_sent_twice(self, connect: Connect) -> None:
        with scripted((400, {"error": {"message": "top_p must be in (0, 1], got 3."}})) as script:
            with pytest.raises(JobFailure, match=rf"{KEY}: the engine answered 400: top_p must be"):
                generate(connect(script))
            assert len(script.bodies()) == 1

    def test_an_abort_with_a_reason_that_blames_the_request(self, connect: Connect) -> None:
        reason = {"type": "abort", "message": "bad grammar", "status_code": 400, "err_type": "BadRequest"}
        with (
            scripted(lambda body: reply([], finish_reason=reason)) as script,
            pytest.raises(JobFailure, match="bad grammar"),
        ):
            generate(connect(script))


class TestAborting:
    def test_partial_tokens_are_kept_whatever_the_reason(self, connect: Connect) -> None:
        reason = {"type": "abort", "message": "timeout", "status_code": 503, "err_type": "Timeout"}
        with scripted(lambda body: fine(body, finish_reason=reason)) as script:
            got = generate(connect(script))
        assert (got.finish, len(got.ids)) == (Finish.ABORT, 3)

    def test_aborted_in_the_queue(self, connect: Connect) -> None:
        def queued(body: dict[str, Any]) -> dict[str, Any]:
            reason = {"type": "abort", "message": "Abort in waiting queue"}
            return {"text": "", "output_ids": [], "meta_info": {"id": body["rid"], "finish_reason": reason}}

        with scripted(queued) as script:
            got = generate(connect(script))
        assert (got.finish, len(got.ids), got.versions) == (Finish.ABORT, 0, ())

    def test_all_that_run_are_aborted_by_name(self, connect: Connect) -> None:
        release = threading.Event()

        def held(body: dict[str, Any]) -> dict[str, Any]:
            release.wait(60)
            return fine(body)

        with scripted(held, held, abort_request=(200, b"")) as script, ThreadPoolExecutor(2) as pool:
            engine = connect(script)
            assert engine.abort_running() == 0
            waiting = [pool.submit(generate, engine) for _ in range(2)]
            _until(lambda: len(script.bodies()) == 2)
            assert engine.abort_running() == 2
            aborted = {body["rid"] for body in script.bodies("/abort_request")}
            assert aborted == {body["rid"] for body in script.bodies()}
            release.set()
            assert all(one.result().finish is Finish.STOP for one in waiting)
            assert engine.abort_running() == 0

    def test_nobody_to_ask(self, connect: Connect) -> None:
        engine = connect(f"http://127.0.0.1:{free_port()}")
        with engine._flights.flight("lost", KEY):
            assert engine.abort_running() == 0


class TestRoom:
    def test_as_the_server_says(self, connect: Connect) -> None:
        with scripted(server_info=(200, {"context_length": 1000, "max_req_input_len": 994})) as script:
            engine = connect(script)
            assert [engine.room(prompt) for prompt in (1, 993, 994, 2000)] == [999, 7, 0, 0]
            assert len(script.bodies("/server_info")) == 1
            generate(engine, array("I", [1] * 993))
            assert script.bodies()[-1]["sampling_params"]["max_new_tokens"] == 7
            assert generate(engine, array("I", [1] * 994)).finish is Finish.LENGTH
            assert len(script.bodies()) == 1

    def test_a_server_that_was_started_without_a_context_length(self, connect: Connect) -> None:
        info = {"context_length": None, "max_req_input_len": 500}
        with scripted(server_info=(200, info), **{"v1/models": (200, {"data": [{"max_model_len": 600}]})}) as script:
            assert connect(script).room(100) == 500

    @pytest.mark.parametrize("said", [0, -1, True, "1000", 8.5, None])
    def test_what_is_no_length_is_unknown(self, connect: Connect, said: object) -> None:
        """Taken at its word, it would end every episode by length."""
        info = {"context_length": said, "max_req_input_len": said}
        with scripted(server_info=(200, info), **{"v1/models": (200, {"data": [{"max_model_len": said}]})}) as script:
            assert connect(script).room(100) > 1_000_000

    def test_unknown_behind_a_router(self, connect: Connect) -> None:
        with scripted() as script:
            engine = connect(script)
            assert engine.room(100) > 1_000_000 and engine.room(100) > 1_000_000
            assert len(script.bodies("/server_info")) == 1

    def test_unknown_while_the_engine_is_away(self, connect: Connect) -> None:
        assert connect(f"http://127.0.0.1:{free_port()}").room(100) > 1_000_000

    def test_it_is_asked_for_again_when_the_engine_came_back(self, connect: Connect) -> None:
        port = free_port()
        engine = connect(f"http://127.0.0.1:{port}")
        with scripted(port=port, server_info=(200, {"context_length": 1000, "max_req_input_len": 994})):
            assert engine.room(0) == 1000
        assert not engine.ready()
        with scripted(port=port, server_info=(200, {"context_length": 500, "max_req_input_len": 494})):
            assert engine.room(0) == 1000
            assert engine.ready()
            assert engine.room(0) == 500

    def test_learnt_from_a_refusal(self, connect: Connect) -> None:
        message = "Requested token count exceeds the model's maximum context length of 8 tokens. You requested ..."
        with scripted((400, {"error": {"message": message}})) as script:
            engine = connect(script)
            generate(engine)
            assert [body["sampling_params"]["max_new_tokens"] for body in script.bodies()] == [10, 5]
            assert engine.room(3) == 5

    def test_one_odd_refusal_does_not_shorten_every_episode(self, connect: Connect) -> None:
        """Of a smaller server behind the same address, say: what the engine tells of itself stays."""
        message = "The input (9999 tokens) is longer than the model's context length (5 tokens)."
        info = {"context_length": 1000, "max_req_input_len": 994}
        with scripted((400, {"error": {"message": message}}), server_info=(200, info)) as script:
            engine = connect(script)
            with pytest.raises(JobFailure, match=r"context length \(5 tokens\)"):
                generate(engine)
            assert engine.room(100) == 900
            assert generate(engine).finish is Finish.STOP

    def test_a_refusal_that_says_nothing_new_is_final(self, connect: Connect) -> None:
        message = {"error": {"message": "the context length is exceeded, that is all I say"}}
        with scripted((400, message)) as script:
            with pytest.raises(JobFailure, match="the context length is exceeded"):
                generate(connect(script))
            assert len(script.bodies()) == 1


def encoded(**meta: Any) -> bytes:
    return json.dumps(reply([7, 8, 9], **meta)).encode()


class TestReading:
    def test_an_answer_to_another_request(self) -> None:
        with pytest.raises(ReplyError, match="this answers another request: other"):
            read_reply(encoded(id="other"), rid="r", prompt=3, max_new_tokens=10)

    def test_half_a_character_is_taken(self) -> None:
        body = json.dumps({**reply([7, 8, 9]), "text": "\ud83d"}).encode()
        assert read_reply(body, rid="r", prompt=3, max_new_tokens=10).text == "\ud83d"

    def test_no_more_is_read_than_an_answer_can_hold(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http, "LARGEST_ANSWER", 1 << 20)
        monkeypatch.setattr(http, "PIECE", 1 << 18)
        with scripted((200, b"[" + b"1," * (8 << 20))) as script:
            engine = connect(script)
            answer = engine._line.post("/generate", b'{"input_ids": [1], "rid": "r"}', timeout_s=5.0)
            assert 1 << 20 < len(answer.body) <= (1 << 20) + (1 << 18)
            assert generate(engine).finish is Finish.STOP  # on another connection

    def test_versions(self) -> None:
        spans = [{"version": "a", "start": 0, "end": 0}, {"version": "b", "start": 0, "end": 2}]
        spans.append({"version": "c", "start": 2, "end": 3})
        got = read_reply(encoded(weight_versions=spans), rid="r", prompt=3, max_new_tokens=10)
        assert got.versions == (VersionSpan("b", 0, 2), VersionSpan("c", 2, 3))

    def test_a_server_without_spans(self) -> None:
        body = json.loads(encoded())
        del body["meta_info"]["weight_versions"]
        got = read_reply(json.dumps(body).encode(), rid="r", prompt=3, max_new_tokens=10)
        assert got.versions == (VersionSpan("v1", 0, 3),)

    @pytest.mark.parametrize(
        ("meta", "complaint"),
        [
            ({"completion_tokens": 2}, "3 output ids, but completion_tokens is 2"),
            ({"output_token_logprobs": None}, "no output_token_logprobs"),
            ({"output_token_logprobs": [[-1.0, 7, None]]}, "1 logprobs do not belong to the 3 output ids"),
            ({"output_token_logprobs": [[-1.0, i, None] for i in (7, 8, 8)]}, "do not belong"),
            ({"output_token_logprobs": [[None, i, None] for i in (7, 8, 9)]}, "unreadable output_token_logprobs"),
            ({"output_token_logprobs": [[-math.inf, i, None] for i in (7, 8, 9)]}, "not finite"),
            ({"output_token_logprobs": [[math.nan, i, None] for i in (7, 8, 9)]}, "not finite"),
            ({"weight_versions": [{"version": "a", "start": 0, "end": 2}]}, "do not tile 3 tokens"),
            ({"weight_versions": [{"version": "a", "start": 1, "end": 3}]}, "do not tile"),
            ({"weight_versions": [{"version": "a"}]}, "unreadable weight_versions"),
            ({"weight_versions": [{"version": "a", "start": 0, "end": 9}]}, "do not tile"),
            ({"finish_reason": None}, "not a reply"),
            ({"finish_reason": {"type": "tired"}}, "not a reply"),
            ({"prompt_tokens": 2}, "the engine saw 2 prompt tokens of 3"),
        ],
    )
    def test_what_does_not_fit_together(self, meta: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ReplyError, match=complaint):
            read_reply(encoded(**meta), rid="r", prompt=3, max_new_tokens=10)

    @pytest.mark.parametrize("ids", [[-1], ["a"], [2**40], 5, None], ids=repr)
    def test_ids_that_are_none(self, ids: object) -> None:
        body = json.loads(encoded())
        body["output_ids"] = ids
        with pytest.raises(ReplyError, match="not a reply"):
            read_reply(json.dumps(body).encode(), rid="r", prompt=3, max_new_tokens=10)

    def test_more_than_was_asked_for(self) -> None:
        with pytest.raises(ReplyError, match="3 tokens were sampled where 2 were allowed"):
            read_reply(encoded(), rid="r", prompt=3, max_new_tokens=2)

    def test_an_abort_with_a_reason(self) -> None:
        reason = {"type": "abort", "message": "queue timeout", "status_code": 503, "err_type": "Timeout"}
        with pytest.raises(AbortError, match="queue timeout") as caught:
            read_reply(json.dumps(reply([], finish_reason=reason)).encode(), rid="r", prompt=3, max_new_tokens=10)
        assert caught.value.status == 503

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b'{"error": {"message": "too long"}}', "too long"),
            (b'{"error": "unknown field `max_tokens`"}', "unknown field `max_tokens`"),
            (
                b'{"object": "error", "message": "1 validation error:\\n  x\\n\\n  File \\"/srv/a.py\\", line 3"}',
                "1 validation error: x",
            ),
            (
                b'{"object": "error", "message": "The request queue is full.", "code": 503}',
                "The request queue is full.",
            ),
            (b'{"detail": "Not Found"}', "Not Found"),
            (b"<html>Bad\n Gateway</html>", "<html>Bad Gateway</html>"),
            (b"[1, 2]", "[1, 2]"),
            (b"", ""),
            (b"\xff", "\ufffd"),
        ],
    )
    def test_error_bodies(self, body: bytes, message: str) -> None:
        assert read_error(body) == message

    def test_long_error_bodies_are_cut(self) -> None:
        assert len(read_error(b"x" * 5000)) < 400

    @pytest.mark.parametrize(
        ("message", "limit"),
        [
            ("The input (9000 tokens) is longer than the model's context length (4096 tokens).", 4096),
            ("Requested token count exceeds the model's maximum context length of 4096 tokens. You ...", 4096),
            ("Input length (4090 tokens) exceeds the maximum allowed length (4090 tokens). Use ...", 4090),
            ("The context length is exceeded.", 0),
            ("temperature must be positive", None),
        ],
    )
    def test_context_limits(self, message: str, limit: int | None) -> None:
        assert context_limit(message) == limit


def test_a_lasting_outage_is_logged_once_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rollq_worker.engine.availability.SILENT_S", 0.0)
    engine = SGLangEngine(f"http://user:secret@127.0.0.1:{free_port()}")
    assert not engine.ready() and not engine.ready()
    engine.close()
    assert len(caplog.messages) == 1
    assert "takes no requests" in caplog.text and "127.0.0.1" in caplog.text
    assert "secret" not in caplog.text


def test_availability_tells_when_the_engine_may_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Availability("engine")
    assert state.up and not state.found() and state.outage_s == 0
    state.lost("full")
    state.lost("full")
    assert not state.up
    assert not state.found()
    state.lost("refused", gone=True)
    state.lost("full")
    assert state.found()
    assert state.up and 0 < state.outage_s == state.outage_s


def _until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.01)


def _raise_drained() -> None:
    raise Drained("stopping")


class TestWriting:
    def test_a_prompt_that_grows_is_written_once(self) -> None:
        prompts, ids = Prompts(2), array("I", range(10_000))
        assert prompts.write(ids, "a") == ",".join(map(str, range(10_000))).encode()
        ids.extend([7, 7])
        assert prompts.write(ids, "a") == ",".join(map(str, ids)).encode()
        assert prompts.write(ids, "a") == ",".join(map(str, ids)).encode()

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), max_size=4)), max_size=20))
    def test_whatever_was_sent_before(self, sent: list[tuple[str, list[int]]]) -> None:
        prompts = Prompts(2)
        for key, ids in sent:
            assert prompts.write(array("I", ids), key) == ",".join(map(str, ids)).encode()

    def test_few_are_kept(self) -> None:
        prompts = Prompts(2)
        for key in "abcde":
            prompts.write(array("I", [1]), key)
        assert list(prompts._sent) == ["d", "e"]
