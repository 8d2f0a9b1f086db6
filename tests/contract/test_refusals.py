"""What a server refuses, and how: the same on a real SGLang server and on the replay engine."""

from typing import Any

import pytest
import requests

from rollq.sampling import objection
from tests.contract.conftest import Server
from tests.contract.refusal_shapes import assert_body_refused, value_refusal

SHORT = {"max_new_tokens": 2}
JSON = {"Content-Type": "application/json"}


def ask(server: Server, sampling: dict[str, Any], **body: Any) -> requests.Response:
    return server.post(
        "/generate",
        {"input_ids": server.prompt(), "sampling_params": {**SHORT, **sampling}, **body},
    )


class TestSamplingParameters:
    @pytest.mark.parametrize(
        "sampling",
        [
            {"max_tokens": 5},
            {"stop_token_ids": ["a"]},
            {"stop": 5},
            {"ignore_eos": "yes"},
            {"logit_bias": {"5": "a"}},
            {"json_schema": {"type": "object"}},
            {"temperature": -1},
            {"top_p": 3},
            {"min_p": 2},
            {"top_k": 0},
            {"min_new_tokens": 5},
            {"min_new_tokens": -1},
            {"frequency_penalty": -2.1},
            {"presence_penalty": 3},
            {"repetition_penalty": 0},
            {"repetition_penalty": 2.1},
            {"sampling_seed": 2**63},
            {"stop": ["a"] * 33},
            {"stop_regex": ["a"] * 33},
            {"stop_regex": "a" * 257},
            {"stop_regex": ["a", "é" * 129]},
            {"logit_bias": {"a": 1}},
            {"logit_bias": {"-1": 1}},
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_what_it_refuses_no_job_can_have(
        self, server: Server, sampling: dict[str, Any]
    ) -> None:
        [name] = sampling
        assert objection(sampling, SHORT["max_new_tokens"])
        answer = ask(server, sampling)
        assert answer.status_code == 400 and (name in answer.text or "invalid" in answer.text)

    @pytest.mark.parametrize(
        "sampling",
        [
            {"stop": [f"no{i}" for i in range(32)]},
            {"stop_regex": "(?P<a>q)(?P=a)zz"},
            {"frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 2},
            {"sampling_seed": 2**63 - 1},
            {"top_k": -1},
            {"regex": "(yes|no)"},
            {"json_schema": '{"type": "object", "required": ["a"]}'},
            {"ebnf": 'root ::= "yes" | "no"'},
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_what_a_job_can_have_it_takes(self, server: Server, sampling: dict[str, Any]) -> None:
        assert not objection(sampling, SHORT["max_new_tokens"])
        assert ask(server, sampling).status_code == 200

    def test_a_turn_of_less_than_no_tokens(self, server: Server) -> None:
        assert "max_new_tokens" in value_refusal(ask(server, {"max_new_tokens": -1}))


class TestBody:
    @pytest.mark.parametrize(
        "body",
        [
            {"input_ids": "abc"},
            {"input_ids": [1.5, 2]},
            {"text": 5},
            {"input_ids": [1, 2], "rid": 5},
            {"input_ids": [1, 2], "sampling_params": "x"},
            [1],
        ],
        ids=repr,
    )
    def test_a_wrong_type(self, server: Server, body: object) -> None:
        assert_body_refused(server.post("/generate", body))

    @pytest.mark.parametrize(
        "path",
        ["/generate", "/tokenize", "/abort_request", "/pause_generation", "/continue_generation"],
    )
    def test_no_json(self, server: Server, path: str) -> None:
        assert_body_refused(requests.post(server.url + path, data="{", headers=JSON, timeout=10))

    def test_no_prompt(self, server: Server) -> None:
        assert "input_ids" in value_refusal(server.post("/generate", {"sampling_params": {}}))
        assert "empty" in value_refusal(server.post("/generate", {"input_ids": []}))

    def test_too_long(self, server: Server) -> None:
        info = server.get("/server_info").json()
        context, longest = info["context_length"], info["max_req_input_len"]
        token = server.prompt()[1]

        def refusal(length: int, new: int) -> str:
            body = {"input_ids": [token] * length, "sampling_params": {"max_new_tokens": new}}
            return value_refusal(server.post("/generate", body))

        assert f"longer than the model's context length ({context} tokens)" in refusal(context, 1)
        assert f"maximum context length of {context} tokens" in refusal(context - 100, 101)
        assert f"maximum allowed length ({longest} tokens)" in refusal(longest, 1)

    def test_an_unknown_path_and_a_wrong_method(self, server: Server) -> None:
        unknown, wrong = server.get("/no/such/path"), server.get("/generate")
        assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})
        assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})
