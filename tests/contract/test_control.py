"""Aborts, pauses, weights and information: the same on a real SGLang server and on the replay
engine.
"""

import time
from typing import Any

import pytest

from tests.contract.background_requests import LONG, BackgroundRequests
from tests.contract.conftest import Server, spans_of
from tests.contract.refusal_shapes import assert_body_refused, value_refusal


class TestInformation:
    @pytest.mark.parametrize("path", ["/ready", "/health"])
    def test_it_is_there(self, server: Server, path: str) -> None:
        answer = server.get(path)
        assert (answer.status_code, answer.content) == (200, b"")

    def test_model_info(self, server: Server) -> None:
        info = server.get("/model_info").json()
        assert isinstance(info["weight_version"], str)
        assert info["model_path"] and info["served_model_name"] and info["tokenizer_path"]
        assert info["is_generation"] is True

    def test_server_info(self, server: Server) -> None:
        info = server.get("/server_info").json()
        assert info["max_req_input_len"] == info["context_length"] - 6
        assert info["max_total_num_tokens"] > 0 and isinstance(info["version"], str)
        assert isinstance(info["weight_version"], str)

    def test_loads(self, server: Server) -> None:
        load = server.get("/v1/loads").json()["loads"][0]
        assert load["num_running_reqs"] == load["num_waiting_reqs"] == 0
        assert {"num_used_tokens", "token_usage"} <= set(load)

    def test_chat_completions(self, server: Server) -> None:
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello!"},
        ]
        reply = server.post(
            "/v1/chat/completions", {"model": "any", "messages": messages, "max_tokens": 30}
        ).json()
        choice = reply["choices"][0]
        assert choice["message"]["role"] == "assistant"
        assert isinstance(choice["message"]["content"], str | None)
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        usage = reply["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert reply["metadata"]["weight_versions"][0]["start"] == 0

    def test_chat_completions_without_messages(self, server: Server) -> None:
        assert_body_refused(server.post("/v1/chat/completions", {"model": "any"}))


class TestAbort:
    def test_a_running_request_answers_with_what_it_has(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = requests.start_long("to-abort")
            time.sleep(0.3)
            asked = slow_server.post("/abort_request", {"rid": "to-abort"})
            assert (asked.status_code, asked.content) == (200, b"")
            answer = reply.result(60)
        meta, ids = answer.json()["meta_info"], answer.json()["output_ids"]
        assert answer.status_code == 200
        assert meta["finish_reason"] == {
            "type": "abort",
            "message": "Aborted",
            "status_code": None,
            "err_type": None,
        }
        assert 0 < len(ids) < LONG["max_new_tokens"]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == ids
        spans_of(meta)

    def test_only_the_exact_name_aborts(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = requests.start("abc-2", max_new_tokens=3)
            for body in ({"rid": "abc"}, {"rid": "no-such-request"}, {}):
                assert slow_server.post("/abort_request", body).status_code == 200
            assert reply.result(60).json()["meta_info"]["finish_reason"]["type"] in (
                "stop",
                "length",
            )

    def test_a_queued_request_answers_with_nothing(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            requests.fill()
            queued = requests.start("queued", **LONG)
            requests.wait_for(4, 1)
            slow_server.post("/abort_request", {"rid": "queued"})
            body = queued.result(60).json()
        assert body["output_ids"] == []
        assert body["meta_info"]["finish_reason"]["type"] == "abort"
        assert body["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
        assert not {"prompt_tokens", "cached_tokens", "num_retractions"} & set(body["meta_info"])

    def test_a_full_queue_answers_503(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            requests.fill(queued=4)
            answer = requests.start("too-many", **LONG).result(60)
        body = {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        }
        assert (answer.status_code, answer.json()) == (503, body)

    def test_a_request_id_is_taken_while_it_runs(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            first = requests.start_long("twice")
            duplicate = requests.start("twice", max_new_tokens=1).result(60)
            assert value_refusal(duplicate) == "Duplicate request ID detected: twice"
            assert not first.done()
            slow_server.post("/abort_request", {"rid": "twice"})
            assert first.result(60).status_code == 200
            assert requests.start("twice", max_new_tokens=1).result(60).status_code == 200


class TestPause:
    @pytest.mark.parametrize("mode", ["in_place", "retract"])
    def test_a_pause_stops_everything_and_new_weights_show(
        self, slow_server: Server, mode: str
    ) -> None:
        slow_server.close_gate()
        length = 60 if slow_server.gate else 600  # without a gate it goes on until the pause
        with BackgroundRequests(slow_server) as requests:
            reply = requests.start("over-a-pause", max_new_tokens=length, ignore_eos=True)
            requests.wait_for(1)
            paused = slow_server.post("/pause_generation", {"mode": mode})
            assert (paused.status_code, paused.json()["status"]) == (200, "ok")
            assert slow_server.get("/ready").status_code == 503
            late = requests.start("during-the-pause", max_new_tokens=2)
            slow_server.post("/abort_request", {"abort_all": False, "rid": "during-the-pause"})
            time.sleep(0.5)
            assert not reply.done() and not late.done()
            updated = slow_server.post(
                "/update_weight_version", {"new_version": "v2", "abort_all_requests": False}
            )
            assert updated.json()["new_version"] == "v2"
            assert slow_server.post("/continue_generation", {}).json()["status"] == "ok"
            slow_server.open_gate()
            meta = reply.result(60).json()["meta_info"]
            assert late.result(60).json()["meta_info"]["finish_reason"]["type"] == "length"
        assert slow_server.get("/ready").status_code == 200
        assert meta["finish_reason"] == {"type": "length", "length": length}
        assert [version for version, _, _ in spans_of(meta)][-1] == "v2"
        retracted = slow_server.real and mode == "retract"
        assert meta["num_retractions"] == retracted

    def test_a_pause_may_abort(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = requests.start_long("aborted-by-a-pause")
            slow_server.post("/pause_generation", {"mode": "abort"})
            assert reply.result(60).json()["meta_info"]["finish_reason"]["type"] == "abort"
            assert slow_server.get("/ready").status_code == 503

    def test_new_weights_abort_by_default(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = requests.start_long("old")
            answer = slow_server.post("/update_weight_version", {"new_version": "v3"})
            assert answer.json()["success"] is True
            assert reply.result(60).json()["meta_info"]["finish_reason"]["type"] == "abort"
            assert slow_server.weight_version() == "v3"
            meta = requests.start("new", max_new_tokens=2).result(60).json()["meta_info"]
        assert spans_of(meta) == [("v3", 0, 2)]

    def test_new_weights_without_a_pause_show_in_the_spans(self, slow_server: Server) -> None:
        slow_server.close_gate()
        with BackgroundRequests(slow_server) as requests:
            reply = requests.start("both", max_new_tokens=200, ignore_eos=True)
            requests.wait_for(1)
            time.sleep(0.2 if slow_server.real else 0)  # for tokens of the old weights
            slow_server.post(
                "/update_weight_version", {"new_version": "v4", "abort_all_requests": False}
            )
            slow_server.open_gate()
            spans = spans_of(reply.result(60).json()["meta_info"])
        assert [version for version, _, _ in spans] == ["default", "v4"]

    def test_weights_from_disk(self, slow_server: Server) -> None:
        path = slow_server.get("/model_info").json()["model_path"]
        slow_server.post("/pause_generation", {"mode": "retract"})
        body = {"model_path": path, "weight_version": "v5"}
        answer = slow_server.post("/update_weights_from_disk", body)
        assert answer.status_code == 200 and answer.json()["success"] is True
        slow_server.post("/continue_generation", {})
        assert slow_server.weight_version() == "v5"

    def test_flushing_the_cache(self, slow_server: Server) -> None:
        with BackgroundRequests(slow_server) as requests:
            reply = requests.start_long("busy")
            assert slow_server.post("/flush_cache").status_code == 400
            slow_server.post("/abort_request", {"rid": "busy"})
            reply.result(60)
            requests.wait_for(0)
        assert slow_server.post("/flush_cache").status_code == 200

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/pause_generation", {"mode": "softly"}),
            ("/update_weight_version", {}),
            ("/update_weights_from_disk", {}),
        ],
    )
    def test_a_wrong_body_is_refused(self, server: Server, path: str, body: dict[str, Any]) -> None:
        assert_body_refused(server.post(path, body))
