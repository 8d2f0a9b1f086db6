"""The body of a request to an SGLang server's `/generate`, as bytes."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollq.job import Json
from rollq_worker.protocols import Routing

CHUNK = 4096
"""Number of ids that are written at a time. More would hold the interpreter for milliseconds."""


class _Digits(dict[int, bytes]):
    """The decimal digits of each id, made once, which is four times as fast as json."""

    def __missing__(self, id: int) -> bytes:
        self[id] = digits = str(id).encode()
        return digits


_DIGITS = _Digits()


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: array[int]
    text: bytes


class PromptWriter:
    """Writes prompts as digits. A job's next prompt begins with its last one, so only the rest is written.

    Keeps the last prompt of the `kept` jobs that were sent last, for all threads.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._last: OrderedDict[str, _Prompt] = OrderedDict()

    def write(self, ids: array[int], key: str) -> bytes:
        """The ids of the job `key`, with commas between them."""
        with self._lock:
            last = self._last.pop(key, None)
        if last is not None and last.ids and ids[: len(last.ids)] == last.ids:
            more = _digits(ids[len(last.ids) :])
            text = last.text + b"," + more if more else last.text
        else:
            text = _digits(ids)
        with self._lock:
            self._last[key] = _Prompt(ids[:], text)  # a copy: the episode's own grows
            while len(self._last) > self._kept:
                self._last.popitem(last=False)
        return text


def _digits(ids: array[int]) -> bytes:
    return b",".join(b",".join(map(_DIGITS.__getitem__, ids[at : at + CHUNK])) for at in range(0, len(ids), CHUNK))


def write_request(
    prompt: bytes,
    sampling: Mapping[str, Json],
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    rid: str,
    routing: Routing | None = None,
) -> bytes:
    """The body of a request for at most `max_new_tokens` tokens after a prompt as `PromptWriter` writes it.

    `stop_ids` end it besides the job's own. `routing` asks for routed experts.
    """
    stops = list(dict.fromkeys((*stop_ids, *(sampling.get("stop_token_ids") or ()))))
    params: dict[str, Any] = {
        **sampling,
        "max_new_tokens": max_new_tokens,
        "stop_token_ids": stops,
        "skip_special_tokens": False,  # the text is only for people, who get all of it
    }
    if sampling.get("min_new_tokens"):
        # A server refuses a minimum above max_new_tokens, which is small for the rest of an interrupted turn.
        params["min_new_tokens"] = min(sampling["min_new_tokens"], max_new_tokens)
    fields: dict[str, Any] = {"rid": rid, "sampling_params": params, "return_logprob": True}
    if routing is not None:
        fields |= {"return_routed_experts": True, "routed_experts_start_len": routing.start}
    rest = json.dumps(fields)
    return b'{"input_ids":[%b],%b' % (prompt, rest[1:].encode())
