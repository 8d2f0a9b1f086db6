"""What was sampled, encoded again, is what the tokenizer itself makes of the text."""

import random
from array import array

import pytest

from rollq_worker.tokens.respelling import Respelling
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_tokenizer


@pytest.mark.parametrize("vocabulary", ["bundled", "qwen"])
def test_it_is_the_tokenizers_own_encoding(vocabulary: str):
    tokenizer = load_tokenizer() if vocabulary == "bundled" else qwen_tokenizer()
    respell, dice = Respelling(tokenizer), random.Random(1)
    for _ in range(300):
        ids = array("I", (dice.randrange(tokenizer.vocab_size) for _ in range(dice.randrange(1, 40))))
        assert respell(ids) == tokenizer.encode(tokenizer.decode(ids))
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'
    assert respell(tokenizer.encode(text)) == tokenizer.encode(text)


def test_another_spelling_of_the_same_text_is_found():
    tokenizer = load_tokenizer()
    ids = array("I", [id for char in "hello" for id in tokenizer.encode(char)])
    assert Respelling(tokenizer)(ids) == tokenizer.encode("hello") != ids
