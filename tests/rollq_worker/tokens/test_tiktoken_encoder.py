"""The faster encoder gives the tokenizer's ids, for every character there is, or is not used."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.tokens import tiktoken_encoder
from rollq_worker.tokens.tiktoken_encoder import MAX_LENGTH, fast_encoder
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer, load_tokenizer
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_spec


def bundled_spec() -> bytes:
    return (BUNDLED / "tokenizer.json").read_bytes()


SPEC = json.loads(bundled_spec())


@pytest.fixture(scope="module", params=[bundled_spec, qwen_spec], ids=["bundled", "qwen"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Tokenizer]:
    """The same vocabulary with and without the faster encoder."""
    fast, exact = Tokenizer("fast", request.param(), {}, "x"), Tokenizer("exact", request.param(), {}, "x")
    assert fast.use_fast_encoder() and exact._fast is None
    return fast, exact


def test_all_characters(pair: tuple[Tokenizer, Tokenizer]):
    fast, exact = pair
    # Beyond the first two planes there are ideographs and what is not assigned: a sample will do.
    points = [chr(n) for n in (*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 61))]
    for n in range(0, len(points), 6000):
        text = "".join(f"a{char} 1{char}" for char in points[n : n + 6000])
        assert fast.encode_plain(text) == exact.encode_plain(text)


@given(st.text(), st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text(pair: tuple[Tokenizer, Tokenizer], one: str, two: str):
    fast, exact = pair
    for text in (one, two, f"{one} {two}", f"{one}\n\n{two}'s"):
        assert fast.encode_plain(text) == exact.encode_plain(text)


@given(st.text(alphabet=st.characters(categories=["Mn", "Mc", "Me", "Cn"]), min_size=2, max_size=8))
def test_rows_of_marks(pair: tuple[Tokenizer, Tokenizer], marks: str):
    """Python's tables of Unicode are of another age than the tokenizer's."""
    fast, exact = pair
    for text in (marks, f"e{marks} a", "\u2dfc\u0eba \u0352\u07fd \u1dee\u08d3 \u08ca\ufe28"):
        assert fast.encode_plain(text) == exact.encode_plain(text)


@given(st.lists(st.integers(0, 10**6), max_size=40))
def test_rows_of_tokens(pair: tuple[Tokenizer, Tokenizer], picks: list[int]):
    fast, exact = pair
    text = fast.decode([pick % 5000 for pick in picks])
    assert fast.encode_plain(text) == exact.encode_plain(text)


def test_long_texts_and_halves_of_characters(pair: tuple[Tokenizer, Tokenizer]):
    fast, exact = pair
    for text in ("a b\ud800c", "word " * (MAX_LENGTH // 5 + 1), " " * 3000, "x" * 3000, "\n" * 3000):
        assert fast.encode_plain(text) == exact.encode_plain(text)


@pytest.mark.parametrize("spec", [bundled_spec, qwen_spec], ids=["bundled", "qwen"])
def test_merges_are_in_the_order_of_what_they_make(spec: Callable[[], bytes]):
    """With every token made once and from earlier tokens, the lowest merge and the lowest product are the same pair."""
    model = json.loads(spec())["model"]
    made = [model["vocab"]["".join(m if isinstance(m, list) else m.split(" "))] for m in model["merges"]]
    assert all(a < b for a, b in pairwise(made))


CHANGES = {
    "a prefix space": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
    "no pre-tokenizer": {"pre_tokenizer": None},
    "another pre-tokenizer": {"pre_tokenizer": {"type": "Whitespace"}},
    "two splits": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                *[{"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}] * 2,
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }
    },
    "another normaliser": {"normalizer": {"type": "Lowercase"}},
    "a pattern in another dialect": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"(?<n>x)\g<n>"}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }
    },
    "merges in another order": {"model": SPEC["model"] | {"merges": SPEC["model"]["merges"][::-1]}},
    "bytes as a fallback": {"model": SPEC["model"] | {"byte_fallback": True}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_other_tokenizers_keep_their_own_encoder(change: dict):
    spec = json.dumps(SPEC | change).encode()
    assert fast_encoder(spec, load_tokenizer().encode_plain, str) is None


def _without_its_merge(token: str) -> dict:
    merges = [merge for merge in SPEC["model"]["merges"] if "".join(merge).replace(" ", "") != token]
    assert len(merges) == len(SPEC["model"]["merges"]) - 1
    return SPEC["model"] | {"merges": merges}


def test_a_token_that_no_merge_makes_is_never_given():
    for token in ("recent", "session", "_miller"):
        spec = json.dumps(SPEC | {"model": _without_its_merge(token)}).encode()
        fast, exact = Tokenizer("fast", spec, {}, "x"), Tokenizer("exact", spec, {}, "x")
        assert fast.use_fast_encoder()
        ids = exact.encode_plain(token)
        assert len(ids[0]) > 1 and fast.encode_plain(token) == ids


def test_a_token_that_is_only_found_whole_needs_the_tokenizer_itself():
    spec = json.dumps(SPEC | {"model": _without_its_merge("recent") | {"ignore_merges": True}}).encode()
    assert not Tokenizer("x", spec, {}, "x").use_fast_encoder()


def test_an_encoder_that_differs_on_the_corpus_is_not_used(caplog: pytest.LogCaptureFixture):
    spec = json.dumps(SPEC | {"version": "2.0"}).encode()
    other = load_tokenizer()
    assert fast_encoder(spec, lambda *texts: [ids[1:] for ids in other.encode_plain(*texts)], str) is None
    assert "differs from this tokenizer" in caplog.text


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "tiktoken", None)
    monkeypatch.setattr(tiktoken_encoder, "_made", {})
    tokenizer = load_tokenizer()
    assert not tokenizer.use_fast_encoder()
    assert tokenizer.decode(tokenizer.encode_plain("still there")[0]) == "still there"
