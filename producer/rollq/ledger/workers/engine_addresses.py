"""Named sets of engines' addresses in Redis, which may change while workers use them: `--engine
redis:NAME`.

No job's state depends on them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.errors import SettingsError
from rollq.job import NAME
from rollq.ledger.keys import ENGINES
from rollq.servers.refusal import guarded
from rollq.settings import FILE, REDIS, engine_address

if TYPE_CHECKING:
    import redis

REMEDY = "Delete that key, and add the engines again with `rollq engines`"
"""The remedy that an error names."""


def read_addresses(client: "redis.Redis", name: str) -> list[str]:
    """The addresses of that name, sorted. Raises LedgerError, and redis's errors when Redis is
    away.
    """
    members: Any = guarded(ENGINES + name, lambda: client.smembers(ENGINES + name), REMEDY)
    return sorted(member.decode(errors="replace") for member in members)


def add_address(client: "redis.Redis", name: str, url: str) -> None:
    """Raises LedgerError."""
    guarded(ENGINES + name, lambda: client.sadd(ENGINES + name, url), REMEDY)


def remove_address(client: "redis.Redis", name: str, url: str) -> None:
    """Raises LedgerError."""
    guarded(ENGINES + name, lambda: client.srem(ENGINES + name, url), REMEDY)


def check_addresses(name: str, urls: Iterable[str]) -> set[str]:
    """The addresses of a list of that name. Raises SettingsError for a wrong name, and for one
    that is no engine's.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise SettingsError(f"the name of a list of engines must match {NAME.pattern}: {name!r}")
    where = f"the engines {name}"
    if isinstance(urls, str):
        raise SettingsError(f"{where}: addresses belong in a list, not in a text: [{urls!r}]")
    return {_listed(url, where) for url in urls}


def _listed(url: str, where: str) -> str:
    """An address in a list. Raises SettingsError, also for another list."""
    if url.startswith((FILE, REDIS)):
        raise SettingsError(f"{where}: {url}: a list of engines has no lists in it")
    return engine_address(url, where)


def set_addresses(client: "redis.Redis", name: str, urls: set[str]) -> None:
    """Makes these the only ones. Raises LedgerError."""
    for url in urls:
        add_address(client, name, url)
    for url in {*read_addresses(client, name)} - urls:
        remove_address(client, name, url)


def read_list(source: str, client: Any) -> tuple[str, ...]:
    """The addresses in the file of `file:PATH` (lines that begin with # are comments), or in the
    set of `redis:NAME`.

    Raises SettingsError, LedgerError, CONNECTION_ERRORS.
    """
    if source.startswith(REDIS):
        lines = read_addresses(client, source.removeprefix(REDIS))
    else:
        try:
            lines = Path(source.removeprefix(FILE)).read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise SettingsError(str(e)) from e
    addresses = []
    for line in lines:
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        addresses.append(_listed(entry, source))
    return tuple(addresses)
