"""POST /tokenize: the ids of texts and of conversations, which show which tokenizer a server has."""

from typing import Any

import pytest

from tests.contract.conftest import Server
from tests.contract.refusal_shapes import assert_body_refused

TURNS = [{"role": "user", "content": "Where is my order?"}, {"role": "assistant", "content": "On its way."}]


def tokens_of(server: Server, **body: Any) -> Any:
    answer = server.post("/tokenize", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert set(found) == {"tokens", "count", "max_model_len"} and found["max_model_len"] > 0
    tokens, count = found["tokens"], found["count"]
    assert count == (list(map(len, tokens)) if isinstance(count, list) else len(tokens))
    return tokens


@pytest.mark.parametrize("text", ["hi there", "", "<|im_start|>user\n你好 — 12.5 🙂<|im_end|>\n", " a\n\n\tb "])
def test_a_text(server: Server, text: str) -> None:
    ours = list(server.tokenizer.encode(text))
    assert tokens_of(server, prompt=text) == ours
    assert tokens_of(server, prompt=text, add_special_tokens=False, model="any", more=1) == ours
    assert tokens_of(server, prompt=[text, "a", text]) == [ours, list(server.tokenizer.encode("a")), ours]
    assert server.post("/v1/tokenize", {"prompt": text}).json()["tokens"] == ours


def test_no_texts(server: Server) -> None:
    assert tokens_of(server, prompt=[]) == []


def test_a_conversation(server: Server) -> None:
    def rendered(turns: list[dict[str, str]], opens: bool) -> list[int]:
        return list(server.tokenizer.encode(server.tokenizer.render(turns, add_generation_prompt=opens)))

    asked = [*TURNS, {"role": "user", "content": "Thank you."}]
    assert tokens_of(server, messages=asked) == rendered(asked, True)
    assert tokens_of(server, messages=TURNS, add_generation_prompt=True) == rendered(TURNS, True)
    assert tokens_of(server, messages=TURNS, add_generation_prompt=False) == rendered(TURNS, False)
    parts = [{"type": "text", "text": "Thank"}, {"type": "text", "text": "you."}]
    assert tokens_of(server, messages=[*TURNS, {"role": "user", "content": parts}]) == rendered(asked, True)


def test_a_conversation_that_ends_with_an_answer_is_taken_for_a_question(server: Server) -> None:
    asked = [TURNS[0], {"role": "user", "content": TURNS[1]["content"]}]
    assert tokens_of(server, messages=TURNS) == tokens_of(server, messages=asked)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": 5},
        {"prompt": ["a", 5]},
        {"prompt": "a", "messages": TURNS},
        {"messages": "a"},
        {"messages": [{"role": "nobody", "content": "a"}]},
        {"prompt": "a", "add_special_tokens": "x"},
        [1],
    ],
    ids=repr,
)
def test_a_wrong_body_is_refused(server: Server, body: object) -> None:
    assert_body_refused(server.post("/tokenize", body))


def test_an_empty_conversation(server: Server) -> None:
    answer = server.post("/tokenize", {"messages": []})
    body = {"object": "error", "message": "Messages cannot be empty.", "type": "BadRequestError"}
    assert (answer.status_code, answer.json()) == (400, {**body, "param": None, "code": 400})
