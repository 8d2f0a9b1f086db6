"""An exported file read back, strictly: what `rollq.export.record` wrote, as much of it as concerns tokens.

The invariant: the lists of a line have equal lengths, its traces make up its tokens, and every sampled token has a
finite logprob and a version. It knows nothing of engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from rollq.errors import ContractError, SettingsError
from rollq.job import Json

CHANGED_BY: Mapping[str, Json] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "logit_bias": None,
    "regex": None,
    "json_schema": None,
    "ebnf": None,
    "structural_tag": None,
}
"""Sampling parameters that change a sampled token's logprob and not a scored one's, with the value that means none."""
GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One trajectory as exported. Position i of every list is the same token."""

    where: str
    size: int
    """Bytes of the line."""
    job: str
    tokens: array[int]
    mask: bytes
    logprobs: array[float]
    versions: Sequence[str | None]
    traces: Sequence[int]
    sampling: Mapping[str, Json]

    @property
    def sampled(self) -> int:
        return self.mask.count(1)

    @property
    def given(self) -> Iterator[int]:
        """The ids that were not sampled."""
        return compress(self.tokens, self.mask.translate(bytes([1, 0]).ljust(256, b"\0")))

    @property
    def temperature(self) -> float:
        """As it divides the logits: greedy sampling reports raw logprobs, as temperature 1 does."""
        temperature = float(self.sampling.get("temperature", 1.0))
        return temperature if temperature > 1e-6 else 1.0

    @property
    def incomparable(self) -> str:
        """The sampling parameter for which none of its tokens can be compared, if there is one."""
        for name, none in CHANGED_BY.items():
            if (value := self.sampling.get(name)) and value != none:
                return name
        return ""


def read(path: Path) -> Iterator[Line]:
    """The file's trajectories, one at a time. Raises SettingsError when it cannot be read, ContractError naming the
    line."""
    number = 0
    try:
        with path.open("rb") as f:
            for number, text in enumerate(f, 1):
                yield _line(text, f"{path}:{number}")
    except OSError as e:
        raise SettingsError(f"cannot read {path}: {e.strerror}") from e
    if not number:
        raise ContractError(f"{path} holds no trajectory")


def _line(text: bytes, where: str) -> Line:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        packed = " (it is compressed: gzip -d it first)" if text.startswith(GZIP) else ""
        raise ContractError(f"{where} is not a line of JSON{packed}: {e}") from e
    if not isinstance(found, dict):
        raise ContractError(f"{where} is not an exported trajectory but a {type(found).__name__}")
    try:
        line = Line(
            where=where,
            size=len(text),
            job=str(found["job"]),
            tokens=array("I", found["tokens"]),
            mask=bytes(list(found["mask"])),  # a number would be taken for a length
            logprobs=array("d", found["logprobs"]),
            versions=list(found["versions"]),
            traces=list(found.get("traces", [len(found["tokens"])])),
            sampling=dict(found.get("sampling") or {}),
        )
        _check(line)
    except KeyError as e:
        raise ContractError(f"{where} is not an exported trajectory: it has no {e}") from e
    except (TypeError, ValueError, OverflowError) as e:
        raise ContractError(f"{where} is not an exported trajectory: {e}") from e
    return line


def _check(line: Line) -> None:
    """Raises ValueError or TypeError."""
    lengths = {name: len(getattr(line, name)) for name in ("tokens", "mask", "logprobs", "versions")}
    if len(set(lengths.values())) > 1:
        raise ValueError("its lengths differ: " + ", ".join(f"{n} {name}" for name, n in lengths.items()))
    if any(type(n) is not int or n < 1 for n in line.traces) or sum(line.traces) != len(line.tokens):
        raise ValueError(f"its traces {list(line.traces)} do not make up its {len(line.tokens)} tokens")
    if line.mask.translate(None, b"\0\1"):
        raise ValueError("its mask holds more than 0 and 1")
    first = 0
    for length in line.traces:
        if line.mask[first]:
            raise ValueError(f"token {first} opens a trace and was sampled: there is nothing before it")
        first += length
    for i in compress(range(len(line.mask)), line.mask):
        if not (math.isfinite(line.logprobs[i]) and isinstance(line.versions[i], str)):
            raise ValueError(f"token {i} was sampled, with logprob {line.logprobs[i]} and version {line.versions[i]!r}")
    if not 0 <= line.temperature < math.inf:
        raise ValueError(f"its temperature is {line.temperature}")
