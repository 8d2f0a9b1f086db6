"""Strict JSON is read in windows, and never differently because of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq_worker.text import strict_json as strict_json_module
from rollq_worker.text.strict_json import NotJson, strict_json

PARTS = [
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "1",
    "-",
    "e",
    ".",
    "NaN",
    "-Infinity",
    "nul",
    "\n",
    "\\u12",
    "\\ud83d\\ude42",
    "\\ud83d",
    '"a": ',
    "123456789012345678901234",
    "1.5e3",
    " " * 20,
]

WRITTEN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
).map(json.dumps)
TEXTS = st.lists(WRITTEN | st.sampled_from(PARTS), max_size=6).map("".join)


def outcome(text: str, window: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json_module, "_WINDOW", window)
        try:
            return repr(strict_json(text, 3))
        except NotJson as e:
            return str(e), e.pos


@given(TEXTS, st.integers(1, 60), st.integers(0, 200))
def test_json_is_the_same_through_windows_of_any_size(text: str, window: int, cut: int):
    for behind in (text, text[:-cut]):
        assert outcome(f"abc{behind}", window) == outcome(f"abc{behind}", 1_000_000)
