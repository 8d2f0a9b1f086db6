"""The contract's aborts, pauses and new weights hold of a replay engine whose turns take the time of an engine's shape.

It has no gate, so only tests with long turns are here; they are interrupted, and never run to their end.
"""

import sys
from collections.abc import Iterator

import pytest

from rollq_worker.simulation.engine_model import EngineShape
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.conftest import free_port
from tests.contract import test_control
from tests.contract.background_requests import BackgroundRequests
from tests.contract.conftest import Server, running, spans_of
from tests.contract.test_weights import flush, update
from tests.waiting import until

SHAPE = EngineShape(
    step_s=0.005,  # a long turn would last 20 s
    prefill_token_s=1e-6,
    running_s=0.0,
    kv_token_s=0.0,
    kv_tokens=100_000,
    max_running=4,
    chunk_tokens=4096,
)


@pytest.fixture(scope="module")
def shaped_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    code = "from rollq_worker.replay_engine.server import serve; from rollq_worker.simulation.engine_model import *; "
    code += f"serve(port={port}, shape={SHAPE!r}, max_queued=4)"
    url, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("shaped") / "log"
    with running([sys.executable, "-c", code], url, 120, log) as process:
        yield Server(url, load_tokenizer(), process)


@pytest.fixture
def slow_server(shaped_server: Server) -> Iterator[Server]:
    yield shaped_server
    shaped_server.reset()


class TestAbort(test_control.TestAbort):
    """As it is."""


class TestPause:
    test_a_pause_may_abort = test_control.TestPause.test_a_pause_may_abort
    test_new_weights_abort_by_default = test_control.TestPause.test_new_weights_abort_by_default
    test_weights_from_disk = test_control.TestPause.test_weights_from_disk
    test_flushing_the_cache = test_control.TestPause.test_flushing_the_cache

    @pytest.mark.parametrize("mode", ["in_place", "retract"])
    def test_a_turn_over_a_pause_keeps_its_ids_and_has_both_versions(self, slow_server: Server, mode: str) -> None:
        def sampled() -> int:
            load = slow_server.get("/v1/loads").json()["loads"][0]
            return int(load["num_used_tokens"]) - len(slow_server.prompt())

        def five_more_tokens() -> None:
            until(lambda: sampled() > 0)
            first = sampled()
            until(lambda: sampled() > first + 5)

        with BackgroundRequests(slow_server) as requests:
            reply = requests.start_long("over-a-pause")
            five_more_tokens()
            slow_server.post("/pause_generation", {"mode": mode})
            assert flush(slow_server) == (200 if mode == "retract" else 400)
            assert update(slow_server, "w1", flush_cache=False)[0] == 200
            slow_server.post("/continue_generation", {})
            five_more_tokens()
            slow_server.post("/abort_request", {"abort_all": True})
            body = reply.result(60).json()
        meta = body["meta_info"]
        assert [version for version, _, _ in spans_of(meta)] == ["default", "w1"]
        assert meta["num_retractions"] == (mode == "retract")
        count = len(body["output_ids"])
        again = slow_server.generate(
            slow_server.prompt(), sampling_params={"max_new_tokens": count, "ignore_eos": True}
        )
        assert again["output_ids"] == body["output_ids"]
