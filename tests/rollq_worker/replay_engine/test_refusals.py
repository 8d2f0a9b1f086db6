"""What the replay engine refuses beyond the contract, and what of a grammar it judges."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from rollq.sampling import objection
from rollq_worker.replay_engine import made_up_logprobs
from rollq_worker.replay_engine.grammars import CHECKS, refusal
from tests.rollq_worker.engine.engine_servers import replaying

PIECES = [
    "(",
    ")",
    "[",
    "]",
    "{2}",
    "{3,1}",
    "*",
    "?",
    "|",
    "\\",
    '"',
    "root ::= ",
    "x ::=",
    "a",
    "\n",
    "#",
    "{",
    "}",
    ":",
    "é",
    "5",
]
JSON = r"""root ::= object
# as in XGrammar's own documentation
object ::= "{" ws ( member ( "," ws member )* )? "}" ws
member ::= string ":" ws value
value ::= object | "[" ws ( value ( "," ws value )* )? "]" | string | number | ("true" | "false" | "null") ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= [ \t\n]*
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with replaying() as url:
        yield url


class TestGrammars:
    @given(kind=st.sampled_from(list(CHECKS)), text=st.lists(st.sampled_from(PIECES)).map("".join) | st.text())
    def test_no_text_breaks_it(self, kind: str, text: str) -> None:
        assert isinstance(refusal(kind, text), str)

    def test_nothing_is_too_deep_or_too_long(self) -> None:
        assert refusal("json_schema", "[" * 100_000)
        assert refusal("regex", "(" * 100_000) and refusal("ebnf", "root ::= " + "(" * 100_000)
        deep = '{"properties": {"a": ' * 300 + "5" + "}}" * 300
        assert refusal("json_schema", deep) == ""  # not looked at so far down
        assert refusal("regex", f"a{{{'9' * 5000}}}")

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("ebnf", JSON),
            ("regex", r"<think>[\s\S]*?</think>\{\"name\": \"(?:look|write)\"\}"),
            (
                "json_schema",
                '{"type": "object", "properties": {"a": {"type": "array", "items": {}}}, "required": ["a"]}',
            ),
        ],
        ids=["ebnf", "regex", "json_schema"],
    )
    def test_what_people_write_is_taken(self, kind: str, text: str) -> None:
        assert refusal(kind, text) == ""

    @given(text=st.text(min_size=1) | st.sampled_from(["{", "{}", "5", "$$ANY$$", "'a'", "{} {}", '{"a": NaN}']))
    def test_a_job_is_refused_for_no_schema_that_the_engine_takes(self, text: str) -> None:
        if objection({"json_schema": text}, 10):
            assert refusal("json_schema", text)


class TestBest:
    @given(before=st.integers(0, 999), token=st.integers(0, 999), count=st.integers(1, 1000))
    def test_they_are_scored_like_all_others(self, before: int, token: int, count: int) -> None:
        best = made_up_logprobs.best(before, token, count, 1000)
        assert len({id for _, id in best}) == count and best == sorted(best, reverse=True)
        assert all(score == made_up_logprobs.logprob(before, id) and 0 <= id < 1000 for score, id in best)
        score = made_up_logprobs.logprob(before, token)
        assert (score, token) in best or score <= best[-1][0]


class TestRequests:
    @pytest.mark.parametrize(
        "body",
        [
            {"return_logprob": True, "logprob_start_len": -2},
            {"return_logprob": True, "top_logprobs_num": 10_000_000},
            {"return_logprob": True, "top_logprobs_num": [2]},
        ],
        ids=repr,
    )
    def test_what_kills_a_real_server_is_refused(self, address: str, body: dict[str, Any]) -> None:
        assert requests.post(f"{address}/generate", json={"input_ids": [1, 2], **body}, timeout=60).status_code == 400

    @pytest.mark.parametrize(
        "body",
        [
            {"return_sampling_mask": True},
            {"sampling_params": {"beam_width": 2}},
            {"sampling_params": {"watermark": {"enabled": True}}},
        ],
        ids=repr,
    )
    def test_what_it_cannot_do_is_refused(self, address: str, body: dict[str, Any]) -> None:
        answer = requests.post(f"{address}/generate", json={"input_ids": [1], **body}, timeout=60)
        assert answer.status_code == 400 and "replay engine" in answer.json()["error"]["message"]

    def test_lists_for_a_batch_have_an_entry_for_each_prompt(self, address: str) -> None:
        body = {"input_ids": [[1], [2]], "return_logprob": True, "top_logprobs_num": [1]}
        answer = requests.post(f"{address}/generate", json=body, timeout=60)
        assert answer.status_code == 400 and "top_logprobs_num" in answer.json()["error"]["message"]

    @pytest.mark.parametrize("more", [{"tools": [{}]}, {"continue_final_message": True}], ids=repr)
    def test_conversations_that_it_cannot_show(self, address: str, more: dict[str, Any]) -> None:
        body = {"messages": [{"role": "user", "content": "a"}], **more}
        answer = requests.post(f"{address}/tokenize", json=body, timeout=60)
        assert answer.status_code == 400 and "replay engine" in answer.json()["message"]
