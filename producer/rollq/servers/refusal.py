"""Why a Redis takes no writes, as far as it says so itself. It only judges, and asks nothing."""

from collections.abc import Mapping
from typing import Any

MIB = 2**20


def why_no_writes(info: Mapping[str, Any]) -> str:
    """What is wrong with the server that says this of itself (INFO), and the remedy; empty when it takes writes."""
    used, limit = info.get("used_memory"), info.get("maxmemory")
    if used and limit and used >= limit:
        return (
            f"Redis is out of memory ({used / MIB:.1f} of {limit / MIB:.1f} MiB): workers claim nothing, and what is"
            " played goes on. Raise its maxmemory, let consumers acknowledge, or drop old runs with `rollq drop`"
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
