"""`EngineClient` against a real SGLang server and the replay engine: what an episode sees of an
engine.
"""

import time
from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq.events import Finish
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.limits import ContextLimits
from rollq_worker.protocols import Generated
from tests.contract.background_requests import BackgroundRequests
from tests.contract.conftest import Server
from tests.sample_requests import sample_request
from tests.waiting import until


class Client:
    """An engine client and what it takes to call it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.engine = EngineClient(
            server.url,
            stop_ids=[server.tokenizer.added_tokens["<|im_end|>"]],
            vocab_size=server.tokenizer.vocab_size,
        )
        self.prompt = array("I", server.prompt())

    def generate(
        self, ids: "array[int] | None" = None, max_new_tokens: int = 2000, **sampling: Any
    ) -> Generated:
        prompt = self.prompt if ids is None else ids
        return self.engine.generate(
            sample_request(prompt, sampling=sampling, max_new_tokens=max_new_tokens)
        )


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(server)
    yield client
    client.engine.close()


@pytest.fixture
def slow_client(slow_server: Server) -> Iterator[Client]:
    client = Client(slow_server)
    yield client
    client.engine.close()


def assert_whole(got: Generated) -> None:
    assert len(got.logprobs) == len(got.ids)
    ends = [(span.start, span.end) for span in got.versions]
    assert not ends or (ends[0][0] == 0 and ends[-1][1] == len(got.ids))
    assert all(left[1] == right[0] for left, right in pairwise(ends))


def test_a_turn(client: Client) -> None:
    got = client.generate()
    assert got.finish is Finish.STOP
    assert got.ids[-1] in (
        client.server.tokenizer.added_tokens["<|im_end|>"],
        *client.server.tokenizer.eos_ids,
    )
    assert len(got.ids) > 1 and got.text
    assert got.versions[0].version == client.server.weight_version()
    assert_whole(got)
    assert client.engine.available and client.engine.ready()


def test_a_turn_that_was_cut_by_its_length_continues(client: Client) -> None:
    first = client.generate(max_new_tokens=2, temperature=0)
    assert (first.finish, len(first.ids)) == (Finish.LENGTH, 2)
    rest = client.generate(client.prompt + first.ids, temperature=0, max_new_tokens=3)
    whole = client.generate(max_new_tokens=5, temperature=0)
    assert first.ids + rest.ids == whole.ids


def test_the_jobs_own_stop_tokens_also_end_the_turn(client: Client) -> None:
    ids = client.generate(max_new_tokens=6, temperature=0).ids
    got = client.generate(max_new_tokens=6, temperature=0, stop_token_ids=[ids[2]])
    assert got.finish is Finish.STOP
    assert got.ids == ids[: ids.index(ids[2]) + 1]


def test_room_is_what_the_engine_accepts(client: Client) -> None:
    context = client.server.get("/server_info").json()["context_length"]
    assert client.engine.room(10) == context - 10
    assert client.engine.room(context - 7) == 7
    assert client.engine.room(context - 6) == client.engine.room(context + 6) == 0


def test_a_full_context_ends_the_turn_by_length(client: Client) -> None:
    context = client.server.get("/server_info").json()["context_length"]
    got = client.generate(array("I", [client.prompt[1]] * context))
    assert (got.finish, len(got.ids)) == (Finish.LENGTH, 0)


def test_an_unknown_context_is_learnt_from_the_refusal(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = client.server.get("/server_info").json()["context_length"]
    monkeypatch.setattr(client.engine._limits, "_ask", ContextLimits)  # as behind a router
    assert client.engine.room(1) > context
    got = client.generate(array("I", [client.prompt[1]] * (context - 1)), max_new_tokens=50)
    assert (got.finish, len(got.ids)) == (Finish.LENGTH, 0)
    assert client.engine.room(1) < context


def test_a_prompt_that_would_kill_a_server_is_not_sent(client: Client) -> None:
    for ids in (array("I"), array("I", [10_000_000])):
        with pytest.raises(JobFailure, match="run/group/0"):
            client.generate(ids)
    assert client.engine.ready()


def test_a_refused_request_fails_its_job(client: Client) -> None:
    with pytest.raises(JobFailure, match=r"run/group/0.*temperature must be a"):
        client.generate(temperature=-1)
    with pytest.raises(JobFailure, match=r"run/group/0.*unknown field `max_tokens`"):
        client.generate(max_tokens=5)


def test_aborted_in_mid_turn(slow_client: Client) -> None:
    with BackgroundRequests(slow_client.server) as running:
        reply: Future[Generated] = running.pool.submit(
            slow_client.generate, max_new_tokens=4000, ignore_eos=True
        )
        running.wait_for(1)
        while not reply.done():
            slow_client.engine.abort_running()
            time.sleep(0.02)
        got = reply.result()
    assert got.finish is Finish.ABORT
    assert len(got.ids) < 4000
    assert_whole(got)
    assert slow_client.engine.abort_running() == 0


def test_aborted_in_the_queue(slow_client: Client) -> None:
    with BackgroundRequests(slow_client.server) as running:
        running.fill()
        reply: Future[Generated] = running.pool.submit(slow_client.generate)
        running.wait_for(4, 1)
        slow_client.engine.abort_running()
        got = reply.result(60)
    assert (got.finish, len(got.ids), got.versions) == (Finish.ABORT, 0, ())


def test_a_full_queue_is_waited_for(slow_client: Client) -> None:
    checks = []
    with BackgroundRequests(slow_client.server) as running, ThreadPoolExecutor(1) as pool:
        running.fill(queued=4)
        reply = pool.submit(
            slow_client.engine.generate,
            sample_request(
                slow_client.prompt,
                max_new_tokens=3,
                check=lambda: checks.append(slow_client.engine.available),
            ),
        )
        until(lambda: False in checks or reply.done())
        assert not reply.done()
        slow_client.server.reset()
        assert reply.result(60).finish in (Finish.LENGTH, Finish.STOP)
    assert slow_client.engine.available
    assert slow_client.engine._shared.clock.seconds > 0


def test_new_weights_in_mid_turn(slow_client: Client) -> None:
    slow_client.server.close_gate()
    with BackgroundRequests(slow_client.server) as running:
        reply: Future[Generated] = running.pool.submit(
            slow_client.generate, max_new_tokens=60, ignore_eos=True
        )
        running.wait_for(1)
        slow_client.server.post("/pause_generation", {"mode": "in_place"})
        assert not slow_client.engine.ready()
        body = {"new_version": "next", "abort_all_requests": False}
        slow_client.server.post("/update_weight_version", body)
        slow_client.server.post("/continue_generation", {})
        slow_client.server.open_gate()
        got = reply.result(60)
    assert got.finish is Finish.LENGTH
    assert got.versions[-1].version == "next"
    assert_whole(got)
