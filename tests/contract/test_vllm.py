"""The real vLLM server: what an episode sees of it. `make test-vllm`.

It is ROLLQ_TEST_VLLM_URL with the tokenizer ROLLQ_TEST_TOKENIZER, or is started from the folder
vllm_cpu beside sglang_cpu (conftest.py).
"""

import json
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from rollq.errors import JobFailure, SettingsError
from rollq.events import Finish
from rollq.job import Budget, Job
from rollq.sampling import PARAMETERS
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.vllm.server import (
    RAW,
    REMEDIES,
    SPECULATIVE,
    TOKENS_ONLY,
    VllmServer,
)
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.environments import domain
from rollq_worker.episode import loop
from rollq_worker.fakes import FakeJournal, FakeUser
from rollq_worker.process.startup_checks import check_engine
from rollq_worker.protocols import Generated, SampleRequest
from rollq_worker.remote.http_client import NoResponse
from rollq_worker.tokens.renderer import ChatRenderer
from tests.contract.conftest import Server, vllm, vllm_installed
from tests.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
VALUES: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.01,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
    "min_new_tokens": 3,
    "stop": ["a", "b"],
    "stop_token_ids": [5],
    "json_schema": '{"type": "object"}',
    "regex": "[0-9]{3}",
    "ebnf": 'root ::= "yes" | "no"',
    "ignore_eos": True,
    "logit_bias": {"17": 5.0},
    "sampling_seed": 3,
}


@pytest.fixture
def client(vllm_server: Server) -> Iterator[EngineClient]:
    tokenizer = vllm_server.tokenizer
    engine = EngineClient(
        vllm_server.url,
        stop_ids=[tokenizer.added_tokens["<|im_end|>"]],
        vocab_size=tokenizer.vocab_size,
        proof=VocabularyProof(tokenizer),
    )
    yield engine
    engine.abort_running()
    engine.close()


def request(server: Server, tokens: int = 30, **sampling: Any) -> SampleRequest:
    ids = server.tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    return SampleRequest(
        ids=ids, sampling=sampling, max_new_tokens=tokens, key="r/g/0", check=lambda: None
    )


class Running:
    """A generation in a thread."""

    def __init__(self, client: EngineClient, asked: SampleRequest) -> None:
        self.got: list[Generated] = []
        self.thread = threading.Thread(target=lambda: self.got.append(client.generate(asked)))
        self.thread.start()
        until(lambda: (load := client.server.load()) is not None and load.running == 1, 20)
        time.sleep(0.5)  # for some tokens

    def end(self) -> Generated:
        self.thread.join(60)
        [generated] = self.got
        return generated


def test_it_is_found_out_and_ready(client: EngineClient, vllm_server: Server) -> None:
    assert (client.why_not_ready(), client.probe()) == ("", "")
    assert isinstance(client.server, VllmServer)
    assert client.room(100) == 32768 - 100
    assert client.server._logprobs_follow_sampling()  # type: ignore[attr-defined]
    assert client.vocabulary.shows_ids and not client.vocabulary.difference


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_each_parameter_is_carried_out_or_refused_by_name(
    client: EngineClient, vllm_server: Server, name: str
) -> None:
    if name == "stop_regex":
        with pytest.raises(JobFailure, match="stop_regex is SGLang's alone"):
            client.generate(request(vllm_server, stop_regex="a"))
        return
    generated = client.generate(request(vllm_server, **{name: VALUES[name]}))
    assert len(generated.ids) == len(generated.logprobs) > 0
    assert generated.versions[-1].end == len(generated.ids)
    text = vllm_server.tokenizer.decode(generated.ids)
    if name == "regex":
        assert text[:3].isdigit()
    if name == "ebnf":
        assert text.startswith(("yes", "no"))
    if name == "ignore_eos":
        assert (len(generated.ids), generated.finish) == (30, Finish.LENGTH)
    if name == "sampling_seed":
        again = client.generate(request(vllm_server, sampling_seed=3))
        assert again.ids == generated.ids


def test_a_turn_ends_with_a_token_that_ends_turns(
    client: EngineClient, vllm_server: Server
) -> None:
    end = vllm_server.tokenizer.added_tokens["<|im_end|>"]
    for _ in range(5):
        generated = client.generate(request(vllm_server, 400))
        if generated.finish is Finish.STOP:
            assert generated.ids[-1] == end and end not in generated.ids[:-1]


def test_an_aborted_turn_keeps_its_tokens(client: EngineClient, vllm_server: Server) -> None:
    running = Running(client, request(vllm_server, 20_000, ignore_eos=True))
    assert client.abort_running() == 1
    generated = running.end()
    assert generated.finish is Finish.ABORT and 0 < len(generated.ids) < 20_000


