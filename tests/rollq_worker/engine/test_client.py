"""The SGLang client against engines that misbehave; tests/contract has a real one."""

import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollq.errors import EngineFailure, JobFailure
from rollq.events import Finish, VersionSpan
from rollq_worker.engine import limits
from rollq_worker.engine.client import RETRIES, EngineClient, Shared
from rollq_worker.engine.sglang import server as control
from rollq_worker.failures import Drained
from rollq_worker.protocols import Generated
from tests.conftest import free_port
from tests.rollq_worker.engine.clients import (
    KEY,
    Connect,
    HeldReply,
    generate,
    is_waiting,
    one_text,
    port,
    raise_drained,
)
from tests.rollq_worker.engine.engine_servers import Answer, good_reply, reply, scripted_engine
from tests.waiting import until

QUEUE_FULL = (503, {"object": "error", "message": "The request queue is full.", "code": 503})


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "QUESTION_TIMEOUT_S", 60.0)
    monkeypatch.setattr(control, "ABORT_TIMEOUT_S", 60.0)


class TestRequest:
    @pytest.mark.parametrize(("least", "sent"), [(3, 3), (20, 10)])
    def test_it_never_asks_for_more_tokens_than_it_allows(
        self, connect: Connect, least: int, sent: int
    ) -> None:
        with scripted_engine() as engine:
            generate(connect(engine), min_new_tokens=least)  # of at most 10
        assert engine.bodies()[0]["sampling_params"]["min_new_tokens"] == sent

    def test_it_carries_ids_and_everything_that_shapes_the_sampling(self, connect: Connect) -> None:
        with scripted_engine() as engine:
            generated = generate(
                connect(engine, stop_ids=[9, 10]), temperature=0.7, stop_token_ids=[10, 11]
            )
            path, body, headers = engine.requests[-1]
        assert path == "/generate"
        assert body.pop("rid").startswith(f"{KEY}/")  # the engine's log names the job
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
        assert headers["X-SMG-Routing-Key"] == "run/group"  # siblings share a prefix
        assert "Authorization" not in headers
        assert generated == Generated(
            ids=array("I", [7, 8, 9]),
            logprobs=array("f", [-0.5, -1.5, -2.5]),
            versions=(VersionSpan("v1", 0, 3),),
            finish=Finish.STOP,
            text="said",
            cached_tokens=1,
        )

    def test_what_a_router_drops_in_silence_fails_the_job(self, connect: Connect) -> None:
        lost: dict[str, Any] = {"logit_bias": {"5": 1.0}, "stop_regex": "a+"}
        then = lambda body: reply([7], prompt_tokens=len(body["input_ids"]), id=body["rid"])  # noqa: E731
        with (
            scripted_engine(then=then) as engine,
            pytest.raises(JobFailure, match="drop logit_bias and stop_regex"),
        ):
            generate(connect(engine), **lost)
        assert [body["sampling_params"]["max_new_tokens"] for body in engine.bodies()] == [1]
        with scripted_engine(server_info=(200, {"context_length": 1000})) as engine:
            generate(connect(engine), **lost)
        assert engine.bodies()[0]["sampling_params"].items() >= lost.items()

    @pytest.mark.parametrize("status", [401, 404])
    def test_a_wrong_key_or_address_is_not_taken_for_a_router(
        self, connect: Connect, status: int
    ) -> None:
        wrong = (status, {})
        with scripted_engine(then=wrong, server_info=wrong) as engine:
            client = connect(engine)
            with pytest.raises(Drained):
                generate(
                    client,
                    logit_bias={"5": 1.0},
                    check=lambda: None if client.available else raise_drained(),
                )

    @pytest.mark.parametrize("sampling", [{}, {"logit_bias": {"5": 1.0}}])
    @pytest.mark.parametrize("status", [401, 404])
    def test_what_another_server_told_is_forgotten(
        self, connect: Connect, status: int, sampling: dict[str, Any]
    ) -> None:
        def up(body: dict[str, Any]) -> Answer:
            engine.paths["/server_info"] = (200, {"context_length": 1000})
            return status, {}

        def then(body: dict[str, Any]) -> dict[str, Any]:
            ids = [7, 8, 9][: body["sampling_params"]["max_new_tokens"]]
            return reply(ids, prompt_tokens=len(body["input_ids"]), id=body["rid"])

        with scripted_engine(up, then=then, server_info=(status, {})) as engine:
            client = connect(engine)
            assert client.room(10) > 1000
            assert len(generate(client, **sampling).ids) == 3
            assert (
                client.room(10) == 990
                and engine.bodies()[-1]["sampling_params"]["max_new_tokens"] == 10
            )

    def test_so_is_what_it_told_at_the_start(self, connect: Connect) -> None:
        wrong = (401, {})
        with scripted_engine(then=wrong, tokenize=wrong) as engine:
            client = connect(engine, proof=one_text(1, 2, 3))
            assert client.ready() and "401" in client.probe()
            engine.paths["/tokenize"] = (200, {"tokens": [4]})
            assert not client.ready() and client.vocabulary.differs()

    @pytest.mark.parametrize("ids", [[], [4, 100], [2**31]], ids=repr)
    def test_what_would_kill_the_server_is_not_sent(self, connect: Connect, ids: list[int]) -> None:
        with scripted_engine() as engine:
            with pytest.raises(JobFailure, match=KEY):
                generate(connect(engine, vocab_size=100), ids=ids)
            assert engine.bodies() == []

    def test_ids_that_the_engine_sampled_are_valid_whatever_the_tokenizer_says(
        self, connect: Connect
    ) -> None:
        with scripted_engine(lambda body: reply([120], prompt_tokens=3)) as engine:
            shared = Shared(vocab_size=100, engines=1)
            client = connect(engine, share=shared)
            generate(client)
            generate(client, ids=[5, 120])
            with pytest.raises(JobFailure):
                generate(client, ids=[121])
            shared.vocabulary.admit([121])
            generate(client, ids=[121])

    def test_ids_outside_every_vocabulary_are_a_failure_of_the_engine_and_admit_nothing(
        self, connect: Connect
    ) -> None:
        garbage = (200, reply([7, 4_000_000_000, 9], prompt_tokens=3))
        with scripted_engine(*[garbage] * (RETRIES + 1)) as engine:
            shared = Shared(vocab_size=100, engines=1)
            client = connect(engine, share=shared)
            with pytest.raises(EngineFailure, match="token id 4000000000 was sampled"):
                generate(client)
            shared.vocabulary.admit([4_000_000_000])
            with pytest.raises(JobFailure, match="outside the model's vocabulary"):
                generate(client, ids=[101])
            assert len(engine.bodies()) == RETRIES + 1


