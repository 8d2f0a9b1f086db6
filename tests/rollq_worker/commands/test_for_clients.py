"""The texts of single tokens are the text that they spell together."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import SettingsError
from rollq.job import Job
from rollq_worker.commands.for_clients import (
    add_environment_file,
    check_job,
    texts_of,
    token_texts,
)
from rollq_worker.environments.files import FILES
from rollq_worker.tokens.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer()


@given(st.text(max_size=60))
def test_side_by_side_they_are_the_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    texts = texts_of(TOKENIZER.decode, ids)
    assert (len(texts), "".join(texts)) == (len(ids), TOKENIZER.decode(ids))


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40))
def test_any_ids_have_a_text_each(ids: list[int]) -> None:
    texts = texts_of(TOKENIZER.decode, ids)
    assert len(texts) == len(ids)
    whole = TOKENIZER.decode(ids)
    if "\ufffd" not in whole:
        assert "".join(texts) == whole


def test_a_character_of_several_tokens_is_the_last_ones() -> None:
    texts = texts_of(TOKENIZER.decode, TOKENIZER.encode("a\U0001f9ffb"))
    assert (texts[0], texts[-1]) == ("a", "b") and texts[-2] == "\U0001f9ff" and "" in texts


def test_a_tokenizer_that_is_not_there_is_named() -> None:
    assert token_texts(None)(TOKENIZER.encode("Hello")) != []
    with pytest.raises(SettingsError, match="no such directory"):
        token_texts("/nowhere/at/all")


def test_tasks_at_which_the_environment_breaks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILES.variable, "")
    file = tmp_path / "bad.py"
    file.write_text(
        "from rollq_worker.environments.shop import load as load_shop\n"
        "class Bad:\n"
        "    name, version, splits = 'bad', '1', load_shop(None).splits\n"
        "    def task(self, split, index):\n"
        "        return {}['x']\n"
        "    def open(self, split, index, args):\n"
        "        return None\n"
        "def load(variant):\n"
        "    return Bad()\n"
    )
    name = add_environment_file(str(file))
    unknown = check_job(Job(env=name, task=0), [0, 1])
    assert "2 of 2 tasks" in unknown and f"0: KeyError: 'x' {file}:5" in unknown
