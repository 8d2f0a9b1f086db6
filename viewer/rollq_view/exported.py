"""An exported file as a place with rollouts: an index of its lines in memory, which grows with the
file.

The index has a few facts of each rollout; an episode is read when its page is opened. A request
reads on for a moment only, so the first rows of a large file are there at once. A file that was
overwritten is read again.
"""

import time
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from threading import Lock
from typing import Any

from rollq.errors import ContractError, RollqError, SettingsError
from rollq.events import GRADED
from rollq.export import jsonl
from rollq.export.facts import Record
from rollq.export.jsonl import Head
from rollq.export.validation import faults
from rollq.images import IMAGES, files_by_hash, references
from rollq_view.conversation import page
from rollq_view.place import Listing
from rollq_view.rows import Row, finite_rewards, short, why

READS_FOR_S = 0.3
"""Seconds that a request reads on in the file."""
BEGINNING = 1024
"""Bytes that tell whether the file is still the one that was read: rollq's lines begin with the job
and when it began.
"""
UNREADABLE = "unreadable"
"""Name of the run of lines that cannot be read."""


class ExportedFile:
    """A `Place`: a file of JSON Lines."""

    live = False

    def __init__(self, path: Path) -> None:
        """Raises SettingsError when it cannot be read."""
        self.title = path.name
        self._path = path
        self._lock = Lock()
        self._version = 0
        self._beginning = b""
        self._forget()
        self._read_on()

    def _forget(self) -> None:
        self._starts: dict[str, int] = {}
        """Byte at which the line of each row begins, by the row's key."""
        self._rows: dict[str, dict[str, Row]] = {}
        """Rows by run, then by key."""
        self._last: Head | None = None
        self._heads: Iterator[Head] = iter(())
        self._share = 0.0

    def runs(self) -> list[dict[str, Any]]:
        self._read_on()
        copies = dict(self._rows)  # another thread may read on
        return [_totals(name, dict(rows)) for name, rows in copies.items()]

    def listing(self, run: str) -> Listing:
        self._read_on()
        if run not in self._rows:
            raise SettingsError(f"{self.title} has no rollouts of run {run!r}")
        return Listing(rows=dict(self._rows[run]), version=self._version, share=self._share)

    def rollout(self, run: str, key: str, attempt: int | None) -> dict[str, Any]:
        self._read_on()
        row = self._rows.get(run, {}).get(key)
        if row is None:
            raise SettingsError(f"{self.title} has no rollout {key!r}")
        record = jsonl.read_at(self._path, self._starts[key])
        state = _state(record.get("stop"))
        return page_of_record(record, key=key, group=row.group, state=state)

    def requeue(self, run: str, job_id: str) -> None:
        raise SettingsError("a rollout of a file cannot be played again: view its run")

    def _read_on(self) -> None:
        """Reads further rows, for READS_FOR_S at the most."""
        with self._lock:
            deadline = time.monotonic() + READS_FOR_S
            if self._share in (0.0, 1.0):
                if not self._is_the_same():
                    self._forget()
                    self._version += 1
                self._heads = jsonl.heads(self._path, self._last)
            for head in self._heads:
                self._add(head)
                self._share = min(head.share, 0.999)
                self._last = head
                if time.monotonic() > deadline:
                    return
            self._share = 1.0

    def _is_the_same(self) -> bool:
        """True if the file has only grown. Notes its beginning."""
        before = self._beginning
        self._beginning, size = jsonl.beginning(self._path, BEGINNING)
        return self._beginning.startswith(before) and size >= (self._last.end if self._last else 0)

    def _add(self, head: Head) -> None:
        try:
            row = row_of(head.fields)
        except (ContractError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            row = _unreadable(head, e)
        count = 1
        key = row.job
        while key in self._starts:
            count += 1
            key = f"{row.job}#{count}"
        self._starts[key] = head.start
        self._rows.setdefault(row.run, {})[key] = replace(row, key=key)
        self._version += 1


def page_of_record(record: Record, **facts: Any) -> dict[str, Any]:
    """The page of a record as a file has it. Raises ContractError."""
    return page(record, images=_images(record), faults=faults(record), **facts)


def row_of(record: Record) -> Row:
    """The row of a record without its tokens and messages; it has `sampled` where the mask says
    it.
    """
    reward = record["reward"]
    sampled = record.get("sampled")
    failure = str(record["failure"] or "")
    return Row(
        key="",
        job=_name(record["job"]),
        run=_name(record["run"]),
        group=_name(record["group"]),
        sample=int(record["sample"]),
        env=str(record["env"]),
        split=str(record["split"]),
        task=int(record["task"]),
        state=_state(record["stop"]),
        stop=str(record["stop"] or ""),
        failure=failure,
        reward=None if reward is None else float(reward),
        turns=int(record["turns"]),
        sampled=None if sampled is None else int(sampled),
        attempt=int(record["attempt"]),
        began=float(record.get("began") or 0.0),
        why=why(dict(record["info"]), failure),
    )


def _name(value: Any) -> str:
    """A name as the address of a page can carry it. Raises ValueError for an empty one."""
    name = str(value).encode("utf-8", "backslashreplace").decode()
    if not name:
        raise ValueError("a name is empty")
    return name


def _state(stop: Any) -> str:
    return "done" if stop in GRADED else "dead"


def _unreadable(head: Head, error: Exception) -> Row:
    """The row of a line that is not an exported trajectory."""
    fault = head.fault or f"it is not an exported trajectory: {type(error).__name__} {error}"
    name = f"line {head.number}"
    return Row(key="", job=name, run=UNREADABLE, group=name, state=UNREADABLE, why=short(fault))


def _totals(name: str, rows: Mapping[str, Row]) -> dict[str, Any]:
    rewards = finite_rewards(rows.values())
    return {
        "run": name,
        "rollouts": len(rows),
        "dead": sum(row.state == "dead" for row in rows.values()),
        "began": min((row.began for row in rows.values() if row.began), default=0.0),
        "reward_mean": mean(rewards) if rewards else None,
    }


def _images(record: Record) -> dict[str, bytes]:
    """The files of the record's images, if it was exported with them."""
    try:
        data = b64decode(record["extras"][IMAGES]["data"])
        return files_by_hash(references(record["messages"]), data, str(record["job"]))
    except (KeyError, TypeError, ValueError, AttributeError, RollqError):
        return {}
