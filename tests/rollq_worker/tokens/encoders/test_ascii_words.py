"""ASCII words are found by Python's regular expressions as by the tokenizer's own."""

import re
import unicodedata
from collections.abc import Sequence

import pytest

from rollq_worker.tokens.encoders import ascii_words as module
from rollq_worker.tokens.encoders.ascii_words import LONG, LONGEST_WORD, MAX_WORDS, ascii_words, in_ascii
from rollq_worker.tokens.encoders.byte_level import _DEEPSEEK_AT_ONCE, _DIGITS_GPT2, _GPT2
from tests.rollq_worker.tokens.encoders.vocabularies import LLAMA3

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Asked:
    """An encoder of one id a character, which notes what it was asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> Sequence[int]:
        self.texts.append(text)
        return list(map(ord, text))


@pytest.mark.parametrize("category", module._CLASSES)
def test_categories_are_those_of_unicode(category: str) -> None:
    found = re.compile(f"[{module._CLASSES[category]}]")
    for char in map(chr, range(128)):
        assert bool(found.fullmatch(char)) is unicodedata.category(char).startswith(category)


@pytest.mark.parametrize("pattern", [_GPT2, _DIGITS_GPT2, _DEEPSEEK_AT_ONCE, LLAMA3, O200K])
def test_the_patterns_of_known_vocabularies_are_read(pattern: str) -> None:
    asked = Asked()
    encode = ascii_words(pattern, asked)
    text = 'It\'s {"a": [10, 2.5]}  x\n\n \tEND$'
    assert encode(text) == encode(text) == list(map(ord, text))
    assert text not in asked.texts and len(asked.texts) == len(set(asked.texts))  # by words, each once


@pytest.mark.parametrize(
    "pattern", [r"\p{Han}+|.", r"[[:alpha:]]+|.", r"(a)|.", r"\x{20}+|.", "(?~x)", r"[\p{L}&&[a-z]]|."]
)
def test_other_patterns_are_left_to_the_other_encoder(pattern: str) -> None:
    asked = Asked()
    assert ascii_words(pattern, asked) is asked


def test_the_end_of_a_text_is_not_before_its_last_line_end() -> None:
    assert re.findall(in_ascii(r"a$|\s|."), "a\n") == ["a", "\n"]
    assert in_ascii(r"a$") == r"a\Z" and in_ascii(r"[$]\$") == r"[$]\$"


def test_other_and_long_texts_are_encoded_whole() -> None:
    asked = Asked()
    encode = ascii_words(_GPT2, asked)
    for text in ("é b", "a " * LONG):
        encode(text)
        assert asked.texts.pop() == text


def test_memory_is_bounded() -> None:
    asked = Asked()
    encode = ascii_words(_GPT2, asked)
    encode(" ".join(["x" * LONGEST_WORD, "y" * LONGEST_WORD]))
    long = len(asked.texts)
    encode("y" * LONGEST_WORD)
    assert len(asked.texts) == long + 1  # a word of its own, without the space
    for _ in range(2):
        encode("z" * (LONGEST_WORD + 1))
    assert asked.texts.count("z" * (LONGEST_WORD + 1)) == 2
    for n in range(MAX_WORDS + 100):
        encode(f"x{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}")
    asked.texts.clear()
    encode("xaaa")
    assert asked.texts == ["xaaa"]  # it was forgotten
