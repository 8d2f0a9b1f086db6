"""Whether an engine's vocabulary is ours: every token is touched, and only what changes a text's
meaning counts.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rollq_worker.engine.limits import TokenizerCheck
from rollq_worker.engine.vocabulary_proof import TOKENS_A_TEXT, VocabularyProof
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer

SPEC = (BUNDLED / "tokenizer.json").read_bytes()
OURS = load_tokenizer()
PROOF = VocabularyProof(OURS)


def tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer("theirs", json.dumps({**json.loads(SPEC), **changes}).encode(), {}, "")


def difference(theirs: Tokenizer, start: Any = ()) -> str:
    check = TokenizerCheck(lambda text: {"tokens": [*start, *theirs.encode(text)]}, PROOF)
    check.differs()
    assert check.shows_ids
    return check.difference


def with_vocabulary(vocabulary: Mapping[str, int]) -> Tokenizer:
    return tokenizer(model={**json.loads(SPEC)["model"], "vocab": dict(vocabulary)})


def test_every_token_is_touched_but_those_that_no_text_has_alone():
    touched = {id for _, ids in PROOF.texts for id in ids}
    left = [OURS.decode([id]) for id in range(OURS.vocab_size) if id not in touched]
    assert all("\ufffd" in text for text in left) and len(left) < 256
    assert PROOF.touched == len(touched)
    assert all(len(ids) < 3 * TOKENS_A_TEXT for _, ids in PROOF.texts)


def test_the_same_vocabulary_with_tokens_that_begin_a_text():
    assert difference(OURS) == difference(OURS, [OURS.added_tokens["<|im_end|>"]]) == ""


@pytest.mark.parametrize("pair", [("he", "name"), ("\u0120the", "\u0120order"), ("}", "]")])
def test_two_ids_exchanged(pair: tuple[str, str]):
    one, other = pair
    vocabulary = json.loads(SPEC)["model"]["vocab"]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    found = difference(with_vocabulary(vocabulary))
    here, there = sorted([vocabulary[one], vocabulary[other]])
    assert found in [
        f"{OURS.decode([a])!r} is [{a}] here and [{b}] there"
        for a, b in ((here, there), (there, here))
    ]


def test_another_order_of_merges_spells_the_same_texts():
    model = json.loads(SPEC)["model"]
    theirs = tokenizer(
        model={**model, "merges": model["merges"][:2000] + model["merges"][2000:][::-1]}
    )
    assert any(theirs.encode(text) != ids for text, ids in PROOF.texts)
    assert difference(theirs) == ""


def test_control_tokens_are_all_known_or_all_text():
    added = json.loads(SPEC)["added_tokens"]
    last = added[-1]
    says = f"{last['content']!r} is [{last['id']}] here and no token there"
    assert difference(tokenizer(added_tokens=added[:-1])) == says
    assert difference(tokenizer(added_tokens=[])) == ""


def test_an_engine_that_came_back_is_asked_for_two_texts():
    asked: list[str] = []

    def tokenize(text: str) -> object:
        asked.append(text)
        return {"tokens": OURS.encode(text).tolist()}

    check = TokenizerCheck(tokenize, PROOF)
    assert not check.differs() and len(asked) == len(PROOF.texts)
    check.forget()
    assert not check.differs() and asked[len(PROOF.texts) :] == [
        text for text, _ in PROOF.texts[:2]
    ]
