"""The example's sampler, through rollq's own engine client and fleet: it behaves as an SGLang
server does.
"""

import time
import urllib.request
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollq.errors import JobFailure, SyncError
from rollq.events import Finish
from rollq.weights import Fleet
from rollq_worker.engine.client import EngineClient
from rollq_worker.protocols import Generated
from tests.examples.learn_shop.scoring import logprobs
from tests.sample_requests import sample_request

PROMPT = array("I", range(300, 420))


def sample(
    client: EngineClient, prompt: array = PROMPT, tokens: int = 20, seed: int | None = None
) -> Generated:
    sampling = {"temperature": 1.0} | ({} if seed is None else {"sampling_seed": seed})
    return client.generate(sample_request(prompt, sampling=sampling, max_new_tokens=tokens))


def test_logprobs_are_those_of_the_model(client: EngineClient, models: list[str]) -> None:
    prompts = [PROMPT, PROMPT[:50], PROMPT + array("I", [7, 8, 9]), array("I", [5])] * 3
    with ThreadPoolExecutor(len(prompts)) as pool:
        replies = list(pool.map(lambda prompt: sample(client, prompt), prompts))
    for prompt, reply in zip(prompts, replies, strict=True):
        assert list(reply.logprobs) == pytest.approx(
            logprobs(models[0], prompt, reply.ids), abs=1e-4
        )


def test_a_prompt_that_was_seen_is_not_read_again(client: EngineClient, models: list[str]) -> None:
    first = sample(client)
    longer = PROMPT + first.ids + array("I", [11, 12])
    reply = sample(client, longer)
    assert reply.cached_tokens >= len(PROMPT)
    assert list(reply.logprobs) == pytest.approx(logprobs(models[0], longer, reply.ids), abs=1e-4)


def test_a_seed_gives_the_same_tokens(client: EngineClient) -> None:
    assert sample(client, seed=3).ids == sample(client, seed=3).ids != sample(client, seed=4).ids


def test_a_stop_token_is_the_last_one(client: EngineClient) -> None:
    free = sample(client, seed=5)
    stop = {"temperature": 1.0, "sampling_seed": 5, "stop_token_ids": [free.ids[3]]}
    cut = client.generate(sample_request(PROMPT, sampling=stop, max_new_tokens=20))
    assert (
        cut.finish is Finish.STOP
        and cut.ids == free.ids[: len(cut.ids)]
        and cut.ids[-1] == free.ids[3]
    )


def test_what_it_cannot_do_is_refused(client: EngineClient) -> None:
    with pytest.raises(JobFailure, match="top_p"):
        client.generate(sample_request(PROMPT, sampling={"top_p": 0.5}))
    with pytest.raises(JobFailure, match="vocabulary"):
        sample(client, array("I", [10**6]))


def test_a_request_can_be_aborted_in_a_pause(client: EngineClient, url: str) -> None:
    def post(path: str, body: bytes) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{url}{path}", body, method="POST")).close()

    post("/pause_generation", b'{"mode": "retract"}')
    assert not client.ready()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sample, client)
        while not waiting.done():
            client.abort_running()
            time.sleep(0.02)
    assert waiting.result().finish is Finish.ABORT and not waiting.result().ids
    post("/continue_generation", b"{}")
    assert client.ready() and sample(client).finish is Finish.LENGTH


def test_the_fleet_brings_new_weights(client: EngineClient, url: str, models: list[str]) -> None:
    fleet = Fleet([url])
    sample(client)  # so that there are keys and values of the old weights
    for version, model in (("1", models[1]), ("0", models[0])):
        [update] = fleet.update(model, version)
        assert update.loaded and fleet.versions() == {url: version}
        reply = sample(client)
        assert list(reply.logprobs) == pytest.approx(logprobs(model, PROMPT, reply.ids), abs=1e-4)
        assert [span.version for span in reply.versions] == [version]


def test_a_folder_without_weights_leaves_the_sampler_paused(
    client: EngineClient, url: str, models: list[str]
) -> None:
    fleet = Fleet([url])
    with pytest.raises(SyncError):
        fleet.update("/nowhere", "7")
    assert not client.ready()
    fleet.update(models[0], "0")
    assert client.ready()
