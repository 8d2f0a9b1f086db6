"""Environments by name: `shop`, `tau2:retail`, and whatever installed packages add.

A name is an entry point of the group `rollq.environments`. It is a callable that takes the part
after the colon (None without one) and returns a Domain. A domain is loaded at its first use, once
in each process. This module knows no environment but the shop. `files` has the environments without
a package.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from threading import Lock
from typing import Any, NamedTuple

from rollq.env import Domain
from rollq.errors import JobFailure, RollqError
from rollq.job import FOLDERS_OF
from rollq_worker.environments.files import FILES, load_of
from rollq_worker.extensions.authors_line import line_of
from rollq_worker.failures import FOREIGN_ERRORS

GROUP = "rollq.environments"

SHOP = EntryPoint("shop", "rollq_worker.environments.shop:load", GROUP)


class _Source(NamedTuple):
    """The function that makes a domain."""

    load: Callable[[], Callable[[str | None], Any]]
    variant: str | None
    where: str


_domains: dict[str, Domain] = {}
_locks: dict[str, Lock] = {}


def names() -> list[str]:
    """The names of all environments, also of those whose package is not installed."""
    return sorted({*_entries(), *(file.name for file in FILES.readable())})


def origins() -> dict[str, str]:
    """The package of each environment by its name, for rollq's own with the extra that it needs."""
    return {name: _origin(entries[0]) for name, entries in _entries().items()}


def _origin(entry: EntryPoint) -> str:
    if entry is SHOP:
        return "rollq"
    if entry.dist is None or entry.dist.name != "rollq":
        return entry.dist.name if entry.dist else entry.value
    # the extra has the environment's name
    return f"rollq[{entry.name.partition(':')[0].replace('_', '-')}]"


def domain(name: str) -> Domain:
    """The environment of that name, the same object for all threads. After a failure the next call
    tries again.

    Raises JobFailure for an unknown name, a name that two packages claim, and a failure to load.
    Raises ForOtherWorkers for a file that this process does not have. An adapter's own RollqError
    passes through, such as the one for a missing package.
    """
    if name in _domains:
        return _domains[name]
    # One lock for each name: an adapter that imports for seconds must not delay other environments.
    # It covers the look-up, because it reads the metadata of every installed package, and a
    # thousand threads may ask at once.
    with _locks.setdefault(name, Lock()):
        if name not in _domains:
            _domains[name] = _load(name, _find(name))
        return _domains[name]


def _entries() -> dict[str, list[EntryPoint]]:
    """Entry points by name. A name has several only if they load different objects."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in (SHOP, *entry_points(group=GROUP)):
        same = by_name.setdefault(entry.name, [])
        if entry.value not in [other.value for other in same]:
            same.append(entry)
    return by_name


def _find(name: str) -> _Source:
    """The file `game@HASH`, or an entry point: `tau2:retail` is looked up first, then `tau2`; the
    variant is `retail` in both cases.
    """
    if "@" in name:
        file = FILES.of(name)
        if file.part in FOLDERS_OF:
            return _installed(name, file.part, str(file.path))
        return _Source(partial(load_of, file), None, f"{file.path.name}:{file.part}")
    base, colon, variant = name.partition(":")
    if name in _entries():
        return _installed(name, name, variant or None)
    return _installed(name, base if variant or not colon else name, variant or None)


def _installed(name: str, entry: str, variant: str | None) -> _Source:
    entries = _entries()
    claims = entries.get(entry)
    if not claims:
        raise JobFailure(
            f"there is no environment {name!r}; there are {', '.join(sorted(entries))} "
            f"(packages add more through the entry point group {GROUP!r})"
        )
    if len(claims) > 1:
        values = " and ".join(entry.value for entry in claims)
        raise JobFailure(
            f"environment {claims[0].name!r} is claimed by {values}: uninstall one of the two "
            "packages"
        )
    return _Source(claims[0].load, variant, claims[0].value)


def _load(name: str, source: _Source) -> Domain:
    try:
        loaded = source.load()(source.variant)
        problem = _problem(loaded)
    except RollqError:
        raise
    except FOREIGN_ERRORS as error:
        line = line_of(error)
        text = f"{type(error).__name__}: {error}" + (f" ({line})" if line else "")
        raise JobFailure(f"environment {name!r} ({source.where}): {text}") from error
    if problem:
        raise JobFailure(
            f"environment {name!r}: {source.where} returned {problem} (docs/environments.md has an "
            "example)"
        )
    domain: Domain = loaded
    return domain


def _problem(loaded: Any) -> str:
    """The reason why this is no Domain, or ""."""
    if isinstance(loaded, type):
        return f"the class {loaded.__name__}, not an object of it"
    parts = ("name", "version", "splits", "task", "open")
    missing = [part for part in parts if not hasattr(loaded, part)]
    if missing:
        return f"no Domain: a {type(loaded).__name__} lacks {', '.join(missing)}"
    for part in ("name", "version"):
        value = getattr(loaded, part)
        if not isinstance(value, str):
            return f"a Domain whose {part} is {value!r:.60}, not a text"
    splits = loaded.splits()
    if not _are_splits(splits):
        return f"a Domain whose splits() are {splits!r:.200}, not the number of tasks of each split"
    return ""


def _are_splits(splits: Any) -> bool:
    if not isinstance(splits, Mapping) or not splits:
        return False
    return all(type(count) is int and count > 0 for count in splits.values())
