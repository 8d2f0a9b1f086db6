"""What a server refuses, and how: the same on the real one and on the replay engine."""

import json
from typing import Any

import pytest
import requests

from tests.contract.conftest import Server
from tests.contract.errors import assert_invalid, error_of

SHORT = {"max_new_tokens": 2}
PAIR = ("regex", "json_schema", "ebnf", "structural_tag")


def ask(server: Server, sampling: dict[str, Any], **body: Any) -> requests.Response:
    return server.post("/generate", {"input_ids": server.prompt(), "sampling_params": {**SHORT, **sampling}, **body})


class TestRefusals:
    def test_an_unknown_sampling_parameter(self, server: Server) -> None:
        answer = server.post("/generate", {"input_ids": server.prompt(), "sampling_params": {"max_tokens": 5}})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("unknown field `max_tokens`, expected one of `max_new_tokens`")

    @pytest.mark.parametrize(
        "sampling",
        [
            {"max_new_tokens": "5"},
            {"temperature": "hot"},
            {"stop_token_ids": ["a"]},
            {"stop": 5},
            {"ignore_eos": "yes"},
        ],
        ids=repr,
    )
    def test_a_wrong_type_in_the_sampling_parameters(self, server: Server, sampling: dict[str, Any]) -> None:
        answer = server.post("/generate", {"input_ids": server.prompt(), "sampling_params": sampling})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("invalid type: ")

    @pytest.mark.parametrize(
        "sampling",
        [
            {"max_new_tokens": -1},
            {"temperature": -1},
            {"top_p": 3},
            {"min_p": 2},
            {"top_k": 0},
            {"repetition_penalty": 0},
            {"max_new_tokens": 2, "min_new_tokens": 5},
        ],
        ids=repr,
    )
    def test_a_value_out_of_range(self, server: Server, sampling: dict[str, Any]) -> None:
        answer = server.post("/generate", {"input_ids": server.prompt(), "sampling_params": sampling})
        assert next(reversed(sampling)) in error_of(answer)

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
    def test_a_wrong_type_in_the_body(self, server: Server, body: object) -> None:
        assert_invalid(server.post("/generate", body))

    def test_no_json(self, server: Server) -> None:
        for path in ("/generate", "/abort_request", "/pause_generation", "/continue_generation"):
            headers = {"Content-Type": "application/json"}
            assert_invalid(requests.post(server.url + path, data="{", headers=headers, timeout=10))
            assert_invalid(requests.post(server.url + path, timeout=10))

    def test_no_prompt(self, server: Server) -> None:
        assert "input_ids" in error_of(server.post("/generate", {"sampling_params": {}}))
        assert "empty" in error_of(server.post("/generate", {"input_ids": []}))

    def test_too_long(self, server: Server) -> None:
        info = server.get("/server_info").json()
        context, longest = info["context_length"], info["max_req_input_len"]
        token = server.prompt()[1]

        def refusal(length: int, new: int) -> str:
            body = {"input_ids": [token] * length, "sampling_params": {"max_new_tokens": new}}
            return error_of(server.post("/generate", body))

        assert f"longer than the model's context length ({context} tokens)" in refusal(context, 1)
        assert f"maximum context length of {context} tokens" in refusal(context - 100, 101)
        assert f"maximum allowed length ({longest} tokens)" in refusal(longest, 1)

    def test_an_unknown_path_and_a_wrong_method(self, server: Server) -> None:
        answer = server.get("/no/such/path")
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
        assert (server.get("/generate").status_code, server.get("/generate").json()) == (
            405,
            {"detail": "Method Not Allowed"},
        )


