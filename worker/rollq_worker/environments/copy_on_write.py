"""Copy-on-write views of a database: one pristine copy a process, shared by all its episodes.

A record is copied when it is fetched by its key, and counts as touched from then on; scans over `values()` and
`items()` see the untouched records uncopied. The invariant: the pristine records are never written to, so whoever scans
must only read. Two views are equal exactly when their changes are, which only looks at what was touched. What a record
is, and when two are the same, is the business of whoever makes the database.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from hashlib import sha256
from typing import Any

Record = Any
Changes = Mapping[tuple[str, str], bytes | None]
"""Digest by (table, key) of every record that is not what it was in the pristine database; None: it is gone."""


class Table(MutableMapping[str, Record]):
    """One table as one episode sees it; behaves as a dict of records, in a dict's order."""

    __slots__ = ("_copy", "_gone", "_own", "_pristine")

    def __init__(self, pristine: Mapping[str, Record], copy: Callable[[Record], Record]) -> None:
        self._pristine = pristine
        self._copy = copy
        self._own: dict[str, Record] = {}
        self._gone: set[str] = set()

    def __getitem__(self, key: str) -> Record:
        if key in self._own:
            return self._own[key]
        if key in self._gone:
            raise KeyError(key)
        record = self._own[key] = self._copy(self._pristine[key])
        return record

    def __setitem__(self, key: str, record: Record) -> None:
        self._own[key] = record

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._own.pop(key, None)
        if key in self._pristine:
            self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own or (key in self._pristine and key not in self._gone)

    def __iter__(self) -> Iterator[str]:
        for key in self._pristine:
            if key not in self._gone:
                yield key
        for key in self._own:
            if key not in self._pristine or key in self._gone:
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def values(self) -> ValuesView[Record]:
        return _Values(self)

    def items(self) -> ItemsView[str, Record]:
        return _Items(self)

    def peek(self, key: str) -> Record:
        """The record without a copy, to be read only."""
        return self._own[key] if key in self._own else self._pristine[key]

    def touched(self) -> set[str]:
        return self._gone | self._own.keys()


class _Values(ValuesView[Record]):
    _mapping: Table

    def __iter__(self) -> Iterator[Record]:
        return (self._mapping.peek(key) for key in self._mapping)


class _Items(ItemsView[str, Record]):
    _mapping: Table

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        return ((key, self._mapping.peek(key)) for key in self._mapping)


class Database:
    """A pristine database and what its records are.

    `copy` makes an independent record; `canon` writes a record as a text, the same for two records exactly when the
    benchmark takes them for the same (so it tells 1 from 1.0 if the benchmark does).
    """

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Record]],
        *,
        copy: Callable[[Record], Record],
        canon: Callable[[Record], str],
    ) -> None:
        self.tables = tables
        self._copy = copy
        self._canon = canon
        self._digests: dict[tuple[str, str], bytes] = {}

    def view(self) -> dict[str, Table]:
        """A fresh view: costs some hundred bytes, whatever the size of the database."""
        return {name: Table(records, self._copy) for name, records in self.tables.items()}

    def changes(self, view: Mapping[str, Table]) -> Changes:
        """How `view` differs from the pristine database."""
        changed: dict[tuple[str, str], bytes | None] = {}
        for name, table in view.items():
            for key in table.touched():
                now = self._digest(table.peek(key)) if key in table else None
                if now != self._before(name, key):
                    changed[name, key] = now
        return changed

    def _before(self, name: str, key: str) -> bytes | None:
        if key not in self.tables[name]:
            return None
        if (name, key) not in self._digests:
            self._digests[name, key] = self._digest(self.tables[name][key])
        return self._digests[name, key]

    def _digest(self, record: Record) -> bytes:
        # A policy may write half a surrogate pair into a record; that must not stop the grading.
        return sha256(self._canon(record).encode("utf-8", "surrogatepass")).digest()
