"""Trajectories in a folder of Parquet files: one file for each batch, whole on disk before `save`
returns.

A file is written under a hidden name and renamed once it is durable, so a crash leaves whole files
and at most one hidden one, which the next opening deletes. pandas, datasets and pyarrow read such a
folder as one table and skip hidden files. `rollq.export.rows` decides what a row holds. The only
module that imports pyarrow.
"""

from __future__ import annotations  # pyarrow's names are not there at run time

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.errors import ContractError, SettingsError
from rollq.export.record import unexportable
from rollq.export.rows import record_of, rows
from rollq.export.trajectory_output import (
    Exported,
    TrajectoryOutput,
    lock,
    open_file,
    sync_folder,
    write_all,
)
from rollq.export.validation import Checked, Head, faults
from rollq.pip_extras import needs

if TYPE_CHECKING:
    import pyarrow as pa

PART = re.compile(r"part-(\d{8})\.parquet")
UNFINISHED = ".unfinished"
"""The file that is being written. It hides from readers."""
MAGIC = b"PAR1"
"""How a Parquet file starts."""
ROWS_AT_ONCE = 64
"""Rows that are in memory while a file is read."""
COLUMNS = {
    "job": "string",
    "began": "float64",
    "run": "string",
    "group": "string",
    "sample": "int64",
    "env": "string",
    "split": "string",
    "task": "int64",
    "queue": "string",
    "labels": "string",
    "sampling": "string",
    "attempt": "int64",
    "stop": "string",
    "failure": "string",
    "reward": "float64",
    "turns": "int64",
    "messages": "string",
    "info": "string",
    "digest": "int64",
    "segment": "int64",
    "segments": "int64",
    "prompt_ids": "list int64",
    "response_ids": "list int64",
    "mask": "list bool",
    "logprobs": "list float32",
    "versions": "list string",
    "turn_rewards": "list float64",
    "extras": "string",
    "template_kwargs": "string",
    "conversations": "string",
    "steps": "string",
    "adapter": "string",
}
"""Columns and their types. Readers of later versions may find more columns behind them."""
LATER = ("adapter",)
"""Those that files of an earlier rollq lack."""
HEAD = (
    *(
        "job",
        "began",
        "run",
        "group",
        "sample",
        "env",
        "split",
        "task",
        "attempt",
        "stop",
        "failure",
        "reward",
    ),
    *("turns", "info", "digest", "segment"),
)
"""Columns that `heads` reads."""


