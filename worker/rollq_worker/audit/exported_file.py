"""Reads the tokens of an exported file, as `rollq.export.record` wrote them and
`rollq.export.validation` checks them.

It knows nothing of engines.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, compress, count, islice
from pathlib import Path
from typing import NamedTuple

from rollq.errors import ContractError, SettingsError
from rollq.events import Finish
from rollq.export.validation import faults
from rollq.images import references
from rollq.job import Json
from rollq.teachers import Teacher
from rollq_worker.audit.token_classes import SampledTurn

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
"""Sampling parameters that change the logprobs of sampled tokens but not of scored ones, with the
values that have no effect.
"""
CUTS: Mapping[str, Json] = {"top_p": 1, "top_k": -1, "min_p": 0}
"""Neutral values of the parameters that change logprobs on some engines."""


class Piece(NamedTuple):
    """One reply of the engine."""

    length: int
    finish: str
    sampling: Mapping[str, Json]
    """Sampling parameters of this reply, in place of the job's."""


class Conditions(NamedTuple):
    """The conditions of a token's logprob, beside the tokens before it."""

    temperature: float
    """Divisor of the logits. For greedy sampling it is 1, because raw logprobs are reported then.
    """
    incomparable: str
    """The obstacle to a comparison, images or a sampling parameter. Empty without one."""
    cut: str
    """The parameter that cuts the distribution. Empty without one."""


@dataclass(frozen=True, kw_only=True)
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
    pieces: Sequence[Piece]
    """The engine's replies, in order."""
    calls: Sequence[bool]
    """One value per turn with a message: True if it called a tool."""
    sampling: Mapping[str, Json]
    """Parameters of the job. Those of an agent program come before them, reply by reply."""
    adapters: Sequence[str]
    """LoRA adapter that sampled each trace, of which `versions` are versions; empty without one.
    """
    images: bool = False
    """True if the policy saw images. The file has their references only, and scoring needs the
    images themselves.
    """

    def turns(self) -> Iterator[SampledTurn]:
        """The sampled tokens of each turn, in order."""
        starts = [0, *accumulate(self.traces)]
        pieces = iter(self.pieces)
        end = number = trace = 0
        while (begin := self.mask.find(1, end)) >= 0:
            next_prompt = self.mask.find(0, begin)
            end = next_prompt if next_prompt >= 0 else len(self.mask)
            ends = [begin]
            replies: list[Piece] = []
            while ends[-1] < end:
                replies.append(next(pieces))
                ends.append(ends[-1] + replies[-1].length)
            before = trace
            trace = bisect_right(starts, begin)
            yield SampledTurn(
                trace_start=starts[trace - 1],
                begin=begin,
                end=end,
                opens_trace=trace != before,
                calls=number < len(self.calls) and self.calls[number],
                pieces=ends[1:],
                stopped=replies[-1].finish == Finish.STOP,
                sampling={**self.sampling, **replies[0].sampling},
            )
            number += 1

    @cached_property
    def _ends(self) -> Sequence[int]:
        return [*accumulate(self.traces)]

    def adapter_at(self, position: int) -> str:
        """The adapter that sampled this token."""
        return self.adapters[bisect_right(self._ends, position)]

    @property
    def sampled(self) -> int:
        return self.mask.count(1)

    @property
    def prompt_ids(self) -> Iterator[int]:
        """The ids that were not sampled."""
        return compress(self.tokens, self.mask.translate(bytes([1, 0]).ljust(256, b"\0")))

    @cached_property
    def conditions(self) -> Mapping[int, Conditions]:
        """The conditions of each sampled token by position. Tokens of one reply share an entry."""
        positions = compress(count(), self.mask)
        by_position: dict[int, Conditions] = {}
        for piece in self.pieces:
            conditions = self._conditions({**self.sampling, **piece.sampling})
            for i in islice(positions, piece.length):
                by_position[i] = conditions
        return by_position

    def _conditions(self, sampling: Mapping[str, Json]) -> Conditions:
        temperature = float(sampling.get("temperature", 1.0))
        incomparable = "images" if self.images else _first_set(sampling, CHANGES_LOGPROBS)
        if temperature <= 1e-6:
            return Conditions(1.0, incomparable, "")
        return Conditions(temperature, incomparable, _first_set(sampling, CUTS))


def _first_set(sampling: Mapping[str, Json], neutral: Mapping[str, Json]) -> str:
    """The first of those parameters that has an effect, or ""."""
    for name, without_effect in neutral.items():
        value = sampling.get(name)
        if value and value != without_effect:
            return name
    return ""


