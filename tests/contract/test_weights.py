"""The paths of a weight update: the same on a real SGLang server and on the replay engine."""

from typing import Any

import pytest

from tests.contract.background_requests import BackgroundRequests
from tests.contract.conftest import ONLY_REAL, Server, spans_of
from tests.waiting import until

UNFLUSHED = "Weights were updated, but the cache was not flushed"


def info(server: Server) -> tuple[str, str]:
    found = server.get("/model_info").json()
    return found["weight_version"], found["model_path"]


def update(server: Server, version: str, **body: Any) -> tuple[int, dict[str, Any]]:
    body = {"model_path": info(server)[1], "weight_version": version, **body}
    answer = server.post("/update_weights_from_disk", body)
    return answer.status_code, answer.json()


def flush(server: Server) -> int:
    return server.post("/flush_cache").status_code


def start_half_a_turn(server: Server, requests: BackgroundRequests) -> Any:
    """A request that has tokens, and gets the others when the gate opens; on a real server it runs
    for a second.
    """

    def used() -> int:
        return int(server.get("/v1/loads").json()["loads"][0]["num_used_tokens"])

    server.close_gate()
    before = used()
    reply = requests.start("half", max_new_tokens=400 if server.real else 60, ignore_eos=True)
    requests.wait_for(1)
    until(lambda: not server.real or used() > before + len(server.prompt()) + 5)
    return reply


class TestPausedInPlace:
    @pytest.mark.parametrize("slow_server", ONLY_REAL, indirect=True)
    def test_the_cache_cannot_be_flushed_and_an_update_that_would_flush_is_in_use_but_not_shown(
        self, slow_server: Server
    ) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = start_half_a_turn(slow_server, requests)
            slow_server.post("/pause_generation", {"mode": "in_place"})
            assert flush(slow_server) == 400
            status, body = update(slow_server, "unshown")
            assert (
                status == 400 and body["success"] is False and body["message"].startswith(UNFLUSHED)
            )
            assert info(slow_server)[0] == "default"
            slow_server.post("/continue_generation", {})
            slow_server.open_gate()
            meta = reply.result(60).json()["meta_info"]
        assert spans_of(meta)[-1][0] == "unshown" and meta["num_retractions"] == 0

    def test_an_update_that_does_not_flush_is_shown(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            start_half_a_turn(slow_server, requests)
            slow_server.post("/pause_generation", {"mode": "in_place"})
            status, body = update(slow_server, "shown", flush_cache=False)
            assert status == 200 and body["success"] is True
            assert info(slow_server)[0] == "shown"

    def test_the_cache_can_be_flushed_when_nothing_runs(self, slow_server: Server) -> None:
        slow_server.post("/pause_generation", {"mode": "in_place"})
        assert flush(slow_server) == 200


class TestPausedByRetraction:
    @pytest.mark.parametrize("slow_server", ONLY_REAL, indirect=True)
    def test_the_cache_can_be_flushed(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = start_half_a_turn(slow_server, requests)
            for _ in range(2):  # a repeated pause retracts nothing twice
                assert slow_server.post("/pause_generation", {"mode": "retract"}).status_code == 200
            assert flush(slow_server) == 200
            assert update(slow_server, "w1", flush_cache=False)[0] == 200
            assert flush(slow_server) == 200
            slow_server.post("/continue_generation", {})
            slow_server.open_gate()
            meta = reply.result(60).json()["meta_info"]
        assert [version for version, _, _ in spans_of(meta)] == ["default", "w1"]
        assert meta["num_retractions"] == 1

    def test_a_pause_in_place_may_become_one(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            start_half_a_turn(slow_server, requests)
            slow_server.post("/pause_generation", {"mode": "in_place"})
            slow_server.post("/pause_generation", {"mode": "retract"})
            assert flush(slow_server) == 200

    @pytest.mark.parametrize("slow_server", ONLY_REAL, indirect=True)
    def test_it_may_become_one_that_aborts(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = start_half_a_turn(slow_server, requests)
            slow_server.post("/pause_generation", {"mode": "retract"})
            assert slow_server.post("/pause_generation", {"mode": "abort"}).status_code == 200
            body = reply.result(60).json()
            assert slow_server.get("/ready").status_code == 503
            assert flush(slow_server) == 200
        meta = body["meta_info"]
        finish = meta["finish_reason"]
        assert (finish["type"], finish["message"]) == ("abort", "Abort in waiting queue")
        # A real server hands its tokens on by the fifty, and those that it has not handed on yet
        # are lost.
        assert len(body["output_ids"]) == meta["completion_tokens"]
        assert "prompt_tokens" not in meta
        spans_of(meta)


class TestVerification:
    def test_model_info_names_version_and_folder(self, slow_server: Server) -> None:
        path = info(slow_server)[1].rstrip("/")
        for number, form in enumerate((path + "/", path)):
            slow_server.post("/pause_generation", {"mode": "retract"})
            assert update(slow_server, f"w{number}", model_path=form)[0] == 200
            assert info(slow_server) == (f"w{number}", form)
        slow_server.post("/continue_generation", {})

    def test_the_checksum_is_that_of_the_weights(self, slow_server: Server) -> None:
        def checksum() -> str:
            answer = slow_server.post("/weights_checker", {"action": "checksum"})
            found = answer.json()
            assert answer.status_code == 200 and found["success"] is True
            assert all(rank["checksums"] and rank["per_gpu_checksum"] for rank in found["ranks"])
            return str(found["per_engine_checksum"])

        before = checksum()
        slow_server.post("/pause_generation", {"mode": "retract"})
        assert checksum() == before  # also during a pause
        update(slow_server, "w2", flush_cache=False)
        assert checksum() == before  # the same folder
        slow_server.post("/continue_generation", {})

    def test_an_action_that_it_does_not_know(self, slow_server: Server) -> None:
        answer = slow_server.post("/weights_checker", {"action": "guess"})
        assert answer.status_code == 400 and answer.json()["success"] is False

    def test_server_info_tells_how_the_weights_are_laid_out(self, server: Server) -> None:
        found = server.get("/server_info").json()
        assert {
            "version",
            "tp_size",
            "dp_size",
            "pp_size",
            "ep_size",
            "dtype",
            "quantization",
        } <= set(found)


def test_continuing_what_is_not_paused_changes_nothing(slow_server: Server) -> None:
    assert slow_server.post("/continue_generation", {}).status_code == 200
    assert slow_server.get("/ready").status_code == 200
