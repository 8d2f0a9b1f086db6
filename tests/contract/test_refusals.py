"""What a server refuses, and how: the same on a real SGLang server and on the replay engine."""

import json
from typing import Any

import pytest
import requests

from tests.contract.conftest import Server
from tests.contract.refusal_shapes import assert_body_refused, type_refusal, value_refusal

SHORT = {"max_new_tokens": 2}
JSON = {"Content-Type": "application/json"}


def ask(server: Server, sampling: dict[str, Any], **body: Any) -> requests.Response:
    return server.post("/generate", {"input_ids": server.prompt(), "sampling_params": {**SHORT, **sampling}, **body})


class TestSamplingParameters:
    def test_an_unknown_one(self, server: Server) -> None:
        message = type_refusal(ask(server, {"max_tokens": 5}))
        assert message.startswith("unknown field `max_tokens`, expected one of `max_new_tokens`")

    @pytest.mark.parametrize(
        "sampling",
        [
            {"max_new_tokens": "5"},
            {"stop_token_ids": ["a"]},
            {"stop": 5},
            {"ignore_eos": "yes"},
            {"logit_bias": {"5": "a"}},
            {"json_schema": {"type": "object"}},
        ],
        ids=repr,
    )
    def test_a_wrong_type(self, server: Server, sampling: dict[str, Any]) -> None:
        assert type_refusal(ask(server, sampling)).startswith("invalid type: ")

    @pytest.mark.parametrize(
        ("sampling", "message"),
        [
            ({"max_new_tokens": -1}, "max_new_tokens"),
            ({"temperature": -1}, "temperature"),
            ({"top_p": 3}, "top_p"),
            ({"min_p": 2}, "min_p"),
            ({"top_k": 0}, "top_k"),
            ({"repetition_penalty": 0}, "repetition_penalty"),
            ({"min_new_tokens": 5}, "min_new_tokens"),
            ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1."),
            ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2], got 3."),
            ({"repetition_penalty": 2.1}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 2.1."),
            ({"min_new_tokens": -1}, "min_new_tokens must be in [0, max_new_tokens], got -1."),
            ({"sampling_seed": 2**63}, f"sampling_seed must be in [-2**63, 2**63 - 1], got {2**63}."),
            ({"stop": ["a"] * 33}, "at most 32 stop strings are allowed, got 33"),
            ({"stop_regex": ["a"] * 33}, "at most 32 stop_regex patterns are allowed, got 33"),
            ({"stop_regex": "a" * 257}, "stop_regex is 257 bytes, over the 256-byte limit"),
            ({"stop_regex": ["a", "é" * 129]}, "stop_regex is 258 bytes, over the 256-byte limit"),
            ({"logit_bias": {"a": 1}}, "invalid literal for int() with base 10: 'a'"),
            ({"logit_bias": {"10000000": 1}}, "logit_bias must has keys in [0, "),
            ({"logit_bias": {"-1": 1}}, "logit_bias must has keys in [0, "),
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_a_value_out_of_range_is_named(self, server: Server, sampling: dict[str, Any], message: str) -> None:
        assert value_refusal(ask(server, sampling)).startswith(message)

    @pytest.mark.parametrize(
        "sampling",
        [
            {"stop": [f"no{i}" for i in range(32)]},
            {"stop_regex": "(?P<a>q)(?P=a)zz"},
            {"frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 2},
            {"sampling_seed": -1},
            {"top_k": -1},
            {"regex": "(yes|no)"},
            {"json_schema": '{"type": "object", "required": ["a"]}'},
            {"ebnf": 'root ::= "yes" | "no"'},
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_a_value_within_its_range(self, server: Server, sampling: dict[str, Any]) -> None:
        assert ask(server, sampling).status_code == 200

    def test_a_stop_pattern_that_does_not_compile(self, server: Server) -> None:
        answer = ask(server, {"stop_regex": "("})
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")


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
        "path", ["/generate", "/tokenize", "/abort_request", "/pause_generation", "/continue_generation"]
    )
    def test_no_json(self, server: Server, path: str) -> None:
        assert_body_refused(requests.post(server.url + path, data="{", headers=JSON, timeout=10))
        assert_body_refused(requests.post(server.url + path, timeout=10))

    def test_no_prompt(self, server: Server) -> None:
        assert "input_ids" in value_refusal(server.post("/generate", {"sampling_params": {}}))
        assert "empty" in value_refusal(server.post("/generate", {"input_ids": []}))

    def test_nothing_is_asked_for(self, server: Server) -> None:
        nothing = {"stream": False, "lora_path": None, "session_params": None, "return_hidden_states": False}
        assert ask(server, {}, **nothing).status_code == 200

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


class TestContentType:
    def send(self, server: Server, kind: str, path: str = "/generate") -> requests.Response:
        valid = {"/generate": {"input_ids": server.prompt(), "sampling_params": SHORT}}
        body = valid.get(path, {"prompt": "a", "mode": "in_place"})
        headers = {"Content-Type": kind}
        return requests.post(server.url + path, data=json.dumps(body), headers=headers, timeout=60)

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "text/json", ""])
    def test_another_type_is_refused(self, server: Server, kind: str) -> None:
        assert_body_refused(self.send(server, kind))

    @pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json"])
    def test_json_under_any_of_its_names(self, server: Server, kind: str) -> None:
        assert self.send(server, kind).status_code == 200

    def test_on_every_path(self, server: Server) -> None:
        for path in ("/abort_request", "/pause_generation", "/continue_generation", "/update_weight_version"):
            assert_body_refused(self.send(server, "text/plain", path))
        for path in ("/tokenize", "/v1/chat/completions"):
            assert_body_refused(self.send(server, "text/plain", path))
            assert_body_refused(self.send(server, "application/vnd.api+json", path))
        assert server.get("/ready").status_code == 200