class TestUnavailable:
    """An engine that is away, full or not ours costs nothing."""

    @pytest.mark.parametrize(
        "answer",
        [
            QUEUE_FULL,
            (429, {"detail": "slow down"}),
            (401, {"error": "Unauthorized"}),
            (404, {"detail": "Not Found"}),
            (307, b""),
            lambda body: reply(
                [],
                finish_reason={
                    "type": "abort",
                    "message": "full",
                    "status_code": 503,
                    "err_type": "x",
                },
            ),
        ],
    )
    def test_it_is_asked_again_until_it_takes_the_request(
        self, connect: Connect, answer: Answer
    ) -> None:
        checks: list[bool] = []
        with scripted_engine(*[answer] * (RETRIES + 3)) as engine:
            client = connect(engine)
            generated = generate(client, check=lambda: checks.append(client.available))
            rids = {body["rid"] for body in engine.bodies()}
        assert generated.finish is Finish.STOP
        assert False in checks and checks[0]
        assert client.available and client._shared.clock.seconds > 0
        assert len(rids) == RETRIES + 4

    def test_a_refusal_that_blames_the_job_ends_an_outage(self, connect: Connect) -> None:
        """Else deadlines would stand still while an engine answers."""
        full, wrong = (
            (503, {"error": {"message": "The request queue is full."}}),
            (400, {"error": {"message": "no"}}),
        )
        with scripted_engine(full, then=wrong) as engine:
            client = connect(engine)
            for _ in range(2):
                with pytest.raises(JobFailure):
                    generate(client)
            before = client._shared.clock.seconds
            time.sleep(0.05)
            assert client._shared.clock.seconds == before > 0

    def test_an_engine_that_is_not_there_yet(self, client: EngineClient) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, client)
            until(lambda: not client.available)
            assert not client.ready()
            with scripted_engine(port=port(client), ready=(200, {})) as engine:
                assert waiting.result(60).finish is Finish.STOP
                assert client.available and client.ready()
                assert len(engine.bodies()) == 1

    def test_nothing_is_sent_to_an_engine_with_another_tokenizer(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "RETRY_S", 0.0)
        checks = 0

        def check() -> None:
            nonlocal checks
            checks += 1
            if checks > 3:
                engine.paths["/tokenize"] = (200, {"tokens": [5, 6, 7]})
            if checks > 1000:
                raise Drained("it waits for ever")

        with scripted_engine(ready=(200, {}), tokenize=(200, {"tokens": [8]})) as engine:
            client = connect(engine, proof=one_text(5, 6, 7))
            assert not client.ready() and client.vocabulary.differs()
            generated = generate(client, check=check)
            assert list(generated.ids) == [7, 8, 9] and checks > 3
            assert (
                len(engine.bodies()) == 1 and client.available and client._shared.clock.seconds > 0
            )

    def test_a_lasting_outage_is_logged_once_and_without_secrets(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("rollq_worker.engine.availability.LOG_AFTER_S", 0.0)
        client = connect(f"http://user:secret@127.0.0.1:{free_port()}")
        assert not client.ready() and not client.ready()
        assert len(caplog.messages) == 1
        assert "takes no requests" in caplog.text and "127.0.0.1" in caplog.text
        assert "secret" not in caplog.text


class TestFailing:
    """A request that fails is sent again, a bounded number of times."""

    @pytest.mark.parametrize(
        "answer",
        [
            "reset",
            (200, b'{"text": "half a rep'),
            (200, {"unexpected": 1}),
            (500, b"Internal Server Error"),
            (400, {"error": {"message": "Duplicate request ID detected: x"}}),
            lambda body: reply(
                [],
                finish_reason={
                    "type": "abort",
                    "message": "CUDA",
                    "status_code": 500,
                    "err_type": "Internal",
                },
            ),
        ],
        ids=lambda answer: "abort" if callable(answer) else repr(answer),
    )
    def test_it_is_retried_and_then_an_engine_failure(
        self, connect: Connect, answer: Answer
    ) -> None:
        with scripted_engine(*[answer] * RETRIES) as engine:
            assert generate(connect(engine)).finish is Finish.STOP
            engine.answers = [answer] * (RETRIES + 1)
            with pytest.raises(EngineFailure, match=rf"{KEY}: .* {RETRIES + 1} times in a row"):
                generate(connect(engine))
            bodies = engine.bodies()
        assert len(bodies) == 2 * (RETRIES + 1)
        assert len({body["rid"] for body in bodies}) == len(bodies)

    def test_after_a_timeout_the_request_is_aborted(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rollq_worker.engine.exchange.http.READ_TIMEOUT_S", 1.0)
        over = threading.Event()

        def silent(body: dict[str, Any]) -> None:
            over.wait(60)
            raise ConnectionAbortedError

        with scripted_engine(silent, abort_request=(200, b"")) as engine:
            client = connect(engine)
            assert generate(client).finish is Finish.STOP
            assert engine.bodies("/abort_request") == [{"rid": engine.bodies()[0]["rid"]}]
            over.set()

    def test_it_is_not_sent_again_before_the_engine_is_ready(self, connect: Connect) -> None:
        with scripted_engine("reset", ready=(503, {})) as engine, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, client := connect(engine))
            until(lambda: len(engine.bodies("/ready")) >= RETRIES + 2)
            assert not client.available
            assert len(engine.bodies()) == 1
            engine.paths["/ready"] = (200, {})
            assert waiting.result(60).finish is Finish.STOP

    def test_a_refused_request_is_never_sent_twice(self, connect: Connect) -> None:
        with scripted_engine(
            (400, {"error": {"message": "top_p must be in (0, 1], got 3."}})
        ) as engine:
            with pytest.raises(JobFailure, match=rf"{KEY}: the engine answered 400: top_p must be"):
                generate(connect(engine))
            assert len(engine.bodies()) == 1

    def test_an_engine_that_comes_back_with_other_weights_and_limits(
        self, client: EngineClient
    ) -> None:
        def dies(body: dict[str, Any]) -> dict[str, Any]:
            engine.closed = (
                True  # set here, so that the next request gets no answer, however soon it comes
            )
            raise ConnectionAbortedError  # the connection ends without an answer

        def other(body: dict[str, Any]) -> dict[str, Any]:
            return good_reply(
                body, weight_version="v2", weight_versions=[{"version": "v2", "start": 0, "end": 3}]
            )

        info = {"context_length": 1000, "max_req_input_len": 994}
        with ThreadPoolExecutor(1) as pool:
            with scripted_engine(
                dies, port=port(client), ready=(200, {}), server_info=(200, info)
            ) as engine:
                assert client.room(10) == 990
                waiting = pool.submit(generate, client)
                until(lambda: engine.closed)
            until(lambda: not client.available)
            info = {"context_length": 500, "max_req_input_len": 494}
            with scripted_engine(
                other, port=port(client), ready=(200, {}), server_info=(200, info)
            ):
                generated = waiting.result(60)
                assert [span.version for span in generated.versions] == ["v2"]
                assert client.room(10) == 490


class TestAborting:
    def test_all_running_requests_are_aborted_by_id(self, connect: Connect) -> None:
        held = HeldReply()
        with (
            scripted_engine(held, held, abort_request=(200, b"")) as engine,
            ThreadPoolExecutor(2) as pool,
        ):
            client = connect(engine)
            assert client.abort_running() == 0
            waiting = [pool.submit(generate, client) for _ in range(2)]
            until(lambda: len(engine.bodies()) == 2)
            assert client.abort_running() == 2
            aborted = {body["rid"] for body in engine.bodies("/abort_request")}
            assert aborted == {body["rid"] for body in engine.bodies()}
            held.release.set()
            assert all(one.result().finish is Finish.STOP for one in waiting)
            assert client.abort_running() == 0

    def test_an_engine_that_is_away_aborts_nothing(self, client: EngineClient) -> None:
        client._in_flight.add("lost", KEY)
        assert client.abort_running() == 0


class TestCutting:
    def test_a_wait_ends_and_the_attempt_is_asked_whether_it_must_stop(
        self, client: EngineClient
    ) -> None:
        stop, held = threading.Event(), HeldReply()

        def check() -> None:
            if stop.is_set():
                raise Drained("stopping")

        with (
            scripted_engine(held, held, port=port(client), abort_request=(200, b"")) as engine,
            ThreadPoolExecutor(2) as pool,
        ):
            mine = pool.submit(generate, client, "r/g/0", check=check)
            other = pool.submit(generate, client, "r/g/1", check=check)
            until(lambda: is_waiting(client, engine, 2))
            assert client.cut("r/g/7") == 0
            stop.set()
            assert client.cut("r/g/0") == 1
            with pytest.raises(Drained):
                mine.result(60)
            assert not other.done()
            (cut,) = (body["rid"] for body in engine.bodies("/abort_request"))
            assert cut in [body["rid"] for body in engine.bodies()]
            stop.clear()
            held.release.set()
            assert other.result(60).finish is Finish.STOP
            assert client.cut() == 0

    def test_a_request_whose_attempt_goes_on_is_sent_again(self, client: EngineClient) -> None:
        held = HeldReply()
        with scripted_engine(held, port=port(client)) as engine, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(generate, client)
            until(lambda: is_waiting(client, engine))
            assert client.cut() == 1
            assert waiting.result(60).finish is Finish.STOP
            assert len(engine.bodies()) == 2
            held.release.set()
