"""Reads the tokens of an exported file, strictly, as `rollq.export.record` wrote them.

The invariant: a trajectory's lists have equal lengths, its traces make up its tokens, and every sampled token has a
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

CHANGES_LOGPROBS: Mapping[str, Json] = {
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
"""Sampling parameters that change the logprobs of sampled tokens but not of scored ones, with the values that have no
effect."""
GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTrajectory:
    """One line of the file. Position i of every list is the same token."""

    size: int
    """Length of the line in bytes."""
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
    def prompt_ids(self) -> Iterator[int]:
        """The ids that were not sampled."""
        return compress(self.tokens, self.mask.translate(bytes([1, 0]).ljust(256, b"\0")))

    @property
    def temperature(self) -> float:
        """The temperature that divides the logits. For greedy sampling it is 1, because raw logprobs are reported
        then."""
        temperature = float(self.sampling.get("temperature", 1.0))
        return temperature if temperature > 1e-6 else 1.0

    @property
    def incomparable(self) -> str:
        """The sampling parameter because of which the tokens cannot be compared; empty when they can."""
        for name, neutral in CHANGES_LOGPROBS.items():
            if (value := self.sampling.get(name)) and value != neutral:
                return name
        return ""


def read(path: Path) -> Iterator[ExportedTrajectory]:
    """The file's trajectories, one at a time.

    Raises SettingsError if the file cannot be read, ContractError that names the line.
    """
    number = 0
    try:
        with path.open("rb") as f:
            for number, text in enumerate(f, 1):
                yield _parse(text, f"{path}:{number}")
    except OSError as e:
        raise SettingsError(f"cannot read {path}: {e.strerror}") from e
    if not number:
        raise ContractError(f"{path} holds no trajectory")


def _parse(text: bytes, where: str) -> ExportedTrajectory:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as e:
        compressed = " (it is compressed: gzip -d it first)" if text.startswith(GZIP) else ""
        raise ContractError(f"{where} is not a line of JSON{compressed}: {e}") from e
    if not isinstance(record, dict):
        raise ContractError(f"{where} is not an exported trajectory but a {type(record).__name__}")
    try:
        trajectory = ExportedTrajectory(
            size=len(text),
            job=str(record["job"]),
            tokens=array("I", record["tokens"]),
            mask=bytes(list(record["mask"])),  # a number would be taken for a length
            logprobs=array("d", record["logprobs"]),
            versions=list(record["versions"]),
            traces=list(record.get("traces", [len(record["tokens"])])),
            sampling=dict(record.get("sampling") or {}),
        )
        _check(trajectory)
    except KeyError as e:
        raise ContractError(f"{where} is not an exported trajectory: it has no {e}") from e
    except (TypeError, ValueError, OverflowError) as e:
        raise ContractError(f"{where} is not an exported trajectory: {e}") from e
    return trajectory


def _check(trajectory: ExportedTrajectory) -> None:
    lengths = {name: len(getattr(trajectory, name)) for name in ("tokens", "mask", "logprobs", "versions")}
    if len(set(lengths.values())) > 1:
        raise ValueError("its lengths differ: " + ", ".join(f"{n} {name}" for name, n in lengths.items()))
    if any(type(n) is not int or n < 1 for n in trajectory.traces) or sum(trajectory.traces) != len(trajectory.tokens):
        raise ValueError(f"its traces {list(trajectory.traces)} do not make up its {len(trajectory.tokens)} tokens")
    if trajectory.mask.translate(None, b"\0\1"):
        raise ValueError("its mask holds more than 0 and 1")
    first = 0
    for length in trajectory.traces:
        if trajectory.mask[first]:
            raise ValueError(f"token {first} opens a trace and was sampled: there is nothing before it")
        first += length
    for i in compress(range(len(trajectory.mask)), trajectory.mask):
        if not (math.isfinite(trajectory.logprobs[i]) and isinstance(trajectory.versions[i], str)):
            raise ValueError(
                f"token {i} was sampled, with logprob {trajectory.logprobs[i]} and version {trajectory.versions[i]!r}"
            )
    if not 0 <= trajectory.temperature < math.inf:
        raise ValueError(f"its temperature is {trajectory.temperature}")
