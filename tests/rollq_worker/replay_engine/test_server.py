"""The replay engine as a server: options, faults on request, what only it refuses, and
its process.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from rollq.errors import SettingsError
from rollq.events import Stop
from rollq_worker.engine.client import EngineClient
from rollq_worker.replay_engine.server import serve
from tests.rollq_worker.engine.engine_servers import replaying
from tests.rollq_worker.replay_engine.shop_episodes import (
    SHOP,
    SPLIT,
    TOKENIZER,
    first_prompt,
    play_task,
)


def generate(address: str, **body: Any) -> requests.Response:
    return requests.post(f"{address}/generate", json={"input_ids": [1, 2], **body}, timeout=60)


class TestFaults:
    def test_episodes_survive_all_kinds(self) -> None:
        with replaying(errors=0.25, seed=1) as url:
            engine = EngineClient(url, vocab_size=TOKENIZER.vocab_size)
            played = [play_task(engine, index) for index in range(6)]
            engine.close()
        assert [(t.stop, t.reward) for t in played] == [(Stop.DONE, 1.0)] * 6

    def test_all_kinds_reach_the_client(self) -> None:
        with replaying(errors=1.0) as url:
            seen = {self.outcome(url) for _ in range(40)}
        assert seen == {"503", "ConnectionError", "garbage", "abort"}

    @staticmethod
    def outcome(url: str) -> str:
        try:
            answer = generate(url)
        except requests.ConnectionError as e:
            return type(e).__name__
        if answer.status_code != 200:
            return str(answer.status_code)
        try:
            return str(answer.json()["meta_info"]["finish_reason"]["type"])
        except ValueError:
            return "garbage"


class TestOptions:
    def test_a_sampling_seed_decides_the_reply(self) -> None:
        body = {
            "input_ids": list(first_prompt(SHOP.task(SPLIT, 0))),
            "sampling_params": {"sampling_seed": 5},
        }
        replies = []
        for seed in (0, 1):
            with replaying(mistakes=0.9, seed=seed) as url:
                replies += [generate(url, **body).json()["output_ids"] for _ in range(3)]
        assert all(ids == replies[0] for ids in replies)

    def test_without_one_each_request_draws_for_itself(self) -> None:
        prompt = list(first_prompt(SHOP.task(SPLIT, 0)))
        with replaying(mistakes=0.9) as url:
            assert len({generate(url, input_ids=prompt).json()["text"] for _ in range(20)}) > 1

    def test_the_server_has_them(self) -> None:
        with replaying(weight_version="step-3", context_length=100) as url:
            assert (
                requests.get(f"{url}/model_info", timeout=60).json()["weight_version"] == "step-3"
            )
            message = generate(url, input_ids=[1] * 100).json()["error"]["message"]
        assert "context length (100 tokens)" in message

    def test_weights_that_are_not_there_are_refused(self, tmp_path: Path) -> None:
        """As by a real server, so that a rehearsal shows a wrong path."""
        with replaying(weight_version="1") as url:

            def load(path: str) -> tuple[int, str]:
                body = {"model_path": path, "weight_version": "2", "flush_cache": False}
                answer = requests.post(f"{url}/update_weights_from_disk", json=body, timeout=60)
                return answer.status_code, answer.json()["message"]

            status, message = load(f"{tmp_path}/7")
            assert status == 400 and f"there is no {tmp_path}/7" in message
            assert requests.get(f"{url}/model_info", timeout=60).json()["weight_version"] == "1"
            assert load(str(tmp_path))[0] == load("some/model")[0] == 200


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ({"input_ids": [-1]}, "outside the vocabulary"),
            ({"input_ids": [10_000_000]}, "outside the vocabulary"),
            ({"return_logprob": True, "logprob_start_len": -2}, "a real server would have died"),
            (
                {"return_logprob": True, "top_logprobs_num": 10_000_000},
                "a real server would have died",
            ),
        ],
    )
    def test_a_request_that_kills_a_real_server(
        self, address: str, body: dict[str, Any], reason: str
    ) -> None:
        answer = generate(address, **body)
        assert answer.status_code == 400 and reason in answer.json()["error"]["message"]

    @pytest.mark.parametrize(
        "body",
        [
            {"stream": True},
            {"return_sampling_mask": True},
            {"image_embeds": "x"},
            {"no_such_field": 1},
        ],
        ids=repr,
    )
    def test_a_field_that_it_does_not_take(self, address: str, body: dict[str, Any]) -> None:
        answer = generate(address, **body)
        assert answer.status_code == 400
        assert (
            answer.json()["error"]["message"]
            == f"The replay engine does not take `{next(iter(body))}`."
        )

    @pytest.mark.parametrize(
        "sampling", [{"n": 2}, {"beam_width": 2}, {"watermark": {"enabled": True}}], ids=repr
    )
    def test_a_sampling_parameter_that_no_job_carries(
        self, address: str, sampling: dict[str, Any]
    ) -> None:
        answer = generate(address, sampling_params=sampling)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(f"unknown field `{next(iter(sampling))}`")

    @pytest.mark.parametrize(
        "body", [{"input_ids": [[1], [2]]}, {"input_ids": None, "text": ["a", "b"]}], ids=repr
    )
    def test_more_than_one_prompt(self, address: str, body: dict[str, Any]) -> None:
        answer = generate(address, **body)
        assert answer.status_code == 400 and "one prompt" in answer.json()["message"]


class TestWhatSGLangTakes:
    @pytest.mark.parametrize("count", [0, -1, -100])
    def test_no_top_logprobs(self, address: str, count: int) -> None:
        body = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": count}
        answer = generate(address, **body)
        assert answer.status_code == 200 and "input_top_logprobs" not in answer.json()["meta_info"]

    def test_a_turn_without_a_bound_may_fill_the_context(self) -> None:
        with replaying(context_length=100) as url:
            answer = generate(url, sampling_params={"max_new_tokens": None, "ignore_eos": True})
        assert answer.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 96}

    def test_both_names_of_its_health(self, address: str) -> None:
        for path in ("/health", "/health_generate"):
            assert requests.get(f"{address}{path}", timeout=60).status_code == 200


class TestProcess:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_announces_its_address_and_ends_on_a_signal(self, number: signal.Signals) -> None:
        code = "from rollq_worker.replay_engine.server import serve; serve(port=0, latency=60.0)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout as out:
            url = out.readline().split()[-1]
            assert url.startswith("http://127.0.0.1:")
            with pytest.raises(requests.ReadTimeout):
                requests.post(f"{url}/generate", json={"input_ids": [1, 2]}, timeout=0.2)
            os.kill(process.pid, number)
            assert process.wait(60) == 0
            assert out.read() == ""

    def test_an_address_of_ipv6_has_brackets(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as e:
            pytest.skip(f"this machine has no IPv6: {e}")
        with replaying(host="::1") as address:
            assert generate(address).status_code == 200

    def test_a_port_in_use_is_named(self, address: str) -> None:
        with pytest.raises(SettingsError, match="cannot listen on"):
            serve(port=int(address.rpartition(":")[2]))
