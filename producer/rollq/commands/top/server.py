"""How Redis does, and whether it takes writes. Of one server: a cluster has many, and tells nothing here."""

import time
from dataclasses import dataclass
from typing import Any

from rollq.servers.connection import server_info

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    at: float
    """Its clock, Unix seconds."""
    ping_ms: float
    """Milliseconds of one call."""
    used: int | None = None
    """Bytes of memory; None where it does not tell."""
    limit: int | None = None
    """Its maxmemory in bytes; None: there is none, or it does not tell."""
    trouble: str = ""
    """Why it takes no writes, and the remedy; empty when it does."""


def read_server(connection: Any) -> Server:
    """Raises redis's errors when it is away."""
    info = server_info(connection)
    began = time.perf_counter()
    seconds, micros = connection.time()
    ping_ms = (time.perf_counter() - began) * 1000
    used, limit = info.get("used_memory"), info.get("maxmemory") or None
    return Server(
        at=seconds + micros / 1e6, ping_ms=ping_ms, used=used, limit=limit, trouble=_trouble(used, limit, info)
    )


def _trouble(used: int | None, limit: int | None, info: dict[str, Any]) -> str:
    if used and limit and used >= limit:
        return (
            f"Redis is out of memory ({used // MIB} of {limit // MIB} MiB): workers claim nothing, and what is played"
            " goes on. Raise its maxmemory, let consumers acknowledge, or drop old runs with `rollq drop`"
        )
    wrong = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if wrong:
        return (
            f"Redis cannot write to its disk ({', '.join(wrong)}: err), and may refuse writes: make room there, then"
            " look at its log. `rollq doctor` checks it"
        )
    if info.get("role") == "slave":
        return "this Redis is a replica and takes no writes: use the address of its primary, or of Sentinels"
    return ""
