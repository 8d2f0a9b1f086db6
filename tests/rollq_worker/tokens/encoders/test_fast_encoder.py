"""The faster encoder gives the tokenizer's ids, for every character there is, or is not used."""

import json
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.tokens.encoders import MAX_LENGTH, byte_decoder, fast_encoder
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.tokens.vocabulary import Vocabulary
from tests.rollq_worker.tokens.encoders import vocabularies
from tests.rollq_worker.tokens.encoders.vocabularies import CROSSING, bundled, changed, splits
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_spec

Pair = tuple[Tokenizer, Tokenizer]
SPECS = {
    "bundled": bundled,
    "qwen": qwen_spec,
    "llama3": vocabularies.llama3,
    "deepseek": vocabularies.deepseek,
    "starcoder": vocabularies.starcoder,
    "gemma": vocabularies.gemma,
    "llama2": vocabularies.llama2,
}
AWKWARD = [
    *[" ", "  ", "\n", "\n\n\n\n", "\r\n", "\t\t\t", "'s", "1", "12345", "...", "</", "> </", "▁", "▁▁", "\u3000"],
    *["\x00", "\x85", "\u200b", "e\u0301", "世界", "こ", "・", "゛", "\u3040", "½", "²", "🙂", "aB", "ABC", "\u0378"],
    *["\x1c", "\x0b\x0c", "I'LL", "'S", "'", "don't", "$", "^_~", "\x7f", "{[(", "==>\n", "/*\r\n"],
    *["\U000f0000", "\U00040000", "qzxj", "x  y"],
]


def made(spec: bytes) -> Pair:
    """The same vocabulary with and without the faster encoder."""
    fast, exact = Tokenizer("fast", spec, {}, "x"), Tokenizer("exact", spec, {}, "x")
    assert fast.use_fast_encoder() and not exact.is_fast
    return fast, exact


@pytest.fixture(scope="module", params=SPECS.values(), ids=SPECS.keys())
def pair(request: pytest.FixtureRequest) -> Pair:
    return made(request.param())


def test_all_characters(pair: Pair):
    fast, exact = pair
    # Beyond the first two planes there are ideographs and what is not assigned: a sample will do.
    points = [chr(n) for n in (*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 61))]
    for n in range(0, len(points), 6000):
        text = "".join(f"a{char} 1{char}\n{char}" for char in points[n : n + 6000])
        assert fast.encode_plain(text) == exact.encode_plain(text)


