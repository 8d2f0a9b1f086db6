"""sglang-router and smg in front of engines: what they pass on, what they drop, and what happens
when an engine dies.

The routers are in ROLLQ_ROUTERS, a virtual environment (`make test-routers` makes it).
"""

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from rollq.errors import JobFailure
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.exchange.replies import read_error
from rollq_worker.engine.limits import DROPPED
from rollq_worker.protocols import Generated
from tests.conftest import REPO, free_port
from tests.contract.conftest import Server, replay, running
from tests.contract.test_several_engines import recorded_pool, samples
from tests.recorder import Recorder, recording
from tests.sample_requests import sample_request
from tests.waiting import until

pytestmark = pytest.mark.routers
POLICIES = {"sglang_router": "manual", "smg": "consistent_hashing"}
"""The modules of the routers, and their policies that follow X-SMG-Routing-Key."""
EVERYTHING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.05,
    "min_new_tokens": 2,
    "stop": ["zzz"],
    "stop_token_ids": [7],
    "stop_regex": ["q+x"],
    "ignore_eos": True,
    "logit_bias": {"17": -2.5},
    "sampling_seed": 2**53 + 1,
    "max_new_tokens": 4,
    "skip_special_tokens": False,
}
"""Every sampling parameter that a job may have, but the grammars."""
Route = Callable[..., str]


@pytest.fixture(params=POLICIES)
def route(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Route]:
    """Starts a router with flags, and gives its address when it knows that many engines."""
    with ExitStack() as stack:
        yield lambda engines, *flags: stack.enter_context(
            _router(request.param, engines, flags, tmp_path / "router")
        )


@contextmanager
def _router(module: str, engines: int, flags: Sequence[str], log: Path) -> Iterator[str]:
    venv = Path(os.environ.get("ROLLQ_ROUTERS", REPO / ".venv" / "routers"))
    if not venv.exists():
        message = f"{venv} is missing: make test-routers"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    port = free_port()
    command = [
        str(venv / "bin" / "python"),
        "-m",
        f"{module}.launch_router",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--prometheus-port", str(free_port()), "--policy", POLICIES[module], *flags]
    with running(command, url := f"http://127.0.0.1:{port}", 60, log, "/readiness"):
        until(
            lambda: requests.get(f"{url}/readiness", timeout=5).json()["healthy_workers"] == engines
        )
        yield url


def recorded(stack: ExitStack, servers: Sequence[Server], folder: Path) -> list[Recorder]:
    return [
        stack.enter_context(recording(server.url, folder / f"engine{n}"))
        for n, server in enumerate(servers)
    ]


def generate(url: str, prompt: Sequence[int], **sampling: Any) -> Generated:
    engine = EngineClient(url)
    try:
        return engine.generate(
            sample_request(array("I", prompt), sampling=sampling, max_new_tokens=8)
        )
    finally:
        engine.close()


def test_a_turn_and_what_it_asks_for_pass_unchanged(
    route: Route, server: Server, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        (engine,) = recorded(stack, [server], tmp_path)
        url, prompt = route(1, "--worker-urls", engine.url), server.prompt()
        direct, routed = (generate(at, prompt, temperature=0.0) for at in (server.url, url))
        assert (
            routed.ids == direct.ids
            and routed.versions == direct.versions
            and routed.finish == direct.finish
        )
        assert routed.logprobs.tolist() == pytest.approx(direct.logprobs.tolist(), abs=0.05)
        assert engine.calls()[-1]["headers"]["x-smg-routing-key"]

        body = {
            "input_ids": prompt,
            "rid": "a/b/0/1",
            "return_logprob": True,
            "sampling_params": EVERYTHING,
        }
        assert requests.post(f"{url}/generate", json=body, timeout=60).status_code == 200
        arrived = engine.calls()[-1]["request"]
        assert set(EVERYTHING) - set(arrived["sampling_params"]) == set(DROPPED)
        kept = {name: value for name, value in EVERYTHING.items() if name not in DROPPED}
        assert arrived["sampling_params"] == kept
        assert {name: arrived[name] for name in body if name != "sampling_params"} == {
            name: value for name, value in body.items() if name != "sampling_params"
        }
        body |= {"lora_path": "math@7"}
        refused, routed_refusal = (
            requests.post(f"{at}/generate", json=body, timeout=60) for at in (server.url, url)
        )
        assert engine.calls()[-1]["request"]["lora_path"] == "math@7"
        assert not refused.ok and read_error(routed_refusal.content) == read_error(refused.content)
        for sampling, says in (
            ({"temperature": -1.0}, "temperature must be"),
            ({"logit_bias": {"1": 1.0}}, "drop"),
        ):
            with pytest.raises(JobFailure, match=says):
                generate(url, prompt, **sampling)


def test_a_group_stays_together_and_an_engine_may_die(route: Route, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(2):
            (tmp_path / str(number)).mkdir()
        servers = [
            stack.enter_context(replay(tmp_path / str(number), latency=0.2)) for number in range(2)
        ]
        engines = recorded(stack, servers, tmp_path)
        url = route(2, "--worker-urls", *(engine.url for engine in engines))
        pool = stack.enter_context(recorded_pool([Server(url, servers[0].tokenizer)], tmp_path))
        with ThreadPoolExecutor(16) as threads:
            first = list(threads.map(pool.play, samples(0, turns=2, tokens=64)))
            where = [
                {call["headers"]["x-smg-routing-key"] for call in engine.calls()}
                for engine in engines
            ]
            assert where[0] and where[1] and not where[0] & where[1]
            playing = [threads.submit(pool.play, job) for job in samples(1, turns=3, tokens=64)]
            until(lambda: len(pool.proxy.calls()) >= 40)
            assert servers[0].process is not None
            servers[0].process.crash()
            second = [one.result() for one in playing]
        for trajectory in (*first, *second):
            pool.check(trajectory)


def test_prefill_and_decode_servers(route: Route, replay_server: Server, tmp_path: Path) -> None:
    with ExitStack() as stack:
        prefill, decode = recorded(stack, [replay_server] * 2, tmp_path)
        url = route(
            2, "--pd-disaggregation", "--prefill", prefill.url, "8998", "--decode", decode.url
        )
        got = generate(url, replay_server.prompt())
        (one,), (other,) = (
            [call["request"] for call in engine.calls()] for engine in (prefill, decode)
        )
        assert one == other and one["bootstrap_port"] == 8998 and one["bootstrap_room"]
        assert len(got.ids) == len(got.logprobs) == 8