def read(path: Path, teacher: str = "") -> Iterator[ExportedTrajectory]:
    """The file's trajectories, one at a time: as the policy sampled them, or with the scores of
    this teacher in place of the policy's.

    Raises SettingsError if the file cannot be read, ContractError that names the line.
    """
    number = 0
    try:
        with path.open("rb") as f:
            for number, text in enumerate(f, 1):
                yield _parse(text, f"{path}:{number}", teacher)
    except OSError as e:
        raise SettingsError(f"cannot read {path}: {e.strerror}") from e
    if not number:
        raise ContractError(f"{path} holds no trajectory")


def _parse(text: bytes, where: str, teacher: str) -> ExportedTrajectory:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as e:
        compressed = " (it is compressed: gzip -d it first)" if text.startswith(b"\x1f\x8b") else ""
        raise ContractError(f"{where} is not a line of JSON{compressed}: {e}") from e
    if not isinstance(record, dict):
        raise ContractError(f"{where} is not an exported trajectory but a {type(record).__name__}")
    problems = faults(record)
    if problems:
        raise ContractError(f"{where} is not an exported trajectory: {'; '.join(problems)}")
    try:
        trajectory = _trajectory(record, len(text))
        temperatures = {conditions.temperature for conditions in trajectory.conditions.values()}
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as e:
        raise ContractError(
            f"{where} is not an exported trajectory: {type(e).__name__}: {e}"
        ) from e
    for temperature in temperatures:
        if not 0 <= temperature < math.inf:
            raise ContractError(
                f"{where} is not an exported trajectory: its temperature is {temperature}"
            )
    return _of_teacher(trajectory, record, teacher, where) if teacher else trajectory


def _trajectory(record: Mapping[str, Json], size: int) -> ExportedTrajectory:
    pieces = []
    for length, finish, *sampling in record["pieces"]:
        pieces.append(Piece(length, finish, *(sampling or [{}])))
    return ExportedTrajectory(
        size=size,
        job=record["job"],
        tokens=array("I", record["tokens"]),
        mask=bytes(record["mask"]),
        logprobs=array("d", record["logprobs"]),
        versions=record["versions"],
        traces=record["traces"],
        pieces=pieces,
        calls=_calls(record),
        sampling=record["sampling"],
        adapters=_adapters(record),
        images=bool(references(record["messages"])),
    )


def _of_teacher(
    trajectory: ExportedTrajectory, record: Mapping[str, Json], name: str, where: str
) -> ExportedTrajectory:
    """The trajectory as if the teacher had sampled it, at temperature 1. Raises ContractError."""
    by_teacher = record.get("teacher_logprobs", {})
    if not trajectory.sampled:
        return trajectory  # nobody scored it
    if name not in by_teacher:
        there_are = ", ".join(by_teacher) or "none"
        raise ContractError(f"{where}: no logprobs of a teacher {name!r}; there are {there_are}")
    teacher = Teacher.read(record["teachers"][name])
    if teacher.prefix:
        raise ContractError(
            f"{where}: the teacher {name!r} saw a prefix, whose tokens are not in the file"
        )
    adapter, _, version = teacher.adapter.partition("@")
    if not adapter:
        version = _teacher_version(record["info"], name, where)
    return replace(
        trajectory,
        logprobs=array("d", by_teacher[name]),
        versions=[version if sampled else None for sampled in trajectory.mask],
        pieces=[piece._replace(sampling={}) for piece in trajectory.pieces],
        sampling={},
        adapters=[adapter for _ in trajectory.traces],
    )


def _teacher_version(info: Mapping[str, Json], name: str, where: str) -> str:
    """The weights that the teacher scored with. Raises ContractError."""
    versions = info.get("teacher_versions")
    version = versions.get(name) if isinstance(versions, Mapping) else None
    if not isinstance(version, str):
        raise ContractError(
            f"{where}: info.teacher_versions has no weight version of the teacher {name!r}"
        )
    return version


def _adapters(record: Mapping[str, Json]) -> list[str]:
    """The adapter of each trace."""
    models = record.get("models", {})
    own = record.get("adapter", "")
    traces = record.get("conversations") or [{} for _ in record["traces"]]
    return [models.get(trace.get("model"), {}).get("adapter", own) for trace in traces]


def _calls(record: Mapping[str, Json]) -> list[bool]:
    """One value per turn, in the order of the traces: True if it called a tool. Assistant messages
    of a prompt are not turns.
    """
    if "conversations" not in record:
        return [bool(m.get("tool_calls")) for m in record["messages"] if m["role"] == "assistant"]
    calls: list[bool] = []
    for trace in record["conversations"]:
        answers = [bool(m.get("tool_calls")) for m in trace["messages"] if m["role"] == "assistant"]
        answered = len(trace["turns"]) - ("unanswered" in trace)
        calls += answers[len(answers) - answered :]
        if "unanswered" in trace:
            calls.append(False)
    return calls