class ParquetFolder(TrajectoryOutput):
    """A folder open for writing, locked until it is closed or its process ends."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """`append` keeps the folder's files, else `begin` deletes them.

        Raises SettingsError when pyarrow is not installed, when the folder cannot be written, or
        when another process writes it; ContractError when it holds something other than
        trajectories.
        """
        self._schema = _schema()
        self._fd = _open(path)
        super().__init__(path)
        self._begun = append
        try:
            lock(self._fd, path)
            with contextlib.suppress(FileNotFoundError):
                (path / UNFINISHED).unlink()
            self._parts = _parts(path)
            for part in self._parts if append else ():
                self._resume(part)
        except BaseException:
            self.close()
            raise

    def _resume(self, part: Path) -> None:
        """Reads which jobs are in the file."""
        try:
            for row in _rows(part, ["job", "digest", "began"]):
                self._known.add([(row["job"], row["digest"], row["began"] or 0.0)])
        except (OSError, ValueError, KeyError) as e:
            raise ContractError(
                f"{part} is not a file of exported trajectories: {_one_line(e)}"
            ) from e

    def begin(self) -> None:
        if not self._begun:
            for part in self._parts:
                part.unlink()
            self._parts = []
        self._begun = True

    def _write(self, new: Sequence[Exported]) -> None:
        last = PART.fullmatch(self._parts[-1].name) if self._parts else None
        part = self.path / f"part-{int(last[1]) + 1 if last else 1:08}.parquet"
        data = self._encode(new)
        hidden = self.path / UNFINISHED
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        hidden.rename(part)
        sync_folder(self.path)
        self._parts.append(part)

    def _encode(self, new: Sequence[Exported]) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        batches = []
        for exported in new:
            try:
                encoded = rows(exported.trajectory, exported.digest)
                batches.append(pa.RecordBatch.from_pylist(encoded, schema=self._schema))
            except (
                ValueError,
                OverflowError,
            ) as e:  # half a surrogate pair, a number beyond 64 bits
                raise unexportable(exported.trajectory, e) from e
        sink = pa.BufferOutputStream()
        table = pa.Table.from_batches(batches)
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        return bytes(sink.getvalue())

    def close(self) -> None:
        super().close()
        os.close(self._fd)


def is_parquet(path: Path) -> bool:
    """Whether this is a folder of Parquet files, or one such file. Raises SettingsError when it
    cannot be read.
    """
    if path.is_dir():
        return True
    with open_file(path) as f:
        return f.read(len(MAGIC)) == MAGIC


def check(path: Path) -> Iterator[Checked]:
    """Every trajectory of a folder, or of one file, checked; the rows of one at a time in memory.

    A file that cannot be read is a fault of its own, and the next one is read. Raises SettingsError
    when pyarrow is not installed or the folder cannot be read, ContractError when it holds
    something else.
    """
    schema = _schema()
    parts = _parts(path) if path.is_dir() else [path]
    for number, part in enumerate(parts):
        try:
            if wrong := _column_faults(part, schema):
                yield Checked(part.name, "", wrong, (number + 1) / len(parts))
                continue
            for checked in _check_part(part):
                yield checked._replace(share=(number + checked.share) / len(parts))
        except (OSError, ValueError) as e:
            yield Checked(
                part.name, "", [f"it cannot be read: {_one_line(e)}"], (number + 1) / len(parts)
            )


def heads(path: Path, start: str | None) -> Iterator[Head]:
    """The trajectories of the files behind the one named `start`, without their tokens and
    messages.

    Raises SettingsError when pyarrow is not installed or the folder cannot be read, ContractError
    when it holds something else.
    """
    _schema()
    parts = [
        part
        for part in (_parts(path) if path.is_dir() else [path])
        if start is None or part.name > start
    ]
    for number, part in enumerate(parts):
        share = (number + 1) / len(parts)
        before = parts[number - 1].name if number else start
        try:
            trajectories = [_facts(row) for row in _rows(part, [*HEAD]) if row["segment"] == 0]
        except (OSError, ValueError, KeyError) as e:
            yield Head(
                part.name,
                (part.name, "", 0),
                part.name,
                {},
                f"it cannot be read: {_one_line(e)}",
                share,
            )
            continue
        for place, facts in enumerate(trajectories, 1):  # a file is read on from its end only
            end = part.name if place == len(trajectories) else before
            where = (part.name, facts["job"], facts["digest"])
            yield Head(f"{part.name} trajectory {place}", where, end, facts, "", share)


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    try:
        return row | {"info": json.loads(row["info"] or "{}")}
    except (ValueError, RecursionError):
        return row | {"info": {"reason": "its info is no JSON"}}


def read_at(path: Path, where: tuple[str, str, int]) -> dict[str, Any]:
    """The trajectory at that place (`Head.where`), as a record. Raises SettingsError or
    ContractError.
    """
    name, job_id, digest = where
    part = path / name if path.is_dir() else path
    try:
        rows_of_job = [row for row in _rows(part, [*COLUMNS], job_id) if row["digest"] == digest]
        record, wrong = (
            record_of(rows_of_job) if rows_of_job else ({}, ["it is not there any more"])
        )
    except (OSError, ValueError, KeyError) as e:
        record, wrong = {}, [f"it cannot be read: {_one_line(e)}"]
    if wrong:
        raise ContractError(f"{part.name}, job {job_id}: {'; '.join(wrong)}")
    return record


def _check_part(part: Path) -> Iterator[Checked]:
    at, total = 0, _file(part).metadata.num_rows
    for job_id, of_job in groupby(_rows(part, [*COLUMNS]), key=lambda row: row["job"]):
        first, together = at + 1, list(of_job)
        at += len(together)
        record, wrong = record_of(together)
        yield Checked(f"{part.name} row {first}", job_id or "", wrong or faults(record), at / total)


def _column_faults(part: Path, schema: pa.Schema) -> list[str]:
    """Other programs may have written the rows again, and have other words for the same types."""
    stored = _file(part).schema_arrow
    missing = [name for name in COLUMNS if name not in (*stored.names, *LATER)]
    wrong = [f"it has no column {name}" for name in missing]
    for field in schema:
        if field.name in stored.names and _kind(stored.field(field.name).type) != _kind(field.type):
            wrong.append(
                f"column {field.name} must be {field.type}, not {stored.field(field.name).type}"
            )
    return wrong


def _kind(type: pa.DataType) -> str:
    return re.sub(r"large_|(item|element): | not null|_view", "", str(type))


def _rows(part: Path, columns: list[str], job_id: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows, or those of one job.

    Raises OSError or ValueError when the file is damaged, KeyError when a column is missing.
    """
    file = _file(part)
    stored = file.schema_arrow.names
    columns = [name for name in columns if name in stored or name not in LATER]
    if missing := set(columns) - set(stored):
        raise KeyError(f"it has no column {min(missing)}")
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
        if job_id is None:
            yield from batch.to_pylist()
        elif job_id in (
            jobs := batch.column("job").to_pylist()
        ):  # most batches need not become Python objects
            yield from (
                batch.slice(place, 1).to_pylist()[0]
                for place, of in enumerate(jobs)
                if of == job_id
            )


def _file(part: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(part, page_checksum_verification=True, pre_buffer=False)


def _schema() -> pa.Schema:
    """Raises SettingsError when pyarrow is not installed."""
    with needs("parquet"):
        import pyarrow as pa
        import pyarrow.parquet

    def type_of(words: str) -> pa.DataType:
        *in_list, name = words.split()
        kind = pa.bool_() if name == "bool" else pa.type_for_alias(name)
        return pa.list_(kind) if in_list else kind

    return pa.schema([(name, type_of(words)) for name, words in COLUMNS.items()])


def _parts(folder: Path) -> list[Path]:
    """In the order in which they were written. Raises SettingsError, ContractError."""
    try:
        parts = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    except OSError as e:
        raise SettingsError(f"cannot read {folder}: {e.strerror}") from e
    if other := [path for path in parts if not PART.fullmatch(path.name)]:
        raise ContractError(
            f"{folder} holds {other[0].name}, which `rollq pull` did not write: name another folder"
        )
    return parts


def _open(folder: Path) -> int:
    try:
        if not folder.exists():
            folder.mkdir()
            sync_folder(folder.parent)
        if not os.access(folder, os.W_OK):
            raise PermissionError(0, "Permission denied")
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except NotADirectoryError as e:
        raise SettingsError(
            f"{folder} is a file, and Parquet is written as a folder of files: name another one"
        ) from e
    except OSError as e:
        raise SettingsError(f"cannot write {folder}: {e.strerror}") from e


def _one_line(error: Exception) -> str:
    return " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
