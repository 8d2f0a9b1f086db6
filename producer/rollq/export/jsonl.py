"""Reads the lines of an exported file, one at a time."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict

from rollq.errors import ContractError, SettingsError
from rollq.export.validation import Checked, faults
from rollq.job import Json

START = b'{"job":"'
"""Start of rollq's lines. It tells a torn line from the text of another program."""


class Identity(TypedDict, total=False):
    """Fields that say which episode a record is of. Other programs may have written other types."""

    job: Any
    began: Any


class Facts(Identity, total=False):
    """Fields of a record that a list shows."""

    run: Any
    group: Any
    sample: Any
    env: Any
    split: Any
    task: Any
    attempt: Any
    stop: Any
    failure: Any
    reward: Any
    turns: Any
    info: Any


class _FactsAndMask(Facts, total=False):
    mask: Any


class Head(NamedTuple):
    """A line without its messages and tokens, which are nearly all of it."""

    number: int
    """Number of the line, from 1."""
    start: int
    """Byte at which the line begins."""
    end: int
    """Byte behind the line."""
    fields: dict[str, Any]
    """Fields of the record, with at least those of `Facts` that it has, and `sampled` (tokens)
    where the mask says it. Empty for a line that cannot be read.
    """
    fault: str
    """Why the line cannot be read, else empty."""
    share: float
    """Part of the file up to its end, from 0.0 to 1.0."""


def read(path: Path, number: int) -> dict[str, Json]:
    """Line `number` of the file, counted from 1. Raises SettingsError or ContractError."""
    with _open(path) as f:
        for place, line in enumerate(f, 1):
            if place == number:
                return parse_line(line, f"{path}:{number}")
    raise SettingsError(f"{path} has no line {number}")


def read_at(path: Path, start: int) -> dict[str, Json]:
    """The line that begins at this byte (`Head.start`). Raises SettingsError or ContractError."""
    with _open(path) as f:
        f.seek(start)
        return parse_line(f.readline(), str(path))


def beginning(path: Path, length: int) -> tuple[bytes, int]:
    """The file's first bytes, and its size in bytes. Raises SettingsError when it cannot be
    read.
    """
    with _open(path) as f:
        return f.read(length), os.fstat(f.fileno()).st_size


def line_numbers(path: Path, jobs: Sequence[str]) -> dict[str, int]:
    """The last line of each of these jobs, counted from 1; jobs that the file does not have are
    left out. Raises SettingsError.
    """
    wanted = frozenset(jobs)
    numbers = {}
    for head in heads(path):
        job_id = str(head.fields.get("job"))
        if job_id in wanted:
            numbers[job_id] = head.number
    return numbers


def heads(path: Path, after: Head | None = None) -> Iterator[Head]:
    """The heads of the lines, or of those after this one.

    A torn last line is left out. Raises SettingsError when the file cannot be read.
    """
    number, end = (after.number, after.end) if after else (0, 0)
    with _open(path) as f:
        end += _newline_came_later(f, end)
        f.seek(end)
        size = max(1, os.fstat(f.fileno()).st_size)
        for line in f:
            if is_torn(line):
                return
            number, start, end = number + 1, end, end + len(line)
            fields, fault = line_head(line)
            yield Head(number, start, end, fields, fault, end / size)


def _newline_came_later(f: BinaryIO, end: int) -> bool:
    """True if the line that ended here had no newline then, and has one now."""
    f.seek(max(0, end - 1))
    last, now = f.read(1), f.read(1)
    return bool(end) and last != b"\n" and now == b"\n"


def check(path: Path) -> Iterator[Checked]:
    """Checks every line, one at a time in memory. Raises SettingsError when the file cannot be
    read.
    """
    end = 0
    with _open(path) as f:
        size = max(1, os.fstat(f.fileno()).st_size)
        for number, line in enumerate(f, 1):
            end += len(line)
            job_id, line_faults = _line_faults(line)
            yield Checked(f"line {number}", job_id, line_faults, min(1.0, end / size))


def _line_faults(line: bytes) -> tuple[str, list[str]]:
    """The job of the line, empty when it names none, and the line's faults."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as e:
        torn = " (torn by a crash: the next pull cuts it off)" if is_torn(line) else ""
        return "", [f"it is not a line of JSON{torn}: {e}"]
    if not isinstance(record, dict):
        return "", [f"it is not a trajectory but a {type(record).__name__}"]
    job_id = record.get("job")
    return job_id if isinstance(job_id, str) else "", faults(record)


def is_torn(line: bytes) -> bool:
    """True if this is the start of a line of rollq's, which a crash kept from being written."""
    if line.endswith(b"\n"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return START.startswith(line[: len(START)])
    return False


def parse_line(line: bytes, where: str, wanted: type | None = None) -> dict[str, Any]:
    """The record, or at least its fields of `wanted`. Raises ContractError."""
    try:
        record = fields_of(line, wanted) if wanted else json.loads(line)
    except (ValueError, RecursionError) as e:
        raise ContractError(f"{where} is not a line of JSON: {e}") from e
    if not isinstance(record, dict) or not isinstance(record.get("job"), str):
        raise ContractError(f"{where} is not an exported trajectory: it names no job")
    return record


def line_head(line: bytes) -> tuple[dict[str, Any], str]:
    """`Head.fields` and `Head.fault` of a line."""
    try:
        record = fields_of(line, _FactsAndMask)
    except (ValueError, RecursionError) as e:
        return {}, f"it is not a line of JSON: {e}"
    if not isinstance(record, dict):
        return {}, f"it is not a trajectory but a {type(record).__name__}"
    mask = record.get("mask")
    if isinstance(mask, list):
        record["sampled"] = mask.count(1)
    return record, ""


def fields_of(line: bytes, wanted: type) -> Any:
    """A line's value: of an object at least the fields of `wanted`, a TypedDict. Raises ValueError,
    RecursionError.
    """
    try:
        return _decoder(wanted)(line)
    except (ValueError, RecursionError):
        # msgspec refuses half a surrogate pair and numbers beyond 64 bits
        return json.loads(line)


@cache
def _decoder(wanted: type) -> Callable[[bytes], Any]:
    try:
        import msgspec
    except ModuleNotFoundError:
        return json.loads
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(wanted).decode
    return decode


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Opens the file for reading. Raises SettingsError when it cannot be read."""
    try:
        with path.open("rb") as f:
            yield f
    except OSError as e:
        raise SettingsError(f"cannot read {path}: {e.strerror}") from e
