"""Texts of tokens are on a page only when they spell what the messages say."""

from typing import Any

from rollq.export.record import record
from rollq.viewer.conversation import page
from rollq.viewer.token_texts import with_texts
from tests.rollq.samples import trajectory


def of(texts: Any) -> list[Any]:
    shown = with_texts(page(record(trajectory())), texts)
    return [entry.get("texts") for entry in shown["entries"] if entry["turn"] is not None]


def test_texts_that_spell_the_messages_are_shown() -> None:
    assert of(lambda ids: ["h", "m"]) == [["h", "m"]] * 2


def test_those_of_another_tokenizer_are_not() -> None:
    assert of(lambda ids: ["a", "b"]) == [None, None]


def test_nor_is_anything_lost_when_the_ids_are_not_its_own() -> None:
    def refuses(ids: Any) -> list[str]:
        raise OverflowError("an id beyond the vocabulary")

    assert of(refuses) == of(None) == [None, None]
