"""What is sent to an SGLang server's `/generate`, as bytes."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.job import Json


class _Digits(dict[int, str]):
    """Decimal digits by id, made once: a long prompt is written four times as fast as by json."""

    def __missing__(self, id: int) -> str:
        self[id] = digits = str(id)
        return digits


_DIGITS = _Digits()


def write_request(
    ids: array[int], sampling: Mapping[str, Json], *, stop_ids: Sequence[int], max_new_tokens: int, rid: str
) -> bytes:
    """The body of a request for at most that many tokens; `stop_ids` end it besides the job's own."""
    stops = list(dict.fromkeys((*stop_ids, *(sampling.get("stop_token_ids") or ()))))
    params: dict[str, Any] = {
        **sampling,
        "max_new_tokens": max_new_tokens,
        "stop_token_ids": stops,
        "skip_special_tokens": False,  # so that the text, which is for people, is whole
    }
    if sampling.get("min_new_tokens"):  # the rest of an interrupted turn may be shorter, which a server refuses
        params["min_new_tokens"] = min(sampling["min_new_tokens"], max_new_tokens)
    rest = json.dumps({"rid": rid, "sampling_params": params, "return_logprob": True})
    return f'{{"input_ids":[{",".join(map(_DIGITS.__getitem__, ids))}],{rest[1:]}'.encode()