def test_new_weights_in_mid_reply_name_each_token(
    client: EngineClient, vllm_server: Server
) -> None:
    before = client.server.weight_version()
    running = Running(client, request(vllm_server, 200, ignore_eos=True))
    post = vllm_server.post
    post("/pause?mode=keep")
    assert client.why_not_ready() == "it is paused" and client.paused and client.server.is_paused()
    post("/update_weight_version", {"new_version": "next"})
    post("/resume")
    generated = running.end()
    assert [span.version for span in generated.versions] == [before, "next"]
    assert (len(generated.ids), generated.finish) == (200, Finish.LENGTH)
    post("/update_weight_version", {"new_version": before})


def test_a_prompt_that_fills_the_context_is_not_sent(
    client: EngineClient, vllm_server: Server
) -> None:
    asked = request(vllm_server)
    asked.ids.extend(array("I", [5]) * 32768)
    generated = client.generate(asked)
    assert (len(generated.ids), generated.finish) == (0, Finish.LENGTH)


def test_ids_that_it_does_not_have_and_its_own_bounds(
    client: EngineClient, vllm_server: Server
) -> None:
    asked = request(vllm_server)
    asked.ids.append(vllm_server.tokenizer.vocab_size + 10_000)
    with pytest.raises(JobFailure, match="outside the model's vocabulary"):
        client.generate(asked)


def test_an_episode_is_played(client: EngineClient, vllm_server: Server) -> None:
    budget = Budget(max_turns=3, max_new_tokens=40)
    job = Job(run="r", group="g", env="shop", task=0, budget=budget)
    environment = domain("shop").open("train", 0, {})
    user = FakeUser(("hello", "go on", "more"))
    played = loop.play(
        job,
        engine=client,
        renderer=ChatRenderer(vllm_server.tokenizer),
        environment=environment,
        user=user,
        journal=FakeJournal(),
    )
    assert played.sampled_tokens > 0 and played.turns >= 1


class Waited(Exception):
    """A request waited for the engine, and nobody was blamed."""


def waits(engine: EngineClient, server: Server) -> None:
    until_s = time.monotonic() + 3

    def check() -> None:
        if time.monotonic() > until_s:
            raise Waited

    with pytest.raises(Waited):
        engine.generate(replace(request(server), check=check))


DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "why", "proved"),
    [
        (["--logprobs-mode", "raw_logprobs"], RAW, RAW),
        (["--no-enable-scale-out"], REMEDIES[403], REMEDIES[403]),
        (["--api-key", "secret"], REMEDIES[401], REMEDIES[401]),
        (["--tokens-only"], TOKENS_ONLY, "--tokens-only server"),
        (
            ["--speculative-config", json.dumps(DRAFTS)],
            SPECULATIVE,
            "not yet supported with speculative decoding",
        ),
    ],
)
def test_a_server_of_the_wrong_flags_is_named_and_costs_a_job_nothing(
    tmp_path: Path, flags: list[str], why: str, proved: str
) -> None:
    with vllm(tmp_path / "log", *flags) as server:
        engine = EngineClient(server.url, proof=VocabularyProof(server.tokenizer))
        assert why in (engine.why_not_ready() or engine.probe())
        waits(engine, server)
        try:  # as without development mode
            seen = "" if engine.server._logprobs_follow_sampling() else RAW  # type: ignore[attr-defined]
        except NoResponse as e:
            seen = str(e)
        assert proved in seen
        engine.close()


@pytest.mark.slow
def test_another_tokenizer_another_name_and_a_small_context(tmp_path: Path) -> None:
    """The cache holds a whole context: else vLLM does not start."""
    _, model = vllm_installed()
    other = tmp_path / "other"
    other.mkdir()
    for file in (*model.glob("*.json"), *model.glob("*.jinja")):
        (other / file.name).write_bytes(file.read_bytes())
    spec = json.loads((other / "tokenizer.json").read_text())
    vocabulary = spec["model"]["vocab"]
    one, two = [*vocabulary][1000:1002]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(spec))
    flags = ["--tokenizer", str(other), "--served-model-name", "else", "--max-model-len", "512"]
    with vllm(tmp_path / "log", *flags) as server:
        engine = EngineClient(server.url, proof=VocabularyProof(server.tokenizer))
        with pytest.raises(SettingsError, match=r"gives other ids than MINE .*: give --tokenizer"):
            check_engine(engine, "MINE")
        waits(engine, server)
        engine.close()
        engine = EngineClient(server.url)  # its name and its context do not matter
        for length, sampled in ((509, 3), (511, 1), (512, 0), (600, 0)):
            prompt = replace(request(server, ignore_eos=True), ids=array("I", [5] * length))
            generated = engine.generate(prompt)
            assert (len(generated.ids), generated.finish) == (sampled, Finish.LENGTH)
        engine.close()


def test_the_server_lives_after_it_all(vllm_server: Server) -> None:
    assert requests.get(vllm_server.url + "/health", timeout=10).status_code == 200
