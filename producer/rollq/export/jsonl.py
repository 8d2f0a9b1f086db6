"""Trajectories in a JSON Lines file: one per line, and on disk before `save` returns.

A crash leaves whole lines and at most one torn line at the end, which the next opening cuts off. A
job is written once, however often its group comes. One process at a time writes.
`rollq.export.record` decides what a line holds.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from rollq.errors import ContractError, SettingsError
from rollq.export.record import digest
from rollq.export.trajectory_output import (
    Exported,
    TrajectoryOutput,
    lock,
    open_file,
    sync_folder,
    write_all,
)
from rollq.export.validation import Checked, Head, faults
from rollq.job import Json

START = b'{"job":"'
"""How a line starts that this module wrote. This tells a torn line from the text of another
program.
"""


class Named(TypedDict, total=False):
    """Which episode a record is of. Other programs may have written other types."""

    job: Any
    began: Any


class Facts(Named, total=False):
    """What a list shows of a record."""

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


class TrajectoryFile(TrajectoryOutput):
    """A file open for writing, locked until it is closed or its process ends."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """`append` keeps the file's lines, else `begin` empties it.

        Raises SettingsError when the file cannot be written or another process writes it,
        ContractError when it holds something other than trajectories.
        """
        self._fd = _open(path)
        super().__init__(path)
        self._begun = append
        self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)  # not a pipe, not /dev/null
        try:
            if self._regular:
                lock(self._fd, path)
                if append:
                    os.truncate(self._fd, self._resume())
                    os.lseek(self._fd, 0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    def _resume(self) -> int:
        """Reads which jobs are in the file. Returns where the last whole line ends."""
        end, line = 0, b"\n"
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and _is_torn(line):
                    return end
                whole = line if line.endswith(b"\n") else line + b"\n"
                record = _parse(line, f"{self.path}:{number}", Named)
                began = record.get("began")
                self._known.add(
                    [(record["job"], digest(whole), began if isinstance(began, float) else 0.0)]
                )
                end += len(line)
        if line.endswith(b"\n"):
            return end
        os.pwrite(self._fd, b"\n", end)  # an editor removed it
        return end + 1

    def begin(self) -> None:
        if self._regular and not self._begun:
            os.truncate(self._fd, 0)
        self._begun = True

    def _write(self, new: Sequence[Exported]) -> None:
        write_all(self._fd, b"".join(exported.line for exported in new))
        if self._regular:
            os.fsync(self._fd)

    def close(self) -> None:
        super().close()
        os.close(self._fd)


def read(path: Path, number: int) -> dict[str, Json]:
    """Line `number` of the file, counted from 1. Raises SettingsError or ContractError."""
    with open_file(path) as f:
        for at, line in enumerate(f, 1):
            if at == number:
                return _parse(line, f"{path}:{number}")
    raise SettingsError(f"{path} has no line {number}")


def lines_of(path: Path, jobs: Sequence[str]) -> dict[str, int]:
    """The lines of these jobs, counted from 1; jobs that the file does not have are left out.
    Raises SettingsError.
    """
    wanted = frozenset(jobs)
    named = ((str(head.fields.get("job")), head.end) for head in heads(path, None))
    return {job_id: number for job_id, (number, _) in named if job_id in wanted}


def heads(path: Path, start: tuple[int, int] | None) -> Iterator[Head]:
    """The lines from `start` on, which is the `end` of an earlier head, without their tokens and
    messages.

    A torn last line is left out. Raises SettingsError when the file cannot be read.
    """
    before, at = start or (0, 0)
    with open_file(path) as f:
        f.seek(at)
        size = max(1, os.fstat(f.fileno()).st_size)
        for number, line in enumerate(f, before + 1):
            if not line.endswith(b"\n") and _is_torn(line):
                return
            where, at = at, at + len(line)
            record, wrong = line_head(line)
            yield Head(f"line {number}", where, (number, at), record, wrong, at / size)


def read_at(path: Path, where: int) -> dict[str, Json]:
    """The line that begins at this byte (`Head.where`). Raises SettingsError or ContractError."""
    with open_file(path) as f:
        f.seek(where)
        return _parse(f.readline(), str(path))


def check(path: Path) -> Iterator[Checked]:
    """Every line checked, one at a time in memory. Raises SettingsError when the file cannot be
    read.
    """
    at = 0
    with open_file(path) as f:
        size = os.fstat(f.fileno()).st_size
        for number, line in enumerate(f, 1):
            at += len(line)
            job_id, wrong = _faults(line)
            yield Checked(f"line {number}", job_id, wrong, min(1.0, at / max(1, size)))


def _faults(line: bytes) -> tuple[str, list[str]]:
    """The job that the line names, empty when it names none, and what is wrong with the line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as e:
        torn = (
            " (torn by a crash: the next pull cuts it off)"
            if not line.endswith(b"\n") and _is_torn(line)
            else ""
        )
        return "", [f"it is not a line of JSON{torn}: {e}"]
    if not isinstance(record, dict):
        return "", [f"it is no trajectory but a {type(record).__name__}"]
    job_id = record.get("job")
    return job_id if isinstance(job_id, str) else "", faults(record)


def _is_torn(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return START.startswith(line[: len(START)])
    return False


def _parse(line: bytes, where: str, wanted: type | None = None) -> dict[str, Any]:
    """The record, or at least its fields of `wanted`. Raises ContractError."""
    try:
        record = fields_of(line, wanted) if wanted else json.loads(line)
    except (ValueError, RecursionError) as e:
        raise ContractError(f"{where} is not a line of JSON: {e}") from e
    if not isinstance(record, dict) or not isinstance(record.get("job"), str):
        raise ContractError(f"{where} is not an exported trajectory: it names no job")
    return record


def _open(path: Path) -> int:
    new = not path.exists()
    try:
        # Opened for reading too, a pipe would never break when its reader goes away.
        fd = os.open(path, os.O_RDWR | os.O_CREAT if new or path.is_file() else os.O_WRONLY, 0o666)
        if new:
            sync_folder(path.parent)
    except OSError as e:
        raise SettingsError(f"cannot write {path}: {e.strerror}") from e
    return fd


def line_head(line: bytes) -> tuple[dict[str, Any], str]:
    """`Head.fields` of a line of JSON Lines, and why it cannot be read, if so."""
    try:
        record = fields_of(line, _FactsAndMask)
    except (ValueError, RecursionError) as e:
        return {}, f"it is not a line of JSON: {e}"
    if not isinstance(record, dict):
        return {}, f"it is no trajectory but a {type(record).__name__}"
    if isinstance(mask := record.get("mask"), list):
        record["sampled"] = mask.count(1)
    return record, ""


def fields_of(line: bytes, wanted: type) -> Any:
    """A line's value: of an object at least the fields of `wanted`, a TypedDict. Raises ValueError,
    RecursionError.
    """
    try:
        return _decoder(wanted)(line)
    except (ValueError, RecursionError):
        return json.loads(
            line
        )  # has what msgspec refuses: half a surrogate pair, numbers beyond 64 bits


@cache
def _decoder(wanted: type) -> Callable[[bytes], Any]:
    try:
        import msgspec
    except ModuleNotFoundError:
        return json.loads
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(wanted).decode
    return decode
