"""Contents that note what a chat template asks of them.

A template that asks nothing of a content writes every content alike. What it does once the content has become part of
another text is not seen here: probes show that. It does not know messages.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rollq.job import Json
from rollq_worker.tokens.injection_guard import ControlTokens, Guard

_STRIPPING = frozenset({"strip", "lstrip", "rstrip"})
_LOOKING = frozenset(
    "startswith endswith removeprefix removesuffix split rsplit partition rpartition replace find rfind index rindex "
    "count".split()
)
"""Methods that look for the texts that they are given."""


class Asked:
    """What a template asked of the contents of one rendering."""

    def __init__(self) -> None:
        self.inside: set[str] = set()
        """It looked for these texts."""
        self.equal: set[str] = set()
        """It compared whole contents with these."""
        self.more = False
        """It asked something else: for upper case, for a character by its place, for another content."""


class _Watched(str):
    """A content, or a part of one. Equal to its text in all that it answers."""

    asked: Asked
    is_part: bool

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__(name)
        if name.startswith("__") or not hasattr(str, name):
            return own
        return _noting(own, name, self.asked)

    def __contains__(self, text: object) -> bool:
        _note_texts(self.asked, (text,))
        return str.__contains__(self, str(text))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Watched):
            self.asked.more |= other is not self
        elif isinstance(other, str):
            (self.asked.inside if self.is_part else self.asked.equal).add(str(other))
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return str.__len__(self) > 0

    def __len__(self) -> int:
        self.asked.more = True
        return str.__len__(self)

    def __hash__(self) -> int:
        self.asked.more = True  # a look into a mapping
        return str.__hash__(self)

    def __getitem__(self, key: Any) -> str:
        self.asked.more |= not isinstance(key, str)  # `content.name` has no answer, whatever the content is
        return str.__getitem__(self, key)

    def __iter__(self) -> Iterator[str]:
        self.asked.more = True  # not for the test `iterable`, which takes nothing
        yield from str.__iter__(self)


class WatchingGuard(Guard):
    """Gives the template watched contents."""

    def __init__(self, controls: ControlTokens, contents: Sequence[str]) -> None:
        super().__init__(controls)
        self.asked = Asked()
        self._watched = {content: _watched(content, self.asked, is_part=False) for content in contents}

    def hide(self, value: Json) -> Json:
        """As that of Guard."""
        found = self._watched.get(value) if isinstance(value, str) else None
        return super().hide(value) if found is None else found


def _watched(text: str, asked: Asked, is_part: bool) -> _Watched:
    found = _Watched(text)
    found.asked, found.is_part = asked, is_part
    return found


def _noting(method: Callable[..., Any], name: str, asked: Asked) -> Callable[..., Any]:
    """A method of a text that notes what it is asked, and whose result is watched too."""

    def note(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if name in _STRIPPING:
            _note_texts(asked, [char for chars in given for char in chars or "" if not char.isspace()])
        elif name in _LOOKING and any(isinstance(arg, str | tuple) for arg in given):
            _note_texts(asked, given[:1] if name == "replace" else given)
        else:
            asked.more = True
        found = method(*args, **kwargs)
        if isinstance(found, list | tuple):
            return type(found)(_watched(part, asked, is_part=True) for part in found)
        return _watched(found, asked, is_part=name not in _STRIPPING) if isinstance(found, str) else found

    return note


def _note_texts(asked: Asked, given: Sequence[object]) -> None:
    for text in given:
        if isinstance(text, tuple):
            _note_texts(asked, text)
        elif isinstance(text, str) and text:
            asked.inside.add(str(text))
