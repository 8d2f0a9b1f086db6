"""How Redis does, and whether it takes writes. Of one server: a cluster has many, and tells nothing here."""

import time
from dataclasses import dataclass
from typing import Any

from rollq.servers.health import server_info
from rollq.servers.refusal import why_no_writes


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
    return Server(at=seconds + micros / 1e6, ping_ms=ping_ms, used=used, limit=limit, trouble=why_no_writes(info))
