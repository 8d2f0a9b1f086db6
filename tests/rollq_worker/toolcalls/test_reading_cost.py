"""Reading costs work in proportion to the length of a turn, whatever a policy repeats in it."""

import re
from typing import SupportsIndex

import pytest

from rollq_worker.toolcalls import PARSERS, pieces
from tests.rollq_worker.toolcalls.turns.turn import TOOLS
from tests.rollq_worker.toolcalls.written import WRITE

TOKEN = re.compile(r"<[^<>]*>|\[/?[A-Z_]+\]|[^\s\w]|\w+")


def units(name: str) -> list[str]:
    """A call, and the beginnings of it: what a policy may repeat."""
    call = WRITE[name]("f", {"text": "hi", "items": ["a"]})
    ends = [found.end() for found in TOKEN.finditer(call)]
    return [
        call[:end]
        for end in dict.fromkeys([*ends[:3], *ends[3 :: max(1, len(ends) // 6)], len(call)])
    ]


ENDS = [
    "",
    "</tool_call>",
    "</parameter>",
    "</arg_key>",
    "</arg_value>",
    '"',
    '<|"|>',
    "<|message|>",
]


class Text(str):
    """Text that counts which of its characters are looked at, as far as its methods tell."""

    looked = 0

    def find(
        self, sub: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None, /
    ) -> int:
        found = super().find(sub, start, end)
        Text.looked += (found if found >= 0 else len(self)) - (start.__index__() if start else 0)
        return found

    def rfind(
        self, sub: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None, /
    ) -> int:
        found = super().rfind(sub, start, end)
        Text.looked += (end.__index__() if end else len(self)) - max(0, found)
        return found

    def count(
        self, sub: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None, /
    ) -> int:
        Text.looked += (end.__index__() if end else len(self)) - (start.__index__() if start else 0)
        return super().count(sub, start, end)

    def rstrip(self, chars: str | None = None, /) -> "Text":
        Text.looked += len(self)
        return Text(super().rstrip(chars))

    def __contains__(self, sub: object) -> bool:
        Text.looked += len(self)
        return super().__contains__(sub)  # type: ignore[arg-type]

    def __getitem__(self, at: SupportsIndex | slice) -> "Text":
        part = Text(super().__getitem__(at))
        Text.looked += len(part)
        return part


class Searched:
    """A pattern that counts likewise."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def search(self, text: str, at: int) -> re.Match[str] | None:
        found = self.pattern.search(text, at)
        Text.looked += (found.end() if found else len(text)) - at
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for tags count what they look at."""
    real = pieces._any_of
    monkeypatch.setattr(pieces, "_any_of", lambda tags: Searched(real(tags)))


def work(format: str, text: str) -> int:
    Text.looked = 0
    PARSERS[format](Text(text), False, TOOLS)
    return Text.looked


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("format", "unit"), [(name, unit) for name in sorted(PARSERS) for unit in units(name)]
)
def test_twice_the_text_is_twice_the_work(format: str, unit: str):
    times = 3_000 // len(unit)
    for end in ENDS:
        once, twice = work(format, unit * times + end), work(format, unit * (2 * times) + end)
        assert twice < 2.3 * once + 1000, f"{end!r} behind it: {once} characters, then {twice}"


@pytest.mark.parametrize(
    ("format", "unit"),
    [("hermes", "<tool_call>"), ("kimi_k2", "<|tool_call_begin|>"), ("gpt_oss", "<|start|>")],
)
def test_the_first_of_many_errors_are_reported_one_by_one(format: str, unit: str):
    read = PARSERS[format](unit * 500, False, TOOLS)
    assert read.content == unit * 500
    assert len(read.errors) == pieces.MAX_ERRORS + 1
    assert read.errors[-1] == f"There are {500 - pieces.MAX_ERRORS} more errors in the turn."


def test_a_call_behind_thousands_of_broken_ones_is_read():
    read = PARSERS["hermes"](
        '<tool_call>{"name": "g"' * 3000 + '<tool_call>{"name": "f"}</tool_call>'
    )
    assert [call.name for call in read.calls] == ["f"] and len(read.errors) == pieces.MAX_ERRORS + 1
