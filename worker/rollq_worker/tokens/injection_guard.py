"""Keeps the words of environments, tools and users from becoming control tokens.

Before rendering, each piece of a foreign text that is an added token, or could become part of one,
is swapped for a one-time mark. Marks are digits, which templates pass through unchanged. The added
tokens left in the rendered text are the template's own and are encoded by id. The text between them
is encoded as plain text, with the swapped pieces put back. For harmless text the ids are those of
the rendered text.

It does not know messages or templates.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import re
import secrets
from array import array
from collections.abc import Callable, Iterable
from functools import lru_cache
from threading import Lock
from typing import Any

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.tokens.tokenizer import Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = " \t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""White space around an added token, as the tokenizers library sees it."""
_MAX_REMEMBERED = 64
"""Number of texts whose ids are kept: the system prompts of the environments in use."""
_FORMAT = frozenset(
    "role system user assistant tool content reasoning_content tool_calls tool_call_id id type "
    "function name arguments description parameters properties required items enum object array "
    "string integer number boolean null".split()
)
"""Words of the chat format and of JSON schemas. Templates compare with them, so they are never
swapped.
"""


class ControlTokens:
    """The added tokens of one tokenizer, compiled for a search."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = tokenizer.added_tokens
        texts = list(filter(None, tokenizer.added_tokens))
        self.token = any_of(texts)
        """Finds the leftmost longest token, as the tokenizer itself does."""
        greedy = [token for token in tokenizer.added if token.lstrip or token.rstrip]
        self._greedy = {token.content: token for token in greedy}
        """The tokens that swallow the white space around them."""
        self._starts: set[str] = set()
        self._ends: set[str] = set()
        for text in texts:
            self._starts.update(text[:n] for n in range(1, len(text)))
            self._ends.update(text[n:] for n in range(1, len(text)))
        self._first_chars = frozenset(text[0] for text in texts)
        self._last_chars = frozenset(text[-1] for text in texts)
        self._longest = max(map(len, texts), default=0)
        # Marks never leave the process, so no text can contain the nonce.
        self.nonce = "".join(secrets.choice("123456789") for _ in range(24))
        self.mark = re.compile(self.nonce + r"(\d{6})")
        self.names = _tag_names(texts) - _FORMAT
        self._remembered = lru_cache(_MAX_REMEMBERED)(lambda text: tokenizer.encode_plain(text)[0])
        self._one_at_a_time = Lock()

    def encode(
        self, rendered: str, restore: Callable[[str], str], remember: bool = False
    ) -> array[int]:
        """array('I'): added tokens by id, the text between them restored and encoded as plain text.

        `remember`: keep the ids, because the same texts will come again.
        """
        texts, controls = self.cut(rendered)
        texts = list(map(restore, texts))
        plain = list(filter(None, texts))
        if remember:
            # Without the lock, a thousand threads that begin at once all encode one long text.
            with self._one_at_a_time:
                encoded = iter([self._remembered(text) for text in plain])
        else:
            encoded = iter(self.tokenizer.encode_plain(*plain))
        ids = array("I")
        for n, text in enumerate(texts):
            if text:
                ids.extend(next(encoded))
            if n < len(controls):
                ids.append(controls[n])
        return ids

    def cut(self, rendered: str) -> tuple[list[str], list[int]]:
        """The texts before, between and after the control tokens, and the ids of these tokens."""
        controls: list[int] = []
        texts: list[str] = []
        at = 0
        for match in self.token.finditer(rendered):
            text = rendered[at : match.start()]
            end = match.end()
            token = self._greedy.get(match[0])
            if token and token.lstrip:
                text = text.rstrip(_SPACE)
            if token and token.rstrip:
                end = _skip(rendered, end)
            texts.append(text)
            controls.append(self.ids[match[0]])
            at = end
        texts.append(rendered[at:])
        return texts, controls

    def end_of_token(self, text: str) -> int:
        """The number of characters at the start of the text that are the end of a token."""
        head = text[: self._longest]
        if self._last_chars.isdisjoint(head):
            return 0
        return next((n for n in range(len(head), 0, -1) if head[:n] in self._ends), 0)

    def start_of_token(self, text: str) -> int:
        """The number of characters at the end of the text that are the start of a token."""
        tail = text[-self._longest :]
        if self._first_chars.isdisjoint(tail):
            return 0
        return next((n for n in range(len(tail), 0, -1) if tail[-n:] in self._starts), 0)


def _tag_names(tokens: Iterable[str]) -> frozenset[str]:
    """The names in tokens of the form <name> or </name>. Templates write some tags in parts, so
    that a name alone could complete a token.
    """
    names: set[str] = set()
    for token in tokens:
        if token[0] == "<" and token[-1] == ">":
            names |= {token[1:-1], token[1:-1].lstrip("/")}
    return frozenset(names)


class Guard:
    """The swapped pieces of one rendering."""

    def __init__(self, controls: ControlTokens, other: Guard | None = None) -> None:
        """Takes over the marks of `other`."""
        self._controls = controls
        self._pieces: list[str] = other._pieces[:] if other else []
        self._marks: dict[str, str] = other._marks.copy() if other else {}
        """One for each piece, because templates compare messages: equal ones stay equal."""

    def mark(self, piece: str = "") -> str:
        """A new mark that stands for `piece`."""
        self._pieces.append(piece)
        return f"{self._controls.nonce}{len(self._pieces) - 1:06}"

    def hide(self, value: Json) -> Json:
        """A copy of a JSON value with marks in all its strings, keys included."""
        if isinstance(value, str):
            return value if value in _FORMAT else self._hide_text(value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def hide_matches(self, pattern: re.Pattern[str], text: Json) -> Json:
        """A hidden text with marks for the matches of the pattern, which never match in a mark.
        Other values stay as they are.
        """
        if not isinstance(text, str) or pattern.search(text) is None:
            return text
        return pattern.sub(lambda match: self._mark_of(match[0]), text)

    def encode(self, rendered: str, remember: bool = False) -> array[int]:
        """array('I'): the ids of a rendered text. `remember`: keep them, because much of it will
        come again.
        """
        return self._controls.encode(rendered, self.restore, remember)

    def restore(self, text: str) -> str:
        """The text with the original pieces in place of their marks. Raises JobFailure if the
        template broke a mark.
        """
        if not self._pieces:
            return text
        text = self._controls.mark.sub(lambda match: self._pieces[int(match[1])], text)
        if self._controls.nonce[:12] in text or self._controls.nonce[12:] in text:
            raise JobFailure(
                "the chat template cuts a text in two at a control token that it mentions; use "
                "another template"
            )
        return text

    def _hide_text(self, text: str) -> str:
        if not text.isascii():
            text = _SURROGATE.sub("\ufffd", text)
        if text in self._controls.names:
            return self._mark_of(text)
        text = self._controls.token.sub(lambda match: self._mark_of(match[0]), text)
        # The template or another text could complete half a token at an edge.
        if n := self._controls.end_of_token(text):
            text = self._mark_of(text[:n]) + text[n:]
        if n := self._controls.start_of_token(text):
            text = text[:-n] + self._mark_of(text[-n:])
        return text

    def _mark_of(self, piece: str) -> str:
        if piece not in self._marks:
            self._marks[piece] = self.mark(piece)
        return self._marks[piece]


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the leftmost longest of these texts, in time that does not grow with
    their number.

    A vocabulary may have a thousand control tokens that begin alike, and a plain alternation would
    try them one by one.
    """
    root: dict[str, Any] = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_branches(root) if root else r"(?!)")


def _branches(node: dict[str, Any]) -> str:
    """The regular expression for what may follow at a node of the tree of texts."""
    run = ""
    while len(node) == 1 and "" not in node:
        (char,) = node
        run = run + re.escape(char)
        node = node[char]
    choices = [re.escape(char) + _branches(after) for char, after in node.items() if char]
    if not choices:
        return run
    may_end = "?" if "" in node else ""
    return f"{run}(?:{'|'.join(choices)}){may_end}"


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
