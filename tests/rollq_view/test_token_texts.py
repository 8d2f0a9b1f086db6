"""Texts of tokens are on a page only when they spell what the messages say."""

import sys
from typing import Any

import pytest

from rollq.errors import SettingsError
from rollq.export.record import record
from rollq_view.conversation import page
from rollq_view.token_texts import load_texts, with_texts
from rollq_worker.tokens.tokenizer import load_tokenizer
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


def test_the_tokenizer_that_rollq_ships_is_there_without_a_name() -> None:
    texts = load_texts(None)
    assert "".join(texts(load_tokenizer().encode("Hello there"))) == "Hello there"


def test_without_the_workers_package_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollq_worker.commands.for_clients", None)
    assert of(load_texts(None)) == of(load_texts("any")) == [None, None]


def test_a_tokenizer_that_was_named_and_is_not_there_is_an_error() -> None:
    with pytest.raises(SettingsError, match="no such directory"):
        load_texts("/nowhere/at/all")
