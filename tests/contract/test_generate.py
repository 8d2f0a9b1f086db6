"""POST /generate: what rollq relies on in a reply, the same on a real SGLang server and on the
replay engine.
"""

import math

import pytest

from rollq_worker.engine.detection import FoundServer
from rollq_worker.engine.exchange.generate import probe
from rollq_worker.engine.exchange.http import EngineHttp
from rollq_worker.engine.vocabulary_proof import TEST_TEXT
from tests.contract.conftest import Server, spans_of
from tests.contract.refusal_shapes import value_refusal

GREEDY = {"temperature": 0}


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
        assert all(
            math.isfinite(entry[0]) and entry[0] <= 0 and entry[2] is None for entry in entries
        )
        assert reply["meta_info"]["input_token_logprobs"] == []

    def test_without_logprobs(self, server: Server) -> None:
        reply = server.generate(
            server.prompt(), return_logprob=False, sampling_params={"max_new_tokens": 3}
        )
        assert len(reply["output_ids"]) == 3
        assert "output_token_logprobs" not in reply["meta_info"]

    def test_a_turn_that_is_cut_by_its_length_has_no_stop_token(self, server: Server) -> None:
        reply = server.generate(server.prompt(), sampling_params={"max_new_tokens": 2})
        assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
        assert len(reply["output_ids"]) == 2

    def test_ignore_eos_samples_up_to_the_length(self, server: Server) -> None:
        sampling = {"max_new_tokens": 90, "ignore_eos": True, "stop_token_ids": server.prompt()[:1]}
        reply = server.generate(server.prompt(), sampling_params=sampling)
        assert len(reply["output_ids"]) == 90
        assert reply["meta_info"]["finish_reason"]["type"] == "length"

    def test_the_default_length(self, server: Server) -> None:
        reply = server.generate(server.prompt(), sampling_params={"ignore_eos": True})
        assert len(reply["output_ids"]) == 128

    @pytest.mark.parametrize("room", [2, 0])
    def test_the_requests_own_stop_token_ends_the_turn_and_is_kept(
        self, server: Server, room: int
    ) -> None:
        first = server.generate(server.prompt(), sampling_params={**GREEDY, "max_new_tokens": 6})[
            "output_ids"
        ]
        stop = first[3]
        ids = first[: first.index(stop) + 1]
        sampling = {**GREEDY, "max_new_tokens": len(ids) + room, "stop_token_ids": [stop]}
        reply = server.generate(server.prompt(), sampling_params=sampling)
        assert reply["output_ids"] == ids
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

    def test_a_prompt_may_be_a_text(self, server: Server) -> None:
        prompt, sampling = server.prompt(), {**GREEDY, "max_new_tokens": 5}
        by_ids = server.generate(prompt, sampling_params=sampling)
        body = {"text": server.tokenizer.decode(prompt), "sampling_params": sampling}
        by_text = server.post("/generate", body).json()
        assert by_text["output_ids"] == by_ids["output_ids"]
        assert by_text["meta_info"]["prompt_tokens"] == len(prompt)

    def test_three_turns_extend_each_other_id_for_id(self, server: Server) -> None:
        """Sampled ids are sent back as they are, followed by a bridge; the server finds the prefix
        in its cache.
        """
        ids = server.prompt()
        bridge = list(
            server.tokenizer.encode(
                "\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
            )
        )
        end = server.tokenizer.added_tokens["<|im_end|>"]
        for turn in range(3):
            reply = server.generate(
                ids, sampling_params={"max_new_tokens": 40, "stop_token_ids": [end]}
            )
            assert reply["meta_info"]["prompt_tokens"] == len(ids)
            if turn:
                assert reply["meta_info"]["cached_tokens"] > 0
            said = reply["output_ids"]
            ids = [*ids, *said, *([] if said[-1] == end else [end]), *bridge]


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

    def test_scoring_from_a_token_on(self, server: Server) -> None:
        prompt = server.prompt()
        reply = server.generate(prompt, logprob_start_len=3, sampling_params={"max_new_tokens": 1})
        entries = reply["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in entries] == prompt[3:]
        assert entries[0][0] is None

    def test_scoring_behind_the_prompt_is_refused(self, server: Server) -> None:
        body = {"input_ids": server.prompt(), "return_logprob": True, "logprob_start_len": 1000}
        assert "logprob_start_len" in value_refusal(server.post("/generate", body))
        assert server.post("/generate", {**body, "return_logprob": False}).status_code == 200

    def test_scoring_again_gives_what_sampling_gave(self, server: Server) -> None:
        prompt = server.prompt()
        reply = server.generate(prompt, sampling_params={"max_new_tokens": 30})
        ids = reply["output_ids"]
        again = server.generate(
            prompt + ids, logprob_start_len=len(prompt) - 1, sampling_params={"max_new_tokens": 0}
        )
        sampled = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        scored = [entry[0] for entry in again["meta_info"]["input_token_logprobs"][1:]]
        assert scored == pytest.approx(sampled, abs=0.1)  # bfloat16

    def test_the_best_tokens_of_a_place(self, server: Server) -> None:
        prompt, sampling = server.prompt(), {"max_new_tokens": 0}
        body = {"logprob_start_len": 2, "sampling_params": sampling}
        assert "input_top_logprobs" not in server.generate(prompt, **body)["meta_info"]
        meta = server.generate(prompt, top_logprobs_num=3, **body)["meta_info"]
        nothing, *rows = meta["input_top_logprobs"]
        assert nothing is None
        for row, (score, token, _) in zip(rows, meta["input_token_logprobs"][1:], strict=True):
            scores = [entry[0] for entry in row]
            assert len({entry[1] for entry in row}) == 3 and scores == sorted(scores, reverse=True)
            assert {entry[1]: entry[0] for entry in row}.get(token, score) == score <= scores[0]
            assert token in {entry[1] for entry in row} or score <= scores[-1]


def test_a_worker_that_starts_takes_it_for_an_sglang_server(server: Server) -> None:
    http = EngineHttp(server.url)
    try:
        assert probe(FoundServer(http).now, http, server.tokenizer.encode(TEST_TEXT)) == ""
    finally:
        http.close()