@given(st.text(), st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text(pair: Pair, one: str, two: str):
    fast, exact = pair
    for text in (one, two, f"{one} {two}", f"{one}\n\n{two}'s"):
        assert fast.encode_plain(text) == exact.encode_plain(text)


@given(st.lists(st.sampled_from(AWKWARD), max_size=12))
def test_rows_of_awkward_characters(pair: Pair, pieces: list[str]):
    fast, exact = pair
    text = "".join(pieces)
    assert fast.encode_plain(text) == exact.encode_plain(text)


@given(st.text(alphabet=st.characters(categories=["Mn", "Mc", "Me", "Cn"]), min_size=2, max_size=8))
def test_rows_of_marks(pair: Pair, marks: str):
    """Python's tables of Unicode are of another age than the tokenizer's."""
    fast, exact = pair
    for text in (marks, f"e{marks} a", "\u2dfc\u0eba \u0352\u07fd \u1dee\u08d3 \u08ca\ufe28"):
        assert fast.encode_plain(text) == exact.encode_plain(text)


@given(st.lists(st.integers(0, 10**6), max_size=40))
def test_rows_of_tokens(pair: Pair, picks: list[int]):
    fast, exact = pair
    text = fast.decode([pick % 5000 for pick in picks])
    assert fast.encode_plain(text) == exact.encode_plain(text)


def test_texts_of_all_tokens(pair: Pair):
    fast, exact = pair
    for start in range(4001):
        ids = range(start, fast.vocab_size + 2, 4001)
        assert fast.decode(ids) == exact.decode(ids)


def test_texts_of_more_tokens_than_are_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(byte_decoder, "_KEPT", 7)
    fast, exact = pair
    for ids in (list(range(40)) * 2, [5, 3, 5], list(range(4990, 5003)), [10**7, 65, 2**31]):
        for skip_special in (False, True):
            assert fast.decode(ids, skip_special) == exact.decode(ids, skip_special)


def test_long_texts_and_halves_of_characters(pair: Pair):
    fast, exact = pair
    rows = [char * 3000 for char in (" ", "x", "X", "\n", "\x00", "1", "世", "\u0378", " \n", "a ")]
    for text in ("a b\ud800c", "word " * (MAX_LENGTH // 5 + 1), " " * MAX_LENGTH, "X" * MAX_LENGTH, *rows):
        assert fast.encode_plain(text) == exact.encode_plain(text)


def test_merges_in_another_order_than_the_ids():
    fast, exact = made(vocabularies.backwards())
    for text in (*vocabularies.TEXTS, "".join(AWKWARD), *AWKWARD):
        assert fast.encode_plain(text) == exact.encode_plain(text)


def test_a_token_with_a_space_inside():
    fast, exact = made(vocabularies.gemma())
    for text in ("<b> </b>", "> </", "x> </ </ > </", ">  </"):
        assert fast.encode_plain(text) == exact.encode_plain(text)
    assert json.loads(vocabularies.gemma())["model"]["vocab"][CROSSING] in fast.encode_plain("<b> </b>")[0]


CHANGES = {
    "a prefix space": {"pre_tokenizer": vocabularies.BYTES | {"add_prefix_space": True, "use_regex": True}},
    "no pre-tokenizer": {"pre_tokenizer": None},
    "another pre-tokenizer": {"pre_tokenizer": {"type": "Whitespace"}},
    "two splits": {"pre_tokenizer": splits("x", "x")},
    "another normaliser": {"normalizer": {"type": "Lowercase"}},
    "a pattern that matches nothing": {"pre_tokenizer": splits("(?~x)")},
    "bytes as a fallback": {"model": {"byte_fallback": True}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_other_tokenizers_keep_their_own_encoder(change: dict):
    assert not Tokenizer("x", changed(**change), {}, "x").use_fast_encoder()


def _without_its_merge(token: str) -> dict:
    merges = json.loads(bundled())["model"]["merges"]
    others = [merge for merge in merges if "".join(merge).replace(" ", "") != token]
    assert len(others) == len(merges) - 1
    return {"merges": others}


def test_a_token_that_no_merge_makes_is_never_given():
    for token in ("recent", "session", "_miller"):
        fast, exact = made(changed(model=_without_its_merge(token)))
        ids = exact.encode_plain(token)
        assert len(ids[0]) > 1 and fast.encode_plain(token) == ids


def test_a_token_that_is_only_found_whole():
    fast, exact = made(vocabularies.llama3())
    assert len(exact.encode_plain("qzxj")[0]) == 1
    for text in ("qzxj", "qzxjs xqzxj qzxjqzxj"):
        assert fast.encode_plain(text) == exact.encode_plain(text)


def test_a_token_that_is_only_found_whole_and_ends_as_two_parts_needs_the_tokenizer_itself():
    """tiktoken would merge the two, inside longer words too."""
    spec = changed(model=_without_its_merge("recent") | {"ignore_merges": True})
    assert not Tokenizer("x", spec, {}, "x").use_fast_encoder()


def test_an_encoder_that_differs_on_the_corpus_is_not_used(caplog: pytest.LogCaptureFixture):
    other = Vocabulary("x", changed(pre_tokenizer={"type": "Whitespace"}))
    slow = other._slowly()
    assert fast_encoder(bundled() + b"\n", slow.plain, slow.full, other._encode_slowly) is None
    assert "differs from this tokenizer" in caplog.text


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokenizer = Tokenizer("x", bundled() + b" ", {}, "x")
    assert not tokenizer.use_fast_encoder()
    assert tokenizer.decode(tokenizer.encode_plain("still there")[0]) == "still there"


@given(st.data())
def test_any_ids_decode_alike(pair: Pair, data: st.DataObject):
    """Also ids that do not belong together, whose bytes are no text, and ids that there are not."""
    fast, exact = pair
    ids = data.draw(st.lists(st.integers(0, exact.vocab_size + 5), max_size=40))
    for skip in (False, True):
        assert fast.decode(ids, skip) == exact.decode(ids, skip)


@given(st.data())
def test_any_text_with_added_tokens(pair: Pair, data: st.DataObject):
    fast, exact = pair
    added = st.sampled_from([*exact.added_tokens, "<", ">", "|", " ", "\n"])
    text = "".join(data.draw(st.lists(st.one_of(added, st.text(max_size=8)), max_size=12)))
    assert fast.encode(text) == exact.encode(text)


@pytest.mark.parametrize("spec", [bundled, qwen_spec, vocabularies.llama3], ids=["bundled", "qwen", "llama3"])
def test_the_tokenizer_itself_is_dropped_and_comes_back_when_it_is_needed(spec: Callable[[], bytes]):
    fast, exact = made(spec())
    assert fast._vocabulary._slow is None
    ids = exact.encode("a " + "".join(exact.added_tokens))
    assert fast.encode(fast.decode(ids)) == exact.encode(exact.decode(ids)) and fast._vocabulary._slow is None
    long = "word " * (MAX_LENGTH // 5 + 1)
    assert fast.encode_plain(long) == exact.encode_plain(long) and fast._vocabulary._slow is not None


def test_a_decoder_that_differs_is_not_used():
    fast = Tokenizer("x", changed(decoder={"type": "Fuse"}), {}, "x")
    assert fast.use_fast_encoder() and fast._vocabulary._slow is not None
    exact = Tokenizer("x", changed(decoder={"type": "Fuse"}), {}, "x")
    assert fast.decode(range(300, 400)) == exact.decode(range(300, 400))


def test_a_token_that_is_left_out_although_it_is_not_special_any_more():
    """tokenizers leaves out what was special once. Our decoder could not know, so it is not used."""
    [first, *others] = json.loads(bundled())["added_tokens"]
    spec = changed(added_tokens=[first | {"special": True}, *others, first | {"special": False}])
    fast, exact = made(spec)
    assert fast._vocabulary._slow is not None
    assert fast.decode([first["id"]], True) == exact.decode([first["id"]], True) == ""
