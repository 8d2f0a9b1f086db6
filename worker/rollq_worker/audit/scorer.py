"""Scoring over SGLang's native API: what an engine now thinks of tokens that were sampled before.

The invariant: the logprobs it returns are finite and belong to the ids it was given, under the weights it named at the
start. No id is sent that the engine may not know: one is enough to kill a real server. It knows nothing of
trajectories.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
import time
import uuid
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests

from rollq.errors import ContractError, EngineFailure, RollqError
from rollq_worker.engine.limits import Limits, read_limits
from rollq_worker.engine.reply import read_error

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 300.0
BUSY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Waits between the tries while the engine's queue is full."""
BUSY = frozenset({429, 503})
PROBED = 256
"""Highest ids that the engine is asked about: those above its tokenizer are padding ids of the model, and few."""


class Refused(RollqError):
    """The engine does not score these tokens (400): it says why."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One entry a token from the one behind the start on."""

    logprobs: array[float]
    """array('d'): raw, whatever the sampling parameters: log_softmax(logits)."""
    likeliest: Sequence[Sequence[float]] | None
    """The logprobs of the likeliest tokens there, falling; None where the engine does not say."""


class Scorer:
    """One engine, used by several threads."""

    def __init__(self, url: str, concurrency: int) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False  # no proxy between this machine and its engine
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=concurrency + 1, max_retries=0)
        self.session.mount("http://", adapter)
        self.session.mount("https://", adapter)
        self.version = self._version()
        """Of the weights it has; None when it does not say."""
        self.longest = self._longest()
        """Tokens that it can score at once."""

    def known(self, ids: Iterable[int]) -> int | None:
        """A bound: every one of these ids below it is in the vocabulary of the engine's tokenizer.

        None when the engine does not say (a router, the replay engine).
        """
        highest = sorted(set(ids))[-PROBED:]
        body = {"tokens": [[id] for id in highest], "skip_special_tokens": False}
        answer = self._send("POST", "/detokenize", body)
        try:
            texts = answer.json()["text"] if answer.ok else None
        except (ValueError, KeyError, TypeError):
            texts = None
        if not isinstance(texts, list) or len(texts) != len(highest):
            return None
        # An id that no token has is decoded to nothing at all.
        return max((id + 1 for id, text in zip(highest, texts, strict=True) if text), default=0)

    def score(self, ids: array[int], start: int, *, likeliest: int = 0) -> Scored:
        """The logprobs of `ids[start + 1:]`, each given everything before it. Raises Refused, EngineFailure."""
        body: dict[str, Any] = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        if likeliest:
            body["top_logprobs_num"] = likeliest
        with self._reading():
            return self._read(self._generate(body), ids[start:], bool(likeliest))

    def next(self, ids: array[int], token: int, *, temperature: float) -> float:
        """The logprob of `token` right behind `ids`, computed as for sampling, at that temperature.

        Nothing that the engine has cached is used (routers may ignore that). Raises Refused, EngineFailure.
        """
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": temperature},
            "return_logprob": True,
            "token_ids_logprob": [token],
            "extra_key": uuid.uuid4().hex,
        }
        with self._reading():
            asked = self._generate(body).get("output_token_ids_logprobs")
            if asked is None:
                raise Refused("the engine does not score tokens that it did not sample")
            ((logprob, said, *_),) = asked[0]
            if said != token or not math.isfinite(logprob):
                raise ValueError(f"{logprob} for token {said}, asked for {token}")
            return float(logprob)

    def close(self) -> None:
        self.session.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as e:
            raise EngineFailure(f"{self.url}: not a scoring reply ({type(e).__name__}: {e})") from e

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """The `meta_info` of the reply."""
        answer = self._send("POST", "/generate", body)
        if answer.status_code == 400:
            raise Refused(read_error(answer.content))
        if answer.status_code != 200:
            raise EngineFailure(f"{self.url} answered {answer.status_code}: {read_error(answer.content)}")
        meta: dict[str, Any] = answer.json()["meta_info"]
        if self.version is not None and meta.get("weight_version", self.version) != self.version:
            raise EngineFailure(
                f"{self.url}: one reply is by weights {self.version!r}, another by {meta['weight_version']!r}: they"
                " were changed in the middle of the audit, or the servers behind a router differ"
            )
        return meta

    def _read(self, meta: dict[str, Any], ids: array[int], wanted: bool) -> Scored:
        entries = meta["input_token_logprobs"]
        if [entry[1] for entry in entries] != ids.tolist():
            raise EngineFailure(f"{self.url}: the {len(entries)} logprobs are not those of the {len(ids)} ids sent")
        logprobs = array("d", [entry[0] for entry in entries[1:]])
        if not all(map(math.isfinite, logprobs)):
            raise ValueError("a logprob is not finite")
        tops = meta.get("input_top_logprobs") if wanted else None
        if not tops:
            return Scored(logprobs, None)
        if len(tops) != len(entries):
            raise EngineFailure(f"{self.url}: {len(tops)} lists of likeliest tokens for {len(entries)} tokens")
        return Scored(logprobs, [[entry[0] for entry in top] for top in tops[1:]])

    def _version(self) -> str | None:
        for path in ("/model_info", "/get_model_info"):  # the second one is all that routers know
            answer = self._send("GET", path)
            if answer.status_code in (401, 403):
                raise EngineFailure(f"{self.url} answered {answer.status_code}: {read_error(answer.content)}")
            try:
                version = answer.json().get("weight_version") if answer.ok else None
            except (ValueError, AttributeError):
                continue
            if isinstance(version, str):
                return version
        return None

    def _longest(self) -> int:
        limits = read_limits(self._json)
        return min(limits.prompt, limits.context, Limits().context) - 1

    def _json(self, path: str) -> object:
        answer = self._send("GET", path)
        try:
            return answer.json() if answer.ok else None
        except ValueError:
            return None

    def _send(self, method: str, path: str, body: object = None) -> requests.Response:
        """One request, sent again only when the engine had no room for it: nothing is tried twice that broke it."""
        data = None if body is None else json.dumps(body, separators=(",", ":"))
        headers = {"Content-Type": "application/json"}
        for wait in (*BUSY_S, None):
            try:
                timeout = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
                answer = self.session.request(method, self.url + path, data=data, headers=headers, timeout=timeout)
            except requests.ConnectionError as e:
                raise EngineFailure(f"no engine at {self.url}, or it broke: {_brief(e)}") from e
            except requests.Timeout as e:
                raise EngineFailure(f"{self.url}{path}: no answer within {READ_TIMEOUT_S:g} s (is it paused?)") from e
            except requests.RequestException as e:
                raise ContractError(f"{self.url}{path}: {_brief(e)}") from e
            if answer.status_code not in BUSY or wait is None:
                return answer
            time.sleep(wait)
        raise AssertionError("unreachable")


def _brief(error: requests.RequestException) -> str:
    reason = getattr(error.args[0] if error.args else None, "reason", None) or error
    return f"{type(error).__name__}: {str(reason).partition('): ')[2] or reason}"
