"""Prompts as digits, for the bodies of requests.

A prompt is thousands of ids and grows by some hundred a turn. So its digits are kept as pieces: a
turn adds one, nothing is compared, and they are joined only to be sent. The pieces of first prompts
are shared by all jobs whose prompts begin alike.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import orjson

BLOCK = 256
"""Number of ids that are written at a time. Thousands would hold the interpreter for long."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as digits with commas between them. It is not changed, so all threads may use it."""

    pieces: tuple[bytes, ...]
    length: int
    """Number of ids."""
    last: int
    highest: int
    """The last id and the highest one."""


class PromptWriter:
    """Writes prompts, for all threads. An array that has grown since it was last written only costs
    its new ids.

    An array of ids that was written must only grow, as a trace does. The digits are kept as long as
    the array is.
    """

    def __init__(self) -> None:
        self._written: dict[int, tuple[Callable[[], array[int] | None], Prompt]] = {}
        """Prompts by the identity of their arrays, which have no hash. The functions are weak
        references.
        """

    def write(self, ids: array[int]) -> Prompt:
        """The ids, at least one."""
        owner = id(ids)
        reference, before = self._written.get(owner, _NOT_WRITTEN)
        if reference() is not ids:
            reference = weakref.ref(ids, partial(self._forget, owner))
            prompt = write_ids(ids)
        elif before.length == len(ids) and before.last == ids[-1]:
            return before
        else:
            prompt = _extended(before, ids)
        self._written[owner] = reference, prompt
        return prompt

    def _forget(self, owner: int, reference: object) -> None:
        self._written.pop(owner, None)


def write_ids(ids: array[int]) -> Prompt:
    """The ids, at least one, written from the first to the last."""
    pieces = [b"%d" % ids[0]]
    highest = ids[0]
    for start in range(1, len(ids), BLOCK):
        digits, highest_of_block = _block(ids[start : start + BLOCK].tobytes())
        pieces.append(digits)
        highest = max(highest, highest_of_block)
    return Prompt(tuple(pieces), len(ids), ids[-1], highest)


_NOT_WRITTEN: tuple[Callable[[], array[int] | None], Prompt] = (
    lambda: None,
    write_ids(array("I", [0])),
)


def _extended(before: Prompt, ids: array[int]) -> Prompt:
    """The prompt that begins with the ids that were written before."""
    at = before.length
    if at > len(ids) or ids[at - 1] != before.last:  # it did not only grow
        return write_ids(ids)
    blocks = [ids[start : start + BLOCK].tolist() for start in range(at, len(ids), BLOCK)]
    pieces = (*before.pieces, *map(_digits, blocks))
    highest = max(before.highest, *map(max, blocks))
    return Prompt(pieces, len(ids), ids[-1], highest)


@lru_cache(1024)  # blocks of first prompts: 2.7 MB, the beginnings of some fifty system prompts
def _block(ids: bytes) -> tuple[bytes, int]:
    """The digits of a block, and its highest id."""
    block = array("I", ids).tolist()
    return _digits(block), max(block)


def _digits(ids: list[int]) -> bytes:
    """The ids in digits, with a comma before each."""
    return b"," + orjson.dumps(ids)[1:-1]


def as_json(fields: dict[str, Any]) -> bytes:
    """JSON. orjson is eight times as fast, but rejects integers beyond 64 bits and lone
    surrogates.
    """
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:
        return json.dumps(fields).encode()


def collapsed(ids: array[int], token: int) -> array[int]:
    """The ids with one `token` in place of each run of it."""
    single = array("I")
    at = 0
    while at < len(ids):
        try:
            start = ids.index(token, at)
        except ValueError:
            break
        single += ids[at : start + 1]
        at = start + 1
        while at < len(ids) and ids[at] == token:
            at += 1
    return single + ids[at:]