class TestValues:
    @pytest.mark.parametrize(
        ("sampling", "message"),
        [
            ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1."),
            ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2], got 3."),
            ({"repetition_penalty": 2.1}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 2.1."),
            ({"min_new_tokens": -1}, "min_new_tokens must be in [0, max_new_tokens], got -1."),
            ({"sampling_seed": 2**63}, f"sampling_seed must be in [-2**63, 2**63 - 1], got {2**63}."),
            ({"beam_width": 0}, "beam_width must be at least 1, got 0."),
            ({"stop": ["a"] * 33}, "at most 32 stop strings are allowed, got 33"),
            ({"stop_regex": ["a"] * 33}, "at most 32 stop_regex patterns are allowed, got 33"),
            ({"stop_regex": "a" * 257}, "stop_regex is 257 bytes, over the 256-byte limit"),
            ({"stop_regex": ["a", "é" * 129]}, "stop_regex is 258 bytes, over the 256-byte limit"),
            ({"logit_bias": {"a": 1}}, "invalid literal for int() with base 10: 'a'"),
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_a_value_out_of_range_is_named(self, server: Server, sampling: dict[str, Any], message: str) -> None:
        assert error_of(ask(server, sampling)) == message

    def test_a_bias_for_what_is_no_token(self, server: Server) -> None:
        for token in ("10000000", "-1"):
            assert "logit_bias must has keys in [0, " in error_of(ask(server, {"logit_bias": {token: 1}}))
        assert ask(server, {"logit_bias": {"5": "a"}}).json()["error"].startswith("invalid type: ")

    @pytest.mark.parametrize(
        "sampling",
        [
            {"stop": [f"no{i}" for i in range(32)]},
            {"stop_regex": "(?P<a>q)(?P=a)zz"},
            {"frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 2},
            {"sampling_seed": -1},
            {"top_k": -1, "n": 1, "beam_width": 1},
            {"custom_params": {"a": [1, 2]}},
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_what_is_just_within(self, server: Server, sampling: dict[str, Any]) -> None:
        assert ask(server, sampling).status_code == 200

    def test_a_stop_pattern_that_is_none_is_not_expected(self, server: Server) -> None:
        answer = ask(server, {"stop_regex": "("})
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")


class TestGrammars:
    @pytest.mark.parametrize(
        ("kind", "grammar"),
        [
            *(("regex", text) for text in ("(", "a)", "[a", "[]", "*a", "a**", "a{3,1}", "{", "\\")),
            *(("regex", text) for text in ("(?=a)b", "(?P<x>a)", r"(a)\1", r"a\b", r"\p{L}", "(?i)a", "[b-a]", "a\0")),
            *(("json_schema", text) for text in ("{bad", "x", "5", "null", "[]", "false", '{"a": NaN}', "{} x")),
            *(("json_schema", text) for text in ('{"type": "bogus"}', '{"not": {}}', '{"properties": {"a": 5}}')),
            *(("json_schema", text) for text in ('{"type": "object", "properties": 5}',)),
            *(
                ("ebnf", text)
                for text in ("root ::= (", "root", "root ::= ", 'x ::= "a"', 'root ::= "a', "root ::= [a")
            ),
            *(("ebnf", text) for text in ('root ::= "a" |', 'root ::= "a")', "root ::= nope", "root: a", "root ::= *")),
            *(("ebnf", text) for text in ('root ::= "a"\nroot ::= "b"', "root ::= 'a'", 'x ::= "b" root ::= x')),
            *(("structural_tag", text) for text in ("{", "{}", "5", "null", '{"structures": [], "triggers": []}')),
        ],
    )
    def test_a_grammar_that_is_none(self, server: Server, kind: str, grammar: str) -> None:
        message = error_of(ask(server, {kind: grammar}))
        assert message.startswith(f"Failed to compile {kind.removesuffix('_schema')} grammar: ")

    @pytest.mark.parametrize(
        ("kind", "grammar"),
        [
            *(
                ("regex", text)
                for text in ("a|", "]", "(?<n>a)", r"\q\z", r"\u{41}", "[^]", r"[\d-z]", "a*?b", "[[:a:]]")
            ),
            *(("json_schema", text) for text in ("true", "{}", "$$ANY$$", '{"type": ["string", "null"]}')),
            *(("json_schema", text) for text in ('{"type": "object", "required": ["a"]}', '{"pattern": "("}')),
            *(("ebnf", text) for text in ('root::="a"', '# (\nroot ::= "("', 'x ::= [(]\nroot ::=\n x | ("b"\n)')),
            *(("ebnf", text) for text in ('root ::= "a" (= "b")', 'root ::= TagDispatch(("a", x))\nx ::= "b"')),
            ("structural_tag", '{"type": "structural_tag", "format": {"type": "any_text"}}'),
            *((kind, "") for kind in PAIR),
        ],
    )
    def test_a_grammar_that_is_one(self, server: Server, kind: str, grammar: str) -> None:
        assert ask(server, {kind: grammar}).status_code == 200

    def test_one_grammar_at_a_time(self, server: Server) -> None:
        only = "Only one of json_schema, regex, ebnf, or structural_tag can be set."
        for other in PAIR[1:]:
            assert error_of(ask(server, {"regex": "a", other: "{"})) == only
        assert ask(server, {"regex": "a", "ebnf": ""}).status_code == 200

    def test_one_bad_prompt_of_a_batch_fails_it(self, server: Server) -> None:
        prompt = server.prompt()
        body = {"input_ids": [prompt, prompt], "sampling_params": [{**SHORT, "regex": "("}, SHORT]}
        assert "regex grammar" in error_of(server.post("/generate", body))


class TestFeatures:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"lora_path": "x"}, "LoRA adapter 'x' was requested, but LoRA is not enabled. "),
            ({"lora_path": ["x"]}, "LoRA adapter 'x' was requested, but LoRA is not enabled. "),
            ({"lora_path": [None]}, "LoRA adapter 'None' was requested, but LoRA is not enabled. "),
            ({"routed_dp_rank": 7}, "routed_dp_rank=7 out of range [0, 1)"),
            ({"routed_dp_rank": -1}, "routed_dp_rank=-1 out of range [0, 1)"),
            ({"data_parallel_rank": 3}, "routed_dp_rank=3 out of range [0, 1)"),
            ({"session_params": {"id": "zz"}}, "Invalid request: session id zz does not exist"),
            ({"session_id": "a", "session_params": {}}, "session_id and session_params cannot both be set."),
            ({"custom_logit_processor": "x"}, "The server is not configured to enable custom logit processor. "),
            ({"return_hidden_states": True}, "The server is not configured to return hidden states."),
            ({"max_thinking_tokens": 5}, "max_thinking_tokens requires the server to be launched with "),
        ],
        ids=repr,
    )
    def test_what_the_server_was_not_started_for(self, server: Server, body: dict[str, Any], message: str) -> None:
        assert error_of(ask(server, {}, **body)).startswith(message)

    @pytest.mark.parametrize(
        "body",
        [
            {"lora_path": 5},
            {"routed_dp_rank": 1.5},
            {"session_params": 5},
            {"session_id": 5},
            {"custom_logit_processor": 5},
        ],
        ids=repr,
    )
    def test_a_wrong_type(self, server: Server, body: dict[str, Any]) -> None:
        assert_invalid(ask(server, {}, **body))

    @pytest.mark.parametrize(
        "body",
        [
            {"lora_path": ""},
            {"routed_dp_rank": 0},
            {"session_params": {}},
            {"session_id": "a"},
            {"custom_logit_processor": ""},
            {"no_such_field": 1},
        ],
        ids=repr,
    )
    def test_what_asks_for_nothing(self, server: Server, body: dict[str, Any]) -> None:
        assert ask(server, {}, **body).status_code == 200

    @pytest.mark.parametrize(
        "body", [{"rid": ["a"]}, {"sampling_params": [{}]}, {"session_params": {"no": 1}}], ids=repr
    )
    def test_what_is_not_expected(self, server: Server, body: dict[str, Any]) -> None:
        answer = ask(server, {}, **body)
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")


class TestContentType:
    def send(self, server: Server, kind: str, path: str = "/generate") -> requests.Response:
        body = {"input_ids": server.prompt(), "sampling_params": SHORT, "prompt": "a", "mode": "in_place"}
        headers = {"Content-Type": kind}
        return requests.post(server.url + path, data=json.dumps(body), headers=headers, timeout=60)

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "text/json", ""])
    def test_what_is_not_called_json_is_none(self, server: Server, kind: str) -> None:
        assert_invalid(self.send(server, kind))

    @pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json"])
    def test_what_is_called_json(self, server: Server, kind: str) -> None:
        assert self.send(server, kind).status_code == 200

    def test_on_every_path(self, server: Server) -> None:
        for path in ("/abort_request", "/pause_generation", "/continue_generation", "/update_weight_version"):
            assert_invalid(self.send(server, "text/plain", path))
        for path in ("/tokenize", "/v1/chat/completions"):
            assert_invalid(self.send(server, "text/plain", path))
            assert_invalid(self.send(server, "application/vnd.api+json", path))
        assert server.get("/ready").status_code == 200
