"""Routed experts of a real SGLang server with a tiny mixture of experts on a CPU."""

import base64
import subprocess
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollq.errors import EngineFailure
from rollq.events import Finish
from rollq.job import Budget, Job
from rollq.training.arrays import array_of
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ExpertShape
from rollq.wire.routed_experts import routed_experts
from rollq_worker.engine.client import EngineClient
from rollq_worker.environments import domain
from rollq_worker.episode.loop import play
from rollq_worker.fakes import FakeJournal
from rollq_worker.protocols import Routing
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import checked_renderer
from rollq_worker.users import user_factory
from tests.contract.conftest import (
    Server,
    installed,
    sglang,
    sglang_scripts,
    wrapped,
)
from tests.sample_requests import sample_request
from tests.waiting import until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
ASKED = {"layers": 3, "top_k": 2, "experts": 8}
"""The shape of tiny_moe_model.py."""
SHAPE = ExpertShape(**ASKED)
FLAG = "--enable-return-routed-experts"


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, scripts = tmp_path_factory.mktemp("sglang_moe"), sglang_scripts()
    venv, text_model = installed(scripts)
    subprocess.run(
        [venv / "bin/python", HERE / "tiny_moe_model.py", text_model, folder / "model"], check=True
    )
    serving = wrapped(venv, folder)
    with sglang(scripts, serving, folder / "model", folder / "log", FLAG) as server:
        yield server


@dataclass
class Client:
    server: Server
    engine: EngineClient

    def generate(self, ids: "array[int]", start: int, most: int = 8, **sampling: Any) -> Any:
        routing = Routing(start=start, shape=SHAPE)
        return self.engine.generate(
            sample_request(ids, sampling=sampling, max_new_tokens=most, routing=routing)
        )

    def rows(self, ids: "array[int]", start: int = 0) -> list[list[list[int]]]:
        """The rows of all these tokens from there on, in a request that samples one more."""
        got = self.generate(ids, start, 1)
        rows: list[list[list[int]]] = array_of(got.routed_experts).tolist()
        return rows


@pytest.fixture
def client(moe: Server) -> Iterator[Client]:
    engine = EngineClient(moe.url, vocab_size=moe.tokenizer.vocab_size)
    yield Client(moe, engine)
    engine.close()


def test_a_reply_has_a_row_for_each_token_but_the_last(client: Client) -> None:
    prompt = array("I", client.server.prompt())
    got = client.generate(prompt, 0)
    assert got.routed_experts.shape == (len(prompt) + len(got.ids) - 1, 3, 2)
    rows = array_of(got.routed_experts)
    assert (rows[..., 0] != rows[..., 1]).all()  # two experts of a layer differ
    assert len({row.tobytes() for row in rows}) > 4  # and tokens differ among themselves


def test_the_next_turn_brings_only_what_is_new(client: Client) -> None:
    prompt = array("I", client.server.prompt("What do you sell?"))
    first = client.generate(prompt, 0)
    longer = prompt + first.ids + array("I", client.server.tokenizer.encode("\nGo on."))
    read = len(prompt) + len(first.ids) - 1
    second = client.generate(longer, read)
    assert second.routed_experts.shape[0] == len(longer) + len(second.ids) - 1 - read
    whole = array_of(first.routed_experts).tolist() + array_of(second.routed_experts).tolist()
    assert whole == client.rows(longer + second.ids)[: len(whole)]  # as the engine's cache has them


def test_the_start_is_checked(client: Client) -> None:
    ids = client.server.prompt()
    for start, said in (
        (len(ids) + 1, "is higher than the number of input tokens"),
        (-1, "is lower than 0"),
    ):
        body = {"input_ids": ids, "return_routed_experts": True, "routed_experts_start_len": start}
        answer = client.server.post("/generate", body)
        assert answer.status_code == 400 and said in answer.text


def test_without_being_asked_a_server_reports_none(client: Client) -> None:
    assert "routed_experts" not in client.server.generate(client.server.prompt())["meta_info"]
    meta = client.server.generate(client.server.prompt(), return_routed_experts=True)["meta_info"]
    assert len(base64.b64decode(meta["routed_experts"])) % (3 * 2 * 4) == 0


def test_without_the_flag_the_engine_is_to_blame(sglang_server: Server) -> None:
    engine = EngineClient(sglang_server.url, vocab_size=sglang_server.tokenizer.vocab_size)
    try:
        with pytest.raises(EngineFailure, match=FLAG):
            Client(sglang_server, engine).generate(array("I", sglang_server.prompt()), 0)
    finally:
        engine.close()


def test_an_aborted_reply_has_the_rows_of_what_it_has(moe: Server) -> None:
    engine = EngineClient(moe.url, vocab_size=moe.tokenizer.vocab_size)
    client, prompt, found = Client(moe, engine), array("I", moe.prompt("Count.")), []
    options = {"ignore_eos": True, "min_new_tokens": 4000}
    thread = threading.Thread(
        target=lambda: found.append(client.generate(prompt, 0, 4000, **options))
    )
    thread.start()
    until(lambda: moe.load()[0] == 1)
    until(lambda: engine.abort_running() > 0)
    thread.join(60)
    engine.close()
    [got] = found
    assert got.finish is Finish.ABORT
    if len(got.ids):
        assert got.routed_experts.shape[0] == len(prompt) + len(got.ids) - 1


def play_shop(client: Client, **changes: Any) -> Trajectory:
    budget = Budget(max_turns=4, max_new_tokens=48)
    [end] = client.server.tokenizer.encode("<|im_end|>")
    ends = {"logit_bias": {str(end): 10.0}}  # a random model would hardly ever end a turn by itself
    job = Job(
        run="r",
        group="g",
        env="shop",
        task=0,
        budget=budget,
        sampling=ends,
        routed_experts=ASKED,
        **changes,
    )
    shop = domain(job.env)
    environment = shop.open(job.split, job.task, {})
    renderer: ChatRenderer = checked_renderer(client.server.tokenizer, environment.tools)
    user = user_factory(
        job.user, shop.task(job.split, job.task), seed=0, endpoints={}, check=lambda: None
    )
    engine = EngineClient(
        client.server.url, stop_ids=renderer.stop_ids, vocab_size=renderer.vocab_size
    )
    try:
        return play(
            job,
            engine=engine,
            renderer=renderer,
            environment=environment,
            user=user,
            journal=FakeJournal(),
        )
    finally:
        engine.close()


def test_the_rows_of_an_episode_are_those_of_its_tokens(client: Client) -> None:
    """Also by a server that has forgotten them and reads the whole episode at once."""
    trajectory = play_shop(client)
    rows = array_of(routed_experts(trajectory))
    assert trajectory.turns > 1
    assert rows.shape == (len(trajectory.tokens), 3, 2)
    last = trajectory.mask.rindex(1)  # the last token that was sampled was never read
    assert client.rows(trajectory.tokens[:last]) == rows[:last].tolist()
    until(lambda: client.server.post("/flush_cache").status_code == 200)
    again = client.rows(trajectory.tokens[:last])
    same = sum(left == right for left, right in zip(again, rows.tolist(), strict=False)) / last
    shifted = (
        sum(left == right for left, right in zip(again[1:], rows.tolist(), strict=False)) / last
    )
    assert same > 0.9 > 0.5 > shifted, (same, shifted)
