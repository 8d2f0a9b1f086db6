"""Copy-on-write views of a database: one shared copy in each process, one view for each episode.

A view copies a record when it is fetched by its key. Scans over `values()` and `items()` give
untouched records without a copy, so code that scans must only read. The invariant: shared records
are never written to. Two views hold the same data exactly when their changes are equal. Only
touched records are compared. The caller says what a record is and when two are equal.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from hashlib import sha256
from operator import is_, itemgetter
from typing import Any

Record = Any
Changes = Mapping[str, bytes | None]
"""Digest of each record that differs from the shared database, by the record's name. None for one
that was deleted.
"""


class Table(MutableMapping[str, Record]):
    """One table as one episode sees it: a dict of records, in a dict's order."""

    __slots__ = ("_copy", "_gone", "_own", "_shared")

    def __init__(self, shared: Mapping[str, Record], copy: Callable[[Record], Record]) -> None:
        self._shared = shared
        self._copy = copy
        self._own: dict[str, Record] = {}
        self._gone: set[str] = set()

    def __getitem__(self, key: str) -> Record:
        if key in self._own:
            return self._own[key]
        if key in self._gone:
            raise KeyError(key)
        record = self._own[key] = self._copy(self._shared[key])
        return record

    def __setitem__(self, key: str, record: Record) -> None:
        self._own[key] = record

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._own.pop(key, None)
        if key in self._shared:
            self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own or (key in self._shared and key not in self._gone)

    def __iter__(self) -> Iterator[str]:
        return map(itemgetter(0), self.pairs())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def values(self) -> ValuesView[Record]:
        return _Values(self)

    def items(self) -> ItemsView[str, Record]:
        return _Items(self)

    def pairs(self) -> Iterator[tuple[str, Record]]:
        """Keys and records in order, without copies. A record that is fetched meanwhile is given as
        it is then.
        """
        own = self._own
        gone = self._gone
        for key, record in self._shared.items():
            if key not in gone:
                yield key, own.get(key, record)
        for key in [*own]:
            if key in own and (key not in self._shared or key in gone):
                yield key, own[key]

    def peek(self, key: str) -> Record:
        """The record itself, not a copy, so it must only be read. `key` is in the table."""
        return self._own[key] if key in self._own else self._shared[key]

    def touched(self) -> set[str]:
        """Keys of records that were fetched, set or deleted."""
        return self._gone | self._own.keys()


class _Values(ValuesView[Record]):
    _mapping: Table

    def __iter__(self) -> Iterator[Record]:
        return map(itemgetter(1), self._mapping.pairs())


class _Items(ItemsView[str, Record]):
    _mapping: Table

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        return self._mapping.pairs()


View = Mapping[str, Table]
"""All tables of a database as one episode sees them."""


class SharedDatabase:
    """The records that all episodes start from, by table and key.

    `copy` makes an independent record. `canon` writes a record as a text; two texts are equal
    exactly when the benchmark takes the records for equal (so it tells 1 from 1.0 if the benchmark
    does). `untouched` is true only of a copy and its record whose texts are equal, and spares
    writing them. `name` is the record's name in reports, unique in the database.
    """

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Record]],
        *,
        copy: Callable[[Record], Record],
        canon: Callable[[Record], str],
        untouched: Callable[[Record, Record], bool] = is_,
        name: Callable[[str, str], str] = "{}/{}".format,
    ) -> None:
        self.tables = tables
        self._copy = copy
        self._canon = canon
        self._untouched = untouched
        self._name = name
        self._digests: dict[
            tuple[str, str], bytes
        ] = {}  # digests of shared records, made when they are needed

    def view(self) -> View:
        """A fresh view. It takes some hundred bytes, whatever the size of the database."""
        return {table: Table(records, self._copy) for table, records in self.tables.items()}

    def changes(self, view: View) -> Changes:
        """Differences of `view` from the shared database."""
        changed: dict[str, bytes | None] = {}
        for table, records in view.items():
            shared = self.tables[table]
            for key in records.touched():
                now = records.peek(key) if key in records else None
                if self._untouched(now, shared.get(key)):
                    continue  # it was only read
                digest = None if now is None else self._digest(now)
                if digest != self._shared_digest(table, key):
                    changed[self._name(table, key)] = digest
        return changed

    def _shared_digest(self, table: str, key: str) -> bytes | None:
        if key not in self.tables[table]:
            return None
        if (table, key) not in self._digests:
            self._digests[table, key] = self._digest(self.tables[table][key])
        return self._digests[table, key]

    def _digest(self, record: Record) -> bytes:
        # A policy may write half a surrogate pair into a record; that must not stop the grading.
        return sha256(self._canon(record).encode("utf-8", "surrogatepass")).digest()
