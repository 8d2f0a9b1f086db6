"""POST /tokenize: the ids of a text, which show which tokenizer a server has."""

import pytest

from tests.contract.conftest import Server
from tests.contract.refusal_shapes import assert_body_refused


@pytest.mark.parametrize(
    "text", ["hi there", "", "<|im_start|>user\n你好 — 12.5 🙂<|im_end|>\n", " a\n\n\tb "]
)
def test_a_text(server: Server, text: str) -> None:
    found = server.post("/tokenize", {"prompt": text}).json()
    ours = list(server.tokenizer.encode(text))
    assert (found["tokens"], found["count"]) == (ours, len(ours)) and found["max_model_len"] > 0


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": 5}, [1]], ids=repr)
def test_a_wrong_body_is_refused(server: Server, body: object) -> None:
    assert_body_refused(server.post("/tokenize", body))
