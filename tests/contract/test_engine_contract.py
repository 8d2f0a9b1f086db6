"""What rollq relies on in an SGLang server, asserted of the real one and of the replay engine alike."""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import requests

from tests.contract.conftest import Server
from tests.contract.errors import assert_invalid, error_of

LONG = {"max_new_tokens": 4000, "ignore_eos": True}
"""Seconds of work on both servers."""
GREEDY = {"temperature": 0}


def spans_of(meta: dict[str, Any]) -> list[tuple[str, int, int]]:
    spans = [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]]
    assert spans[0][1] == 0 and spans[-1][2] == meta["completion_tokens"]
    assert all(left[2] == right[1] for left, right in pairwise(spans))
    assert meta["weight_version"] == spans[-1][0]
    return spans


class Running:
    """Requests in the background, seen to be running before the test goes on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pool = ThreadPoolExecutor(16)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.reset()
        self.pool.shutdown()

    def start(self, rid: str, **sampling: Any) -> "Future[requests.Response]":
        body = {"input_ids": self.server.prompt(), "rid": rid, "return_logprob": True, "sampling_params": sampling}
        return self.pool.submit(self.server.post, "/generate", body)

    def wait_for(self, running: int, waiting: int = 0) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            load = self.server.get("/v1/loads").json()["loads"][0]
            if (load["num_running_reqs"], load["num_waiting_reqs"]) == (running, waiting):
                return
            time.sleep(0.02)
        pytest.fail(f"not {running} running and {waiting} waiting requests: {load}")


class TestReply:
    def test_a_turn_that_stops_by_itself(self, server: Server) -> None:
        prompt = server.prompt()
        reply = server.generate(prompt, rid="a-name", sampling_params={"max_new_tokens": 2000})
        meta, ids = reply["meta_info"], reply["output_ids"]
        end = server.tokenizer.added_tokens["<|im_end|>"]
        assert meta["id"] == "a-name"
        assert meta["prompt_tokens"] == len(prompt)
        assert meta["completion_tokens"] == len(ids) == meta["output_token_logprobs_length"] > 1
        assert meta["finish_reason"] == {"type": "stop", "matched": ids[-1]}
        assert end in (ids[-1], *server.tokenizer.eos_ids) and ids.count(end) <= 1
        assert "<|im_end|>" not in reply["text"]
        assert meta["num_retractions"] == 0 and meta["e2e_latency"] > 0
        assert spans_of(meta) == [(meta["weight_version"], 0, len(ids))]

    def test_logprobs_belong_to_the_ids(self, server: Server) -> None:
        reply = server.generate(server.prompt(), sampling_params={"max_new_tokens": 20})
        entries = reply["meta_info"]["output_token_logprobs"]
        assert [entry[1] for entry in entries] == reply["output_ids"]
        assert all(math.isfinite(entry[0]) and entry[0] <= 0 and entry[2] is None for entry in entries)
        assert reply["meta_info"]["input_token_logprobs"] == []

    def test_without_logprobs(self, server: Server) -> None:
        reply = server.generate(server.prompt(), return_logprob=False, sampling_params={"max_new_tokens": 3})
        assert len(reply["output_ids"]) == 3
        assert "output_token_logprobs" not in reply["meta_info"]

    def test_logprobs_with_texts(self, server: Server) -> None:
        body = {"return_text_in_logprobs": True, "sampling_params": {"max_new_tokens": 5}}
        entries = server.generate(server.prompt(), **body)["meta_info"]["output_token_logprobs"]
        assert [entry[2] for entry in entries] == [server.tokenizer.decode([entry[1]]) for entry in entries]

    def test_length_has_no_stop_token(self, server: Server) -> None:
        reply = server.generate(server.prompt(), sampling_params={"max_new_tokens": 2})
        assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
        assert len(reply["output_ids"]) == 2

    def test_ignore_eos_goes_on_to_the_length(self, server: Server) -> None:
        sampling = {"max_new_tokens": 90, "ignore_eos": True, "stop_token_ids": server.prompt()[:1]}
        reply = server.generate(server.prompt(), sampling_params=sampling)
        assert len(reply["output_ids"]) == 90
        assert reply["meta_info"]["finish_reason"]["type"] == "length"

    def test_the_default_length(self, server: Server) -> None:
        reply = server.generate(server.prompt(), sampling_params={"ignore_eos": True})
        assert len(reply["output_ids"]) == 128

    def test_a_stop_token_of_ones_own_ends_the_turn_and_stays(self, server: Server) -> None:
        first = server.generate(server.prompt(), sampling_params={**GREEDY, "max_new_tokens": 6})["output_ids"]
        stop = first[3]
        sampling = {**GREEDY, "max_new_tokens": 6, "stop_token_ids": [stop]}
        reply = server.generate(server.prompt(), sampling_params=sampling)
        assert reply["output_ids"] == first[: first.index(stop) + 1]
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert reply["text"] == server.tokenizer.decode(reply["output_ids"][:-1])

    def test_a_stop_string_is_in_the_ids_and_not_in_the_text(self, server: Server) -> None:
        whole = server.generate(server.prompt(), sampling_params={**GREEDY, "max_new_tokens": 6})
        stop = whole["text"][2:6]
        sampling = {**GREEDY, "max_new_tokens": 6, "stop": stop}
        reply = server.generate(server.prompt(), sampling_params=sampling)
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert reply["text"] == whole["text"][: whole["text"].index(stop)]
        assert reply["output_ids"] == whole["output_ids"][: len(reply["output_ids"])]
        assert stop in server.tokenizer.decode(reply["output_ids"])

    def test_the_stop_token_shows_only_when_asked_for(self, server: Server) -> None:
        sampling = {**GREEDY, "max_new_tokens": 2000, "skip_special_tokens": False, "no_stop_trim": True}
        reply = server.generate(server.prompt(), sampling_params=sampling)
        assert reply["text"] == server.tokenizer.decode(reply["output_ids"])
        assert reply["text"].endswith("<|im_end|>")

    def test_text_is_never_needed_but_taken(self, server: Server) -> None:
        prompt = server.prompt()
        by_ids = server.generate(prompt, sampling_params={**GREEDY, "max_new_tokens": 5})
        body = {"text": server.tokenizer.decode(prompt), "sampling_params": {**GREEDY, "max_new_tokens": 5}}
        by_text = server.post("/generate", body).json()
        assert by_text["output_ids"] == by_ids["output_ids"]
        assert by_text["meta_info"]["prompt_tokens"] == len(prompt)

    def test_a_batch_is_answered_by_a_list_in_order(self, server: Server) -> None:
        prompts = [server.prompt("One."), server.prompt("Two, please.")]
        replies = server.post(
            "/generate", {"input_ids": prompts, "rid": "both", "sampling_params": {"max_new_tokens": 2}}
        ).json()
        assert [reply["meta_info"]["id"] for reply in replies] == ["both_0", "both_1"]
        assert [reply["meta_info"]["prompt_tokens"] for reply in replies] == list(map(len, prompts))


class TestScoring:
    def test_a_prefill_scores_the_prompt_and_samples_nothing(self, server: Server) -> None:
        prompt = server.prompt()
        reply = server.generate(prompt, logprob_start_len=0, sampling_params={"max_new_tokens": 0})
        entries = reply["meta_info"]["input_token_logprobs"]
        assert reply["output_ids"] == [] and reply["text"] == ""
        assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        assert [entry[1] for entry in entries] == prompt
        assert entries[0][0] is None
        assert all(entry[0] < 0 for entry in entries[1:])

    def test_scoring_from_a_place_on(self, server: Server) -> None:
        prompt = server.prompt()
        reply = server.generate(prompt, logprob_start_len=3, sampling_params={"max_new_tokens": 1})
        entries = reply["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in entries] == prompt[3:]
        assert entries[0][0] is None

    def test_scoring_again_gives_what_sampling_gave(self, server: Server) -> None:
        prompt = server.prompt()
        reply = server.generate(prompt, sampling_params={"max_new_tokens": 30})
        ids = reply["output_ids"]
        again = server.generate(prompt + ids, logprob_start_len=len(prompt) - 1, sampling_params={"max_new_tokens": 0})
        sampled = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        scored = [entry[0] for entry in again["meta_info"]["input_token_logprobs"][1:]]
        assert scored == pytest.approx(sampled, abs=0.1)  # bfloat16

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_a_token_is_scored_as_the_next_one(self, server: Server, temperature: float) -> None:
        prompt, sampling = server.prompt(), {"temperature": temperature, "max_new_tokens": 2}
        reply = server.generate(prompt, sampling_params=sampling)
        first, token = reply["output_ids"][:2]
        body = {"token_ids_logprob": [token, first], "extra_key": "a-name", "sampling_params": sampling}
        asked = server.generate([*prompt, first], **body)["meta_info"]
        for at, (entries, sampled) in enumerate(
            zip(asked["output_token_ids_logprobs"], asked["output_token_logprobs"], strict=True)
        ):
            assert [entry[1] for entry in entries] == [token, first]
            said = {entry[1]: entry[0] for entry in entries}
            assert said.get(sampled[1], sampled[0]) == sampled[0]
            if not at:
                assert said[token] == pytest.approx(reply["meta_info"]["output_token_logprobs"][1][0], abs=0.07)

    def test_a_token_that_is_none_is_not_scored(self, server: Server) -> None:
        body = {"input_ids": server.prompt(), "return_logprob": True, "token_ids_logprob": [10_000_000]}
        assert "out-of-vocabulary token id 10000000" in error_of(server.post("/generate", body))
        assert_invalid(server.post("/generate", {**body, "token_ids_logprob": ["a"]}))

    def test_the_best_tokens_of_a_place(self, server: Server) -> None:
        prompt, sampling = server.prompt(), {"max_new_tokens": 3}
        body = {"top_logprobs_num": 3, "return_text_in_logprobs": True, "sampling_params": sampling}
        meta = server.generate(prompt, **body)["meta_info"]
        assert meta["input_top_logprobs"] == []
        self.check_best(server, meta["output_top_logprobs"], meta["output_token_logprobs"])
        meta = server.generate(prompt, logprob_start_len=2, **body)["meta_info"]
        assert meta["input_top_logprobs"][0] is None
        self.check_best(server, meta["input_top_logprobs"][1:], meta["input_token_logprobs"][1:])
        self.check_best(server, meta["output_top_logprobs"], meta["output_token_logprobs"])

    @staticmethod
    def check_best(server: Server, rows: list[Any], taken: list[Any]) -> None:
        for row, (score, token, _) in zip(rows, taken, strict=True):
            scores = [entry[0] for entry in row]
            assert len({entry[1] for entry in row}) == 3 and scores == sorted(scores, reverse=True)
            assert {entry[1]: entry[0] for entry in row}.get(token, score) == score <= scores[0]
            assert token in {entry[1] for entry in row} or score <= scores[-1]
            assert [entry[2] for entry in row] == [server.tokenizer.decode([entry[1]]) for entry in row]

    @pytest.mark.parametrize("asked", [{}, {"top_logprobs_num": 0}, {"top_logprobs_num": None}], ids=repr)
    def test_no_best_tokens_unless_asked_for(self, server: Server, asked: dict[str, Any]) -> None:
        meta = server.generate(server.prompt(), sampling_params={"max_new_tokens": 2}, **asked)["meta_info"]
        assert "output_top_logprobs" not in meta and "input_top_logprobs" not in meta

    @pytest.mark.parametrize("number", ["2", 2.0, True], ids=repr)
    def test_a_number_of_best_tokens_that_is_none(self, server: Server, number: object) -> None:
        body = {"input_ids": server.prompt(), "return_logprob": True, "top_logprobs_num": number}
        assert server.post("/generate", body).json()["error"].startswith("invalid type: ")

    def test_each_prompt_of_a_batch_is_scored_as_it_asks(self, server: Server) -> None:
        prompt = server.prompt()
        body = {"input_ids": [prompt, prompt], "return_logprob": [True, False], "logprob_start_len": [2, 0]}
        more = {"top_logprobs_num": [1, 2], "token_ids_logprob": [[1], [2]], "sampling_params": {"max_new_tokens": 2}}
        first, second = (reply["meta_info"] for reply in server.post("/generate", {**body, **more}).json())
        assert [entry[1] for entry in first["input_token_logprobs"]] == prompt[2:]
        assert [len(row) for row in first["output_top_logprobs"]] == [1, 1]
        assert [[entry[1] for entry in row] for row in first["output_token_ids_logprobs"]] == [[1], [1]]
        assert "output_token_logprobs" not in second

    def test_the_prompts_ids_come_back_if_asked_for(self, server: Server) -> None:
        prompt, sampling = server.prompt(), {"max_new_tokens": 1}
        assert (
            server.generate(prompt, return_prompt_token_ids=True, sampling_params=sampling)["prompt_token_ids"]
            == prompt
        )
        assert "prompt_token_ids" not in server.generate(prompt, sampling_params=sampling)

    def test_a_place_behind_the_prompt_is_refused(self, server: Server) -> None:
        body = {"input_ids": server.prompt(), "return_logprob": True, "logprob_start_len": 1000}
        assert "logprob_start_len" in error_of(server.post("/generate", body))
        assert server.post("/generate", {**body, "return_logprob": False}).status_code == 200


class TestPrefix:
    def test_three_turns_extend_each_other_id_for_id(self, server: Server) -> None:
        """What was sampled goes back as it is; only a bridge is added; the server finds the prefix in its cache."""
        ids = server.prompt()
        bridge = list(server.tokenizer.encode("\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"))
        end = server.tokenizer.added_tokens["<|im_end|>"]
        for turn in range(3):
            reply = server.generate(ids, sampling_params={"max_new_tokens": 40, "stop_token_ids": [end]})
            assert reply["meta_info"]["prompt_tokens"] == len(ids)
            if turn:
                assert reply["meta_info"]["cached_tokens"] > 0
            said = reply["output_ids"]
            ids = [*ids, *said, *([] if said[-1] == end else [end]), *bridge]


class TestInformation:
    def test_it_is_there(self, server: Server) -> None:
        for path in ("/ready", "/ping", "/health", "/health_generate"):
            answer = server.get(path)
            assert (answer.status_code, answer.content) == (200, b"")
        assert server.get("/").json() == "SGLang is running"

    def test_model_info(self, server: Server) -> None:
        for path in ("/model_info", "/get_model_info"):
            info = server.get(path).json()
            assert isinstance(info["weight_version"], str)
            assert info["model_path"] and info["served_model_name"] and info["tokenizer_path"]
            assert info["is_generation"] is True

    def test_server_info(self, server: Server) -> None:
        for path in ("/server_info", "/get_server_info"):
            info = server.get(path).json()
            assert info["max_req_input_len"] == info["context_length"] - 6
            assert info["max_total_num_tokens"] > 0
            assert isinstance(info["version"], str) and isinstance(info["internal_states"], list)
            assert isinstance(info["weight_version"], str)

    def test_loads(self, server: Server) -> None:
        load = server.get("/v1/loads").json()["loads"][0]
        assert load["num_running_reqs"] == load["num_waiting_reqs"] == 0
        assert {"num_used_tokens", "max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate"} <= set(
            load
        )

    def test_models(self, server: Server) -> None:
        card = server.get("/v1/models").json()["data"][0]
        assert card["object"] == "model"
        assert card["max_model_len"] == server.get("/server_info").json()["context_length"]

    def test_chat_completions(self, server: Server) -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
        reply = server.post("/v1/chat/completions", {"model": "any", "messages": messages, "max_tokens": 30}).json()
        choice = reply["choices"][0]
        assert choice["message"]["role"] == "assistant"
        assert isinstance(choice["message"]["content"], str | None)
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        usage = reply["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert reply["metadata"]["weight_versions"][0]["start"] == 0

    def test_chat_completions_without_messages(self, server: Server) -> None:
        assert_invalid(server.post("/v1/chat/completions", {"model": "any"}))


class TestAbort:
    def test_a_running_request_answers_with_what_it_has(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            reply = running.start("to-abort", **LONG)
            running.wait_for(1)
            time.sleep(0.3)
            asked = slow_server.post("/abort_request", {"rid": "to-abort"})
            assert (asked.status_code, asked.content) == (200, b"")
            answer = reply.result(60)
        body = answer.json()
        assert answer.status_code == 200
        assert body["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "Aborted",
            "status_code": None,
            "err_type": None,
        }
        assert 0 < len(body["output_ids"]) < LONG["max_new_tokens"]
        assert [entry[1] for entry in body["meta_info"]["output_token_logprobs"]] == body["output_ids"]
        spans_of(body["meta_info"])

    def test_nobody_is_aborted_by_another_name(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            reply = running.start("abc-2", max_new_tokens=3)
            for body in ({"rid": "abc"}, {"rid": "no-such-request"}, {}):
                assert slow_server.post("/abort_request", body).status_code == 200
            assert reply.result(60).json()["meta_info"]["finish_reason"]["type"] in ("stop", "length")

    def test_a_queued_request_answers_with_nothing(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            for number in range(4):
                running.start(f"running-{number}", **LONG)
            running.wait_for(4)
            queued = running.start("queued", **LONG)
            running.wait_for(4, 1)
            slow_server.post("/abort_request", {"rid": "queued"})
            body = queued.result(60).json()
        assert body["output_ids"] == []
        assert body["meta_info"]["finish_reason"]["type"] == "abort"
        assert body["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
        assert not {"prompt_tokens", "cached_tokens", "num_retractions"} & set(body["meta_info"])

    def test_a_full_queue_answers_503(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            for number in range(4):
                running.start(f"running-{number}", **LONG)
            running.wait_for(4)
            for number in range(4):
                running.start(f"queued-{number}", **LONG)
            running.wait_for(4, 4)
            answer = running.start("too-many", **LONG).result(60)
        assert answer.status_code == 503
        assert answer.json() == {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        }

    def test_a_request_id_is_taken_while_it_runs(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            first = running.start("twice", **LONG)
            running.wait_for(1)
            assert error_of(running.start("twice", max_new_tokens=1).result(60)) == (
                "Duplicate request ID detected: twice"
            )
            assert not first.done()
            slow_server.post("/abort_request", {"rid": "twice"})
            assert first.result(60).status_code == 200
            assert running.start("twice", max_new_tokens=1).result(60).status_code == 200


class TestPause:
    @pytest.mark.parametrize("mode", ["in_place", "retract"])
    def test_a_pause_holds_everything_and_new_weights_show(self, slow_server: Server, mode: str) -> None:
        slow_server.hold()
        with Running(slow_server) as running:
            reply = running.start("over-a-pause", max_new_tokens=60, ignore_eos=True)
            running.wait_for(1)
            paused = slow_server.post("/pause_generation", {"mode": mode})
            assert (paused.status_code, paused.json()["status"]) == (200, "ok")
            assert slow_server.get("/ready").status_code == 503
            late = running.start("at-the-door", max_new_tokens=2)
            slow_server.post("/abort_request", {"abort_all": False, "rid": "at-the-door"})
            time.sleep(0.5)
            assert not reply.done() and not late.done()
            updated = slow_server.post("/update_weight_version", {"new_version": "v2", "abort_all_requests": False})
            assert updated.json()["new_version"] == "v2"
            assert slow_server.post("/continue_generation", {}).json()["status"] == "ok"
            slow_server.let_go()
            meta = reply.result(60).json()["meta_info"]
            assert late.result(60).json()["meta_info"]["finish_reason"]["type"] == "length"
        assert slow_server.get("/ready").status_code == 200
        assert meta["finish_reason"] == {"type": "length", "length": 60}
        assert [version for version, _, _ in spans_of(meta)][-1] == "v2"
        assert meta["num_retractions"] == (mode == "retract")

    def test_a_pause_may_abort(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            reply = running.start("aborted-by-a-pause", **LONG)
            running.wait_for(1)
            slow_server.post("/pause_generation", {"mode": "abort"})
            assert reply.result(60).json()["meta_info"]["finish_reason"]["type"] == "abort"
            assert slow_server.get("/ready").status_code == 503

    def test_new_weights_abort_by_default(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            reply = running.start("old", **LONG)
            running.wait_for(1)
            answer = slow_server.post("/update_weight_version", {"new_version": "v3"})
            assert answer.json()["success"] is True
            assert reply.result(60).json()["meta_info"]["finish_reason"]["type"] == "abort"
            assert slow_server.get("/model_info").json()["weight_version"] == "v3"
            meta = running.start("new", max_new_tokens=2).result(60).json()["meta_info"]
        assert spans_of(meta) == [("v3", 0, 2)]

    def test_new_weights_without_a_pause_show_in_the_spans(self, slow_server: Server) -> None:
        slow_server.hold()
        with Running(slow_server) as running:
            reply = running.start("both", max_new_tokens=200, ignore_eos=True)
            running.wait_for(1)
            time.sleep(0.2 if slow_server.real else 0)  # for tokens of the old weights
            slow_server.post("/update_weight_version", {"new_version": "v4", "abort_all_requests": False})
            slow_server.let_go()
            spans = spans_of(reply.result(60).json()["meta_info"])
        assert [version for version, _, _ in spans] == ["default", "v4"]

    def test_weights_from_disk(self, slow_server: Server) -> None:
        path = slow_server.get("/model_info").json()["model_path"]
        slow_server.post("/pause_generation", {"mode": "retract"})
        body = {"model_path": path, "weight_version": "v5"}
        answer = slow_server.post("/update_weights_from_disk", body)
        assert answer.status_code == 200 and answer.json()["success"] is True
        slow_server.post("/continue_generation", {})
        assert slow_server.get("/model_info").json()["weight_version"] == "v5"

    def test_flushing_the_cache(self, slow_server: Server) -> None:
        with Running(slow_server) as running:
            reply = running.start("busy", **LONG)
            running.wait_for(1)
            assert slow_server.post("/flush_cache").status_code == 400
            slow_server.post("/abort_request", {"rid": "busy"})
            reply.result(60)
            running.wait_for(0)
        assert slow_server.get("/flush_cache").status_code == 200

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/pause_generation", {"mode": "softly"}),
            ("/update_weight_version", {}),
            ("/update_weights_from_disk", {}),
        ],
    )
    def test_bad_orders(self, server: Server, path: str, body: dict[str, Any]) -> None:
        assert_invalid(server.post(path, body))
